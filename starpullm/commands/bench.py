"""``starpullm bench``: every combination of the options is measured, or compared with others; tables."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import click
from rich.table import Table

from starpullm.commands.options import PATH, blas_library_option, json_option, matmul_option, scheduler_option
from starpullm.commands.render import OUT, print_json, print_table, progress_bar
from starpullm.data.generator import generate_checkpoint
from starpullm.golden.records import SHIPPED_RECORDS, shipped_record
from starpullm.runtime import Partition
from starpullm.speed.measure import Throughput, bench
from starpullm.speed.peers.compare import PEERS, STRICT, Comparison, compare
from starpullm.speed.workload import Workload
from starpullm.trainer import REDUCTIONS

__all__ = ["bench_command"]


@click.command("bench")
@click.option("--model", type=click.Choice(SHIPPED_RECORDS), help="A generated model with a shipped record's sizes.")
@click.option("--checkpoint", type=PATH, help="Or a model of your own.")
@click.option(
    "--batch-size", "batch_sizes", multiple=True, type=int, help="B of all ranks; by default the record's, or 4."
)
@click.option("--seq-len", type=int, help="T; by default the record's, or 64.")
@click.option("--partition", "partitions", multiple=True, default=["1x1"], show_default=True, metavar="WxT")
@click.option(
    "--sub-batches", "sub_batch_counts", multiple=True, type=int, help="S of each rank; by default one per worker."
)
@click.option(
    "--reduction",
    "reductions",
    multiple=True,
    type=click.Choice(REDUCTIONS),
    default=[REDUCTIONS[0]],
    show_default=True,
    help="Of gradients.",
)
@click.option("--ranks", "rank_counts", multiple=True, type=int, default=[1], show_default=True, help="Under mpirun.")
@scheduler_option
@click.option("--iterations", type=int, default=10, show_default=True, help="Steps that count.")
@click.option("--warm-up", type=int, default=2, show_default=True, help="Steps before them.")
@click.option("--time-limit", type=float, default=1800.0, show_default=True, help="Seconds per configuration.")
@matmul_option
@blas_library_option
@click.option(
    "--against",
    "peers",
    multiple=True,
    type=click.Choice(PEERS),
    help="Take turns with matmuls by a BLAS, or with PyTorch, and print ratios; may be repeated.",
)
@json_option
def bench_command(
    model: str | None,
    checkpoint: Path | None,
    batch_sizes: Sequence[int],
    seq_len: int | None,
    partitions: Sequence[str],
    sub_batch_counts: Sequence[int],
    reductions: Sequence[str],
    rank_counts: Sequence[int],
    scheduler: str,
    iterations: int,
    warm_up: int,
    time_limit: float,
    matmul: str,
    blas_library: str | None,
    peers: Sequence[str],
    as_json: bool,
) -> None:
    """Measure tokens per millisecond, beside what the processor could do at most and where the time goes.

    --batch-size, --partition, --sub-batches, --reduction and --ranks may be repeated: every combination is measured,
    each in processes of its own, one after the other. Nothing else should be running. `starpullm plot` draws the output
    of --json.

    With --against, contenders take turns in --iterations rounds, and ratios are taken within each round. "strict is":
    how many times as fast as the contender the strict run is.

    "of limit": the matrix products' operations per second, as a fraction of the most that the same cores do in
    registers in this arithmetic. A worker's idle time is "StarPU" while the data of a task are there; otherwise it is
    "waiting": the task graph has no task that could run.
    """
    if (model is None) == (checkpoint is None):
        raise click.UsageError("expected either --model or --checkpoint")
    record = shipped_record(model) if model else None
    workloads = [
        Workload(
            model=record.name if record else str(checkpoint),
            batch_size=batch_size,
            seq_len=seq_len if seq_len is not None else record.seq_len if record else 64,
            partition=partition,
            scheduler=scheduler,
            sub_batches=sub_batches,
            reduction=reduction,
            ranks=ranks,
            iterations=iterations,
            warm_up=warm_up,
            matmul=matmul,
            blas_library=None if peers else blas_library,
        )
        for batch_size in batch_sizes or [record.batch_size if record else 4]
        for ranks in rank_counts
        for partition in partitions
        for sub_batches in sub_batch_counts or [Partition.parse(partition).workers]
        for reduction in reductions
    ]
    results: list[Throughput] = []
    comparisons: list[Comparison] = []
    with (
        _ended_by_sigterm(),
        tempfile.TemporaryDirectory(prefix="starpullm-bench-") as directory,
        progress_bar(hidden=as_json) as progress,
    ):
        bar = progress.add_task("bench", total=len(workloads) * (iterations if peers else 1))
        if checkpoint is None:
            assert record is not None
            checkpoint = Path(directory, "model.bin")
            generate_checkpoint(checkpoint, record.model, record.seed)
        for workload in workloads:
            if peers:
                comparison = compare(
                    workload,
                    checkpoint.absolute(),
                    peers,
                    blas_library=blas_library,
                    time_limit=time_limit,
                    progress=lambda: progress.advance(bar),
                )
                comparisons.append(comparison)
            else:
                results.append(bench(workload, checkpoint.absolute(), time_limit))
                progress.advance(bar)
    if as_json:
        print_json([result.as_json() for result in comparisons or results])
    elif peers:
        _print_comparisons(comparisons)
    else:
        _print_throughputs(results)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the command as an exception, so that children are ended and generated files removed.

    Only where nothing native keeps Python from noticing the signal.
    """

    def leave(number: int, frame: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_throughputs(results: Sequence[Throughput]) -> None:
    first = results[0].configuration
    sizes = {result.configuration.batch_size for result in results}
    OUT.print(
        f"{first.model}, B = {first.batch_size if len(sizes) == 1 else 'as given'}, T = {first.seq_len}, "
        f"{first.iterations} iterations after {first.warm_up}, {first.scheduler}, {results[0].simd_level}",
        markup=False,
    )
    if results[0].matmul != "strict":
        OUT.print(f"matmuls by {results[0].matmul}: not strict", markup=False)
    print_table(_bench_table(results))
    for result in results:
        low, high = result.matmul_limit_range
        busy = f"; limit between {low:.4g} and {high:.4g}: something else was running" if high > _QUIET * low else ""
        OUT.print(f"{_bench_row(result, results)}: {_operation_shares(result)}{busy}", markup=False)


_NUM_OPERATIONS = 5
_QUIET = 1.25  # the most that repetitions of the limit differ by on a machine that does nothing else


def _bench_table(results: Sequence[Throughput]) -> Table:
    table = Table("configuration", box=None, pad_edge=False)
    for column in ("tokens/ms", "GFLOP/s", "limit", "with FMA", "of limit", "kernels", "StarPU", "waiting", "memory"):
        table.add_column(column, justify="right", no_wrap=True)
    for result in results:
        table.add_row(
            _bench_row(result, results),
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


def _bench_row(result: Throughput, results: Sequence[Throughput]) -> str:
    """Return what tells a result from the others."""
    several = len({of.configuration.batch_size for of in results}) > 1
    batch = f"B = {result.configuration.batch_size}, " if several else ""
    return f"{batch}{result.configuration}"


def _operation_shares(result: Throughput) -> str:
    total = sum(result.seconds_by_operation.values())
    longest = list(result.seconds_by_operation.items())[:_NUM_OPERATIONS]
    shares = [f"{operation} {seconds / total:.1%}" for operation, seconds in longest]
    others = total - sum(seconds for _, seconds in longest)
    return ", ".join([*shares, f"others {others / total:.1%}"])


def _print_comparisons(comparisons: Sequence[Comparison]) -> None:
    for comparison in comparisons:
        workload = comparison.configuration
        OUT.print(
            f"{workload.model}, B = {workload.batch_size}, T = {workload.seq_len}, {workload}, "
            f"{workload.iterations} rounds",
            markup=False,
        )
        table = Table("contender", box=None, pad_edge=False)
        for column in ("tokens/ms", "least", "most", "strict is", "least", "most"):
            table.add_column(column, justify="right", no_wrap=True)
        for contender in comparison.contenders:
            speed, slower = contender.tokens_per_ms, contender.times_slower
            ratios = (f"{slower.median:.2f} x", f"{slower.low:.2f}", f"{slower.high:.2f}")
            table.add_row(
                contender.name,
                f"{speed.median:.4g}",
                f"{speed.low:.4g}",
                f"{speed.high:.4g}",
                *(ratios if contender.name != STRICT else ("", "", "")),
            )
        print_table(table)
        for contender in comparison.contenders[1:]:
            OUT.print(f"{contender.name}: {contender.description}", markup=False)
        for name, reason in comparison.left_out.items():
            OUT.print(f"{name}: left out: {reason}", markup=False)
        OUT.print(f"losses of the first steps differ by at most {comparison.loss_difference:.2g}")
