"""``starpullm bench``: measures training, or compares it with other implementations, and prints tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from starpullm.checks.result import json_value
from starpullm.commands import options
from starpullm.commands.main import exit_status, refuse_ranks
from starpullm.commands.render import ERR, OUT, print_json, progress_bar
from starpullm.errors import StarpullmError
from starpullm.files.checkpoint import checkpoint_config
from starpullm.golden.records import SHIPPED_RECORDS, GoldenRecord, shipped_record
from starpullm.options import ARITHMETICS, RECOMPUTATIONS, REDUCTIONS, training_options
from starpullm.processes.lock import machine_lock
from starpullm.runtime import Partition
from starpullm.schedules import number_of_pipelines
from starpullm.speed.against import BLAS, LIBRARY, STRICT, SpeedComparison, compare
from starpullm.speed.measure import Throughput, bench
from starpullm.speed.speed_verdict import NoiseMeter
from starpullm.speed.variant import Variant
from starpullm.speed.workload import Workload


@click.command(
    "bench",
    epilog=options.example(
        "starpullm bench --model gpt2-124m --batch-size 12 --partition 1x1 --partition 2x1",
        "starpullm bench --model small --total-batch-size 8 --ranks 1 --ranks 2 --json",
        "starpullm bench --model gpt2-124m --batch-size 12 --partition 2x1 --against blas",
    ),
)
@click.option("--model", type=click.Choice(SHIPPED_RECORDS), help="Generated model with the sizes of a shipped record.")
@options.of_model
@options.repeated("--batch-size", type=int, help="Sequences per step on each rank, as in `train`")
@options.repeated(
    "--total-batch-size",
    type=int,
    show_default="the record's, or 4",
    help="Sequences per step on all ranks together, instead of --batch-size",
)
@click.option("--seq-len", type=int, show_default="the record's, or 64", help="Tokens per sequence.")
@options.partitions
@options.repeated("--sub-batches", type=int, show_default="one per worker", help=options.SUB_BATCHES)
@options.sets
@options.repeated_word("--recompute", RECOMPUTATIONS, help=options.RECOMPUTE)
@options.weight_gradients
@options.pipelines
@options.repeated_word("--reduction", REDUCTIONS, help=options.REDUCTION)
@options.repeated(
    "--weight-gradient-tiles", type=int, default=[0], show_default=options.TILES_DEFAULT, help=options.TILES
)
@options.repeated("--ranks", type=click.IntRange(min=1), default=[1], help="Number of ranks, started by mpirun")
@options.scheduler
@click.option("--iterations", type=int, default=10, help="Measured steps; with --against, rounds.")
@click.option("--warm-up", type=int, default=2, help="Steps before the measured ones; not with --against.")
@options.time_limit
@options.computing
@options.repeated(
    "--against",
    "peers",
    type=click.Choice((LIBRARY, BLAS)),
    help="Compare with the same training by another build of the library, or with matmuls by a BLAS",
)
@click.option(
    "--baseline-library", type=options.FILE, metavar="FILE", help="The libstarpullm.so for --against library."
)
@options.as_json
def command(**values: Any) -> None:
    """Measure how fast training is, and where the time goes.

    Every combination of the repeated options is measured in processes of its own, one after the other. Nothing else
    should run on the machine.

    "limit" is the most operations per second that the same cores do in registers in this arithmetic, "of limit" how
    much of it the matmuls reach. Idle time of workers counts as "StarPU" while the data of a task are there, otherwise
    as "waiting".

    With --against, the variants take turns in --iterations rounds. "strict is" says how many times as fast the strict
    run is: the median, the least and the most of the ratios within each round. With fewer than six rounds there is no
    median.
    """
    refuse_ranks("--ranks says on how many to measure")
    run = SimpleNamespace(**values)
    options.expect_one(model=run.model, checkpoint=run.checkpoint)
    if run.batch_size and run.total_batch_size:
        raise click.UsageError("expected either --batch-size or --total-batch-size")
    if (LIBRARY in run.peers) != (run.baseline_library is not None):
        raise click.UsageError("expected --against library together with --baseline-library")
    record = shipped_record(run.model) if run.model else None
    config, seed = (record.model, record.seed) if record else (checkpoint_config(run.checkpoint), 0)
    workloads = list(_workloads(run, record))
    with options.model_file(run.checkpoint, config, seed) as checkpoint:
        _measure_all(run, workloads, checkpoint)


_REPEATED = ("reduction", "weight_gradient_tiles", "recompute")


def _workloads(run: SimpleNamespace, record: GoldenRecord | None) -> Iterator[Workload]:
    """Yield every combination of the repeated options."""
    totals = run.total_batch_size or [record.batch_size if record else 4]
    names = ("scheduler", "iterations", "warm_up", "matmul", "arithmetic", "memory_limit", "offload_plan", "devices")
    same = training_options(run) | {name: getattr(run, name) for name in names}
    for batch_size, ranks, partition in product(run.batch_size or totals, run.ranks, run.partitions):
        sub_batches = run.sub_batches or [Partition.parse(partition).workers]
        for values in product(sub_batches, *(getattr(run, name) for name in _REPEATED)):
            yield Workload(
                model=record.name if record else str(run.checkpoint),
                batch_size=batch_size * (number_of_pipelines(ranks, run.stages) if run.batch_size else 1),
                seq_len=run.seq_len if run.seq_len is not None else record.seq_len if record else 64,
                partition=partition,
                ranks=ranks,
                blas_library=None if run.peers else run.blas_library,
                offload=None if run.offload is None else str(run.offload.absolute()),
                **(same | dict(zip(("sub_batches", *_REPEATED), values, strict=True))),
            )


def _measure_all(run: SimpleNamespace, workloads: Sequence[Workload], checkpoint: Path) -> None:
    """Measure one workload after the other and show each at once; after a failure, go on and exit with its status."""
    results: list[Throughput | SpeedComparison] = []
    document: list[Any] = []
    failures: dict[Workload, StarpullmError] = {}
    try:
        with machine_lock(ERR.print), progress_bar(hidden=run.as_json) as progress:
            noise = NoiseMeter()
            bar = progress.add_task("bench", total=len(workloads) * (run.iterations if run.peers else 1))
            for workload in workloads:
                try:
                    if run.peers:
                        peers = [_peer(run, name) for name in dict.fromkeys(run.peers)]
                        results.append(
                            compare(workload, checkpoint, peers, run.time_limit, lambda: progress.advance(bar))
                        )
                    else:
                        results.append(bench(workload, checkpoint, run.time_limit))
                        progress.advance(bar)
                    document.append(results[-1])
                except StarpullmError as error:
                    failures[workload] = error
                    document.append({"configuration": workload, "failure": str(error)})
                    progress.console.print(f"Error: {error}")
                if not run.as_json and workload not in failures:
                    _print_result(results, workloads)
    finally:
        if results and run.as_json:
            print_json(json_value(document))
        elif results:
            _print_end(results, failures, workloads, noise)
    if failures:
        sys.exit(exit_status(next(iter(failures.values()))))


def _peer(run: SimpleNamespace, name: str) -> Variant:
    if name == BLAS:
        return Variant(name, matmul="blas", blas_library=run.blas_library, arithmetic=ARITHMETICS[0])
    return Variant(name, library=run.baseline_library.absolute())


_COLUMNS: dict[str, Callable[[Throughput], str]] = {
    "tokens/ms": lambda speed: f"{speed.tokens_per_ms:.4g}",
    "GFLOP/s": lambda speed: f"{speed.matmul_gflops:.4g}",
    "limit": lambda speed: f"{speed.matmul_limit_gflops:.4g}",
    "with FMA": lambda speed: "-" if speed.fma_peak_gflops is None else f"{speed.fma_peak_gflops:.4g}",
    "of limit": lambda speed: "noise" if speed.was_disturbed else f"{speed.fraction_of_limit:.1%}",
    "kernels": lambda speed: f"{speed.kernel_fraction:.1%}",
    "StarPU": lambda speed: f"{speed.runtime_overhead_fraction:.1%}",
    "waiting": lambda speed: f"{speed.waiting_fraction:.1%}",
    "memory": lambda speed: f"{speed.peak_rss_bytes / 2**20:.0f} MiB",
}
_NUM_OPERATIONS = 5


def _name(workload: Workload, workloads: Sequence[Workload]) -> str:
    """Return a workload's name in the table of all, of the same length for all."""
    several = len({each.batch_size for each in workloads}) > 1
    names = {each: f"B = {each.batch_size}, {each}" if several else str(each) for each in workloads}
    return names[workload].ljust(max(map(len, ("configuration", *names.values()))))


def _print_result(results: Sequence[Throughput | SpeedComparison], workloads: Sequence[Workload]) -> None:
    """Print the last result: a comparison, or a row of a table, after the first one's heading."""
    result, first = results[-1], results[-1].configuration
    if isinstance(result, SpeedComparison):
        print_comparison(result)
        return
    name = _name(first, workloads)
    if len(results) == 1:
        sizes = dict.fromkeys(str(each.batch_size) for each in workloads)
        OUT.print(
            f"{first.model}, B = {', '.join(sizes)}, T = {first.seq_len}, {first.iterations} iterations after "
            f"{first.warm_up}, {first.scheduler}, {result.simd_level}"
        )
        if result.matmul != "strict":
            OUT.print(f"matmuls: {result.matmul}, not strict")
        _print_line("configuration".ljust(len(name)), _COLUMNS)
    _print_line(name, [cell(result) for cell in _COLUMNS.values()])


def _print_line(name: str, cells: Iterable[str], width: int = 9) -> None:
    OUT.print(name + "".join(f"  {cell:>{width}}" for cell in cells))


def _print_end(
    results: Sequence[Throughput | SpeedComparison],
    failures: Mapping[Workload, StarpullmError],
    workloads: Sequence[Workload],
    noise: NoiseMeter,
) -> None:
    """Print what failed, where the time of each configuration goes, and what else used the machine."""
    for workload, failure in failures.items():
        OUT.print(f"{_name(workload, workloads)}  failed: {str(failure).splitlines()[0]}")
    what, ranges = "the limit", []
    for result in results:
        if isinstance(result, SpeedComparison):
            strict = result.variants[0].tokens_per_ms
            what = "the strict run's speed"
            ranges.append((strict.low, strict.high))
        else:
            OUT.print(f"{_name(result.configuration, workloads)}: {_details(result)}")
            ranges.append((min(result.matmul_limit_range), max(result.matmul_limit_range)))
    OUT.print(noise.sentence(what, ranges))


def _details(result: Throughput) -> str:
    """Return how the kernels' time is divided, and what is known of the fraction of the limit if noise hides it."""
    total = sum(result.seconds_by_operation.values())
    longest = list(result.seconds_by_operation.items())[:_NUM_OPERATIONS]
    shares = [f"{operation} {seconds / total:.1%}" for operation, seconds in longest]
    others = total - sum(seconds for _, seconds in longest)
    text = ", ".join([*shares, f"others {others / total:.1%}"])
    chain, share = next(iter(result.waits.items()), ("", 0.0))
    if chain.startswith("grads/") and result.configuration.reduction == REDUCTIONS[0]:
        text += f"; a step waits for the running sum of {chain.removeprefix('grads/')} for {share:.0%} of its time"
    if result.was_disturbed:
        low, high = result.matmul_limit_range
        text += (
            f"; the fraction of the limit is within noise: {result.matmul_gflops / high:.1%} to "
            f"{result.matmul_gflops / low:.1%}, because the limit was measured as {low:.4g} to {high:.4g}"
        )
    return text


def print_comparison(comparison: SpeedComparison) -> None:
    """Print a row for each variant, what it computes with, and how far the losses differ."""
    workload = comparison.configuration
    OUT.print(
        f"{workload.model}, B = {workload.batch_size}, T = {workload.seq_len}, {workload}, {workload.iterations} rounds"
    )
    length, width = len("torch compiled"), len("within noise")
    columns = ("tokens/ms", "least", "most", "strict is", "least", "most")
    _print_line("variant".ljust(length), columns, width)
    for variant in comparison.variants:
        speed, slower = variant.tokens_per_ms, variant.times_slower
        speeds = (f"{speed.median:.4g}", f"{speed.low:.4g}", f"{speed.high:.4g}")
        ratio = {None: "few rounds", True: "within noise", False: f"{slower.median:.2f} x"}[variant.is_within_noise]
        ratios = (ratio, f"{slower.low:.2f}", f"{slower.high:.2f}")
        cells = speeds if variant.name == STRICT else (*speeds, *ratios)
        _print_line(variant.name.ljust(length), cells, width)
    for variant in comparison.variants[1:]:
        OUT.print(f"{variant.name}: {variant.description}")
    OUT.print(f"losses of the first steps differ by at most {comparison.loss_difference:.2g}")
