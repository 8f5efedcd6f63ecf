"""``starpullm parity``: golden records, or a live llm.c, bit for bit."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from starpullm.checks.llmc import run_llmc
from starpullm.checks.parity import ParityResult, check_parity, make_inputs
from starpullm.checks.references import GoldenReference
from starpullm.checks.result import Outcome
from starpullm.commands.main import EXIT_DIFFERENT, EXIT_NOT_COMPARABLE, all_ranks, guarded_ranks
from starpullm.commands.options import PATH, blas_library_option, json_option, matmul_option, reduction_option
from starpullm.commands.render import OUT, print_json, progress_bar
from starpullm.golden.records import GoldenRecord, shipped_records
from starpullm.runtime import DEFAULT_SCHEDULER, Runtime

__all__ = ["parity"]

MAX_DETAILS = 16
"""So many lines are shown of what differs in one run."""


@click.command()
@click.argument("record_files", metavar="[RECORD.json]...", nargs=-1, type=PATH)
@click.option("--partition", "partitions", multiple=True, default=["1x1"], show_default=True, metavar="WxT")
@click.option(
    "--sub-batches",
    default="1",
    show_default=True,
    metavar="S|all",
    help="Parts of the batch; all: every number that divides it.",
)
@reduction_option
@click.option("--scheduler", "schedulers", multiple=True, default=[DEFAULT_SCHEDULER], show_default=True)
@click.option("--full", is_flag=True, help="Without RECORD: also the shipped record of the 124M model.")
@matmul_option
@blas_library_option
@click.option(
    "--llmc-lib",
    type=PATH,
    help="Compare with llm.c itself, as this shared object, run on the records' models, tokens and settings.",
)
@json_option
def parity(
    record_files: Sequence[Path],
    partitions: Sequence[str],
    sub_batches: str,
    reduction: str,
    schedulers: Sequence[str],
    full: bool,
    matmul: str,
    blas_library: str | None,
    llmc_lib: Path | None,
    as_json: bool,
) -> None:
    """Compare every tensor of every step with llm.c's golden records, bit for bit.

    Without RECORD: the records shipped with the package. --partition and --scheduler may be repeated. Under mpirun the
    ranks share the record's batch; --sub-batches are those of one rank.

    Exit status 0: all bits are equal; 1: some differ; 2: bad usage or input; 3: not comparable (another libm,
    or matmuls by a BLAS).
    """
    if record_files:
        records = [GoldenRecord.load(path) for path in record_files]
    else:
        records = [record for name, record in shipped_records().items() if full or name != "gpt2-124m"]
    results: list[ParityResult] = []
    with all_ranks() as comm:
        ranks = comm.Get_size() if comm else 1
        plan = [
            (record, _sub_batch_counts(record, sub_batches, ranks))
            for record in records
            if record_files or record.batch_size % ranks == 0
        ]
        runs = len(partitions) * len(schedulers)
        with (
            tempfile.TemporaryDirectory(prefix="starpullm-parity-") as directory,
            progress_bar(hidden=as_json) as progress,
        ):
            steps = sum(record.num_steps * len(counts) for record, counts in plan) * runs
            bar = progress.add_task("parity", total=steps)
            for record, counts in plan:
                checkpoint = make_inputs(record, Path(directory))
                reference = run_llmc(llmc_lib, record, checkpoint, Path(directory), comm) if llmc_lib else None
                for partition in partitions:
                    for scheduler in schedulers:
                        with (
                            Runtime(partition, scheduler, comm, matmul=matmul, blas_library=blas_library) as runtime,
                            guarded_ranks(comm),
                        ):
                            for count in counts:
                                result = check_parity(
                                    reference.record if reference else record,
                                    runtime,
                                    checkpoint,
                                    sub_batches=count,
                                    reduction=reduction,
                                    reference=reference,
                                    progress=lambda: progress.advance(bar),
                                )
                                results.append(result)
                                if not as_json:
                                    for line in _parity_lines(result):
                                        OUT.print(line, markup=False)
                checkpoint.unlink()
        if as_json:
            print_json([result.as_json() for result in results])
        else:
            OUT.print(_parity_summary(results), markup=False)
    outcomes = {result.outcome for result in results}
    if Outcome.FAILED in outcomes:
        sys.exit(EXIT_DIFFERENT)
    if Outcome.NOT_COMPARABLE in outcomes:
        sys.exit(EXIT_NOT_COMPARABLE)


def _sub_batch_counts(record: GoldenRecord, sub_batches: str, ranks: int) -> list[int]:
    if sub_batches == "all":
        own = record.batch_size // ranks
        return [count for count in range(1, own + 1) if own % count == 0]
    try:
        return [int(sub_batches)]
    except ValueError:
        raise click.BadParameter(f'expected a number or "all", found "{sub_batches}"') from None


def _parity_line(result: ParityResult) -> str:
    live = result.reference != GoldenReference.name
    line = (
        f"{result.record} {result.partition} {result.scheduler} "
        f"{f'ranks {result.ranks} ' if result.ranks > 1 else ''}sub-batches {result.sub_batches} {result.reduction}"
        f"{f' against {result.reference}' if live else ''}: "
    )
    if result.outcome is Outcome.NOT_COMPARABLE:
        return f"{line}not comparable, {result.finding}"
    line += f"{result.num_tensors} tensors over {result.num_steps} steps, {len(result.differences)} differ"
    return f"{line}; first {result.differences[0]}" if result.differences else line


def _parity_lines(result: ParityResult) -> Iterator[str]:
    yield _parity_line(result)
    details = list(result.detail_lines())
    yield from (f"  {line}" for line in details[:MAX_DETAILS])
    if len(details) > MAX_DETAILS:
        yield f"  … and {len(details) - MAX_DETAILS} more, see --json"


def _parity_summary(results: Sequence[ParityResult]) -> str:
    different = sum(len(result.differences) for result in results)
    if not different and any(result.outcome is Outcome.NOT_COMPARABLE for result in results):
        return "parity: not comparable" + ("" if any(of.matmul != "strict" for of in results) else " on this machine")
    tensors = sum(result.num_tensors for result in results)
    steps = sum(result.num_steps for result in results if result.outcome is not Outcome.NOT_COMPARABLE)
    return f"parity: {tensors} tensors over {steps} steps, {different} differ"
