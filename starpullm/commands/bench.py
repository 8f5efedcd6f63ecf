"""``starpullm bench``: measures training, or compares it with other implementations, and prints tables."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import click
from rich.table import Table

from starpullm.checks.result import json_value
from starpullm.commands import options
from starpullm.commands.render import OUT, new_table, print_json, print_table, progress_bar
from starpullm.data.generator import generate_checkpoint
from starpullm.golden.records import SHIPPED_RECORDS, GoldenRecord, shipped_record
from starpullm.runtime import Partition
from starpullm.speed.measure import Throughput, bench
from starpullm.speed.peers.compare import PEERS, STRICT, Comparison, compare
from starpullm.speed.workload import Workload
from starpullm.trainer import REDUCTIONS


@click.command(
    "bench",
    epilog=options.example(
        "starpullm bench --model gpt2-124m --batch-size 12 --partition 1x1 --partition 2x1",
        "starpullm bench --model small --total-batch-size 8 --ranks 1 --ranks 2 --json",
        "starpullm bench --model gpt2-124m --batch-size 12 --partition 2x1 --against torch",
    ),
)
@click.option("--model", type=click.Choice(SHIPPED_RECORDS), help="Generated model with the sizes of a shipped record.")
@click.option("--checkpoint", type=options.PATH, help="Checkpoint of a model, instead of --model.")
@options.repeated("--batch-size", "batch_sizes", type=int, help="Sequences per step on each rank, as in `train`")
@options.repeated(
    "--total-batch-size",
    "total_batch_sizes",
    type=int,
    show_default="the record's, or 4",
    help="Sequences per step on all ranks together, instead of --batch-size",
)
@click.option("--seq-len", type=int, show_default="the record's, or 64", help="Tokens per sequence.")
@options.repeated("--partition", "partitions", default=["1x1"], metavar="WxT", help=options.WORKERS)
@options.repeated(
    "--sub-batches", "sub_batch_counts", type=int, show_default="one per worker", help=options.SUB_BATCHES
)
@options.repeated(
    "--reduction", "reductions", type=click.Choice(REDUCTIONS), default=[REDUCTIONS[0]], help=options.REDUCTION
)
@options.repeated(
    "--ranks", "rank_counts", type=click.IntRange(min=1), default=[1], help="Number of ranks, started by mpirun"
)
@options.scheduler
@click.option("--iterations", type=int, default=10, help="Measured steps; with --against, rounds.")
@click.option("--warm-up", type=int, default=2, help="Steps before the measured ones.")
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=1800.0,
    help="Seconds that one measurement may take.",
)
@options.matmul
@options.blas_library
@options.repeated(
    "--against",
    "peers",
    type=click.Choice(PEERS),
    help="Compare with the same training by PyTorch, or with matmuls by a BLAS",
)
@options.as_json
def command(**values: Any) -> None:
    """Measure how fast training is, and where the time goes.

    Every combination of the repeated options is measured in processes of its own, one after the other. Nothing else
    should run on the machine. `starpullm plot` draws the output of --json.

    "limit" is the most operations per second that the same cores do in registers in this arithmetic, "of limit" how
    much of it the matmuls reach. Idle time of workers counts as "StarPU" while the data of a task are there, otherwise
    as "waiting".

    With --against, the contenders take turns in --iterations rounds. "strict is" says how many times as fast the strict
    run is: the median, the least and the most of the ratios within each round.
    """
    run = SimpleNamespace(**values)
    if (run.model is None) == (run.checkpoint is None):
        raise click.UsageError("expected either --model or --checkpoint")
    if run.batch_sizes and run.total_batch_sizes:
        raise click.UsageError("expected either --batch-size or --total-batch-size")
    record = shipped_record(run.model) if run.model else None
    workloads = list(_workloads(run, record))
    signal.signal(signal.SIGTERM, _leave)  # it arrives soon: this process runs no native code for long
    with tempfile.TemporaryDirectory(prefix="starpullm-bench-") as directory:
        if record is None:
            checkpoint = run.checkpoint.absolute()
        else:
            checkpoint = Path(directory, "model.bin").absolute()
            generate_checkpoint(checkpoint, record.model, record.seed)
        if run.peers:
            _compare(run, workloads, checkpoint)
        else:
            _measure(run, workloads, checkpoint)


def _workloads(run: SimpleNamespace, record: GoldenRecord | None) -> Iterator[Workload]:
    """Yield every combination of the repeated options."""
    totals = run.total_batch_sizes or [record.batch_size if record else 4]
    for batch_size, ranks, partition in product(run.batch_sizes or totals, run.rank_counts, run.partitions):
        for sub_batches, reduction in product(
            run.sub_batch_counts or [Partition.parse(partition).workers], run.reductions
        ):
            yield Workload(
                model=record.name if record else str(run.checkpoint),
                batch_size=batch_size * ranks if run.batch_sizes else batch_size,
                seq_len=run.seq_len if run.seq_len is not None else record.seq_len if record else 64,
                partition=partition,
                scheduler=run.scheduler,
                sub_batches=sub_batches,
                reduction=reduction,
                ranks=ranks,
                iterations=run.iterations,
                warm_up=run.warm_up,
                matmul=run.matmul,
                blas_library=None if run.peers else run.blas_library,
            )


def _measure(run: SimpleNamespace, workloads: Sequence[Workload], checkpoint: Path) -> None:
    results: list[Throughput] = []
    with progress_bar(hidden=run.as_json) as progress:
        for workload in progress.track(workloads, description="bench"):
            results.append(bench(workload, checkpoint, run.time_limit))
    if run.as_json:
        print_json(json_value(results))
    else:
        _print_throughputs(results)


def _compare(run: SimpleNamespace, workloads: Sequence[Workload], checkpoint: Path) -> None:
    with progress_bar(hidden=run.as_json) as progress:
        bar = progress.add_task("bench", total=len(workloads) * run.iterations)
        comparisons = [
            compare(
                workload,
                checkpoint,
                run.peers,
                blas_library=run.blas_library,
                time_limit=run.time_limit,
                progress=lambda: progress.advance(bar),
            )
            for workload in workloads
        ]
    if run.as_json:
        print_json(json_value(comparisons))
    else:
        for comparison in comparisons:
            _print_comparison(comparison)


def _leave(number: int, frame: object) -> NoReturn:
    """Handle SIGTERM by an exception, so that child processes are ended and generated files are removed."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise SystemExit(128 + number)


def _print_throughputs(results: Sequence[Throughput]) -> None:
    first = results[0].configuration
    sizes = dict.fromkeys(result.configuration.batch_size for result in results)
    OUT.print(
        f"{first.model}, B = {', '.join(map(str, sizes))}, T = {first.seq_len}, {first.iterations} iterations after "
        f"{first.warm_up}, {first.scheduler}, {results[0].simd_level}"
    )
    if results[0].matmul != "strict":
        OUT.print(f"matmuls by {results[0].matmul}: not strict")
    names = [
        f"B = {of.batch_size}, {of}" if len(sizes) > 1 else str(of)
        for of in (result.configuration for result in results)
    ]
    print_table(_throughput_table(names, results))
    for name, result in zip(names, results, strict=True):
        low, high = result.matmul_limit_range
        busy = f"; limit between {low:.4g} and {high:.4g}: other programs were running" if result.was_disturbed else ""
        OUT.print(f"{name}: {_operation_shares(result)}{busy}")


_NUM_OPERATIONS = 5


def _throughput_table(names: Sequence[str], results: Sequence[Throughput]) -> Table:
    columns = ("tokens/ms", "GFLOP/s", "limit", "with FMA", "of limit", "kernels", "StarPU", "waiting", "memory")
    table = new_table("configuration", *columns)
    for name, result in zip(names, results, strict=True):
        table.add_row(
            name,
            f"{result.tokens_per_ms:.4g}",
            f"{result.matmul_gflops:.4g}",
            f"{result.matmul_limit_gflops:.4g}",
            "-" if result.fma_peak_gflops is None else f"{result.fma_peak_gflops:.4g}",
            f"{result.fraction_of_limit:.1%}",
            f"{result.kernel_fraction:.1%}",
            f"{result.runtime_overhead_fraction:.1%}",
            f"{result.waiting_fraction:.1%}",
            f"{result.peak_rss_bytes / 2**20:.0f} MiB",
        )
    return table


def _operation_shares(result: Throughput) -> str:
    total = sum(result.seconds_by_operation.values())
    longest = list(result.seconds_by_operation.items())[:_NUM_OPERATIONS]
    shares = [f"{operation} {seconds / total:.1%}" for operation, seconds in longest]
    others = total - sum(seconds for _, seconds in longest)
    return ", ".join([*shares, f"others {others / total:.1%}"])


def _print_comparison(comparison: Comparison) -> None:
    workload = comparison.configuration
    OUT.print(
        f"{workload.model}, B = {workload.batch_size}, T = {workload.seq_len}, {workload}, {workload.iterations} rounds"
    )
    table = new_table("contender", "tokens/ms", "least", "most", "strict is", "least", "most")
    for contender in comparison.contenders:
        speed, slower = contender.tokens_per_ms, contender.times_slower
        speeds = (f"{speed.median:.4g}", f"{speed.low:.4g}", f"{speed.high:.4g}")
        ratios = (f"{slower.median:.2f} x", f"{slower.low:.2f}", f"{slower.high:.2f}")
        table.add_row(contender.name, *speeds, *(ratios if contender.name != STRICT else ("", "", "")))
    print_table(table)
    for contender in comparison.contenders[1:]:
        OUT.print(f"{contender.name}: {contender.description}")
    for name, reason in comparison.left_out.items():
        OUT.print(f"{name}: left out: {reason}")
    OUT.print(f"losses of the first steps differ by at most {comparison.loss_difference:.2g}")
