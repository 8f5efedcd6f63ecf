"""``starpullm parity``: compares training with golden records, the plain model or a live llm.c, bit for bit."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import click

from starpullm.checks.cases import Case, find_record
from starpullm.checks.check import run_check
from starpullm.checks.check_context import CheckContext
from starpullm.checks.foreign_tensors import ForeignTensors
from starpullm.checks.left_out import LeftOut, not_chosen
from starpullm.checks.parity import Parity
from starpullm.checks.recorded_run import MAX_RECORDED, MAX_RECORDED_PARAMETERS, record_steps
from starpullm.checks.result import Outcome, Result
from starpullm.commands import options, sizes
from starpullm.commands.main import EXIT_DIFFERENT, EXIT_NOT_COMPARABLE, all_ranks, refuse_ranks
from starpullm.commands.render import OUT, note, print_json, progress_bar
from starpullm.commands.reporting import CommandReport, command_report
from starpullm.data.sizes import divisors
from starpullm.errors import InvalidArgumentError
from starpullm.files.header import sha256_of
from starpullm.files.model import num_parameters
from starpullm.golden.records import GoldenRecord, shipped_records
from starpullm.options import training_options
from starpullm.processes.ranks import check_same_options, failing_together
from starpullm.report.document import Document
from starpullm.runtime import DEFAULT_SCHEDULER, Runtime, runtime_options
from starpullm.schedules import number_of_pipelines

MAX_LINES = 16
"""Lines that are shown of one run."""


@click.command(
    "parity",
    epilog=options.example(
        "starpullm parity tiny odd --partition 1x1 --partition 2x1 --sub-batches all",
        "mpirun -n 2 starpullm parity --sub-batches 2",
    ),
)
@click.argument("record_files", metavar="[RECORD]...", nargs=-1, envvar="STARPULLM_RECORDS")
@options.partitions
@click.option(
    "--sub-batches", default="1", metavar="S|all", help=f"{options.SUB_BATCHES}; all: every number that divides it."
)
@options.settings
@options.repeated("--scheduler", "schedulers", default=[DEFAULT_SCHEDULER], metavar="NAME", help=options.SCHEDULER)
@click.option("--full", is_flag=True, help="Without RECORD: also use the shipped record of the 124M model.")
@options.computing
@sizes.of_run
@click.option("--write-inputs", type=options.PATH, metavar="FOLDER", help="Write the inputs of such a run, and exit.")
@click.option("--tensors", type=options.PATH, metavar="FOLDER", help="Compare a program's tensors, and exit.")
@click.option("--ulps", type=click.FloatRange(min=0), default=0.0, help="Largest accepted distance of --tensors.")
@click.option(
    "--llmc-library",
    type=options.PATH,
    envvar="STARPULLM_LLMC_LIB",
    help="Compare with llm.c itself, built as this shared object, on the models, tokens and settings of the records.",
)
@options.progress_limit
@options.as_json
@options.report
def command(**values: Any) -> None:
    """Compare every tensor of every step with llm.c's, bit for bit.

    RECORD is a golden record: the name of one of the package (tiny, odd, small, deep, single, ragged, long, wide,
    gpt2-124m), or a file with hashes of all tensors that llm.c computed. By default all records of the package but
    gpt2-124m are used; those whose batch can't be cut into --sub-batches are left out. Every combination of the
    repeated options is compared. With --layers and other sizes, such a run is compared with the plain model. Under
    mpirun, the ranks share the batch of a record, or with --stages the blocks of its model. Activations aren't compared
    if --activation-sets, --recompute or --schedule lets them share memory, nor the blocks' gradients if they are
    reused; nor any gradients if the plan of --offload drops them, which it doesn't where activations are compared.

    Exit status: 0 if all bits are equal; 1 if some differ; 2 for bad usage or input, also if the ranks can share no
    record's batch; 3 if nothing can be compared, because a BLAS computes the matmuls.
    """
    run = SimpleNamespace(**values)
    results: list[Result] = []
    if run.write_inputs or run.tensors:
        refuse_ranks("one process reads and writes the files of a run")
        sizes.refuse_others("write_inputs" if run.write_inputs else "tensors")
        return sizes.write_inputs(run) if run.write_inputs else _compare_tensors(run)
    if run.ulps:
        raise click.UsageError("--ulps: expected --tensors beside it")
    with (
        all_ranks() as comm,
        command_report(run.report, "starpullm parity", comm) as report,
        tempfile.TemporaryDirectory(prefix="starpullm-parity-") as name,
    ):
        parts = number_of_pipelines(comm.Get_size() if comm else 1, run.stages)
        own = [sizes.record_of_sizes(run, Path(name), comm)] if sizes.are_given() else []
        with failing_together(comm):
            records = [*own, *(find_record(name) for name in run.record_files)]
            plan, unfit = _plan(records, run.full, run.sub_batches, parts)
        if comm:
            check_same_options(comm, {f"SHA-256 of record {record.name}": sha256_of(record.path) for record, _ in plan})
        report.leave_out([*unfit, *_left_out(run, plan, report.document)])
        for entry in unfit:
            note(f"{entry.what} is left out: {entry.reason}")
        steps = sum(record.num_steps * len(counts) for record, counts in plan)
        places = list(product(run.partitions, run.schedulers))
        with progress_bar(hidden=run.as_json) as progress:
            bar = progress.add_task("parity", total=steps * len(places))
            for (record, counts), place in product(plan, places):
                directory = Path(name, "model")
                directory.mkdir(exist_ok=True)
                with Runtime(*place, comm, **runtime_options(run)) as runtime:
                    context = CheckContext(runtime, directory, lambda: progress.advance(bar))
                    for case in _cases(run, record, counts):
                        results.append(run_check(context, check=Parity(), case=case))
                        _show(results[-1], report, as_json=run.as_json)
                    if run.report and record is plan[0][0]:
                        _record(report, context, case)
                if place == places[-1]:
                    shutil.rmtree(directory)  # a model may be large
        report.status = _exit_status(results)
        _print_summary(results, as_json=run.as_json)
    sys.exit(_exit_status(results))


def _cases(run: SimpleNamespace, record: GoldenRecord, counts: Sequence[int]) -> Iterator[Case]:
    """Yield the suite's case of each number of sub-batches."""
    options = training_options(run) | {"arithmetic": run.arithmetic, "library": str(run.llmc_library or "")}
    for count in counts:
        yield Case(str(record.path), seed=record.seed, **options | {"sub_batches": count})


def _compare_tensors(run: SimpleNamespace) -> NoReturn:
    with all_ranks(), command_report(run.report, "starpullm parity") as report:
        result = ForeignTensors().compare(GoldenRecord.load(run.tensors / sizes.RUN), run.tensors, run.ulps)
        report.document["tests"].append(_as_test(result))
        report.status = _exit_status([result])
    for line in [] if run.as_json else result.lines():
        OUT.print(line)
    _print_summary([result], as_json=run.as_json)
    sys.exit(report.status)


def _plan(
    named: Sequence[GoldenRecord], full: bool, sub_batches: str, ranks: int
) -> tuple[list[tuple[GoldenRecord, list[int]]], list[LeftOut]]:
    """Return the records to compare with, each with the numbers of sub-batches of a rank, and the records left out.

    Shipped records whose batch can't be cut so are left out. If that leaves none, or if a record that was named is one
    of them, the command is refused.
    """
    count = _count(sub_batches)
    records = named or [record for name, record in shipped_records().items() if full or name != "gpt2-124m"]
    plan: list[tuple[GoldenRecord, list[int]]] = []
    unfit: list[LeftOut] = []
    for record in records:
        own, rest = divmod(record.batch_size, ranks)
        if rest:
            reason = f"its batch of {record.batch_size} can't be spread over {ranks} ranks"
        elif count and own % count:
            reason = f"sub_batches: found {count}, expected a divisor of the batch size {own}"
            reason += " of each rank" if ranks > 1 else ""
        else:
            plan.append((record, [count] if count else divisors(own)))
            continue
        if named:
            raise InvalidArgumentError(f"{record.name}: {reason}; nothing would be compared")
        unfit.append(LeftOut(f"record {record.name}", reason))
    if not plan:
        batches = ", ".join(f"{record.name} {record.batch_size}" for record in records)
        cuts = f" and sub_batches {count}" if count not in (None, 1) else ""
        raise InvalidArgumentError(
            f"ranks: found {ranks}{cuts}, expected a divisor of the batch of a shipped record ({batches}); nothing "
            "would be compared"
        )
    return plan, unfit


def _count(sub_batches: str) -> int | None:
    """Return the number of sub-batches, or None for all that divide the batch."""
    if sub_batches == "all":
        return None
    try:
        count = int(sub_batches)
    except ValueError:
        count = 0
    if count < 1:
        raise click.BadParameter(
            f'expected a positive number or "all", found "{sub_batches}"', param_hint="--sub-batches"
        )
    return count


def _left_out(
    run: SimpleNamespace, plan: Sequence[tuple[GoldenRecord, list[int]]], document: Document
) -> Iterator[LeftOut]:
    """Yield what the command doesn't compare, for its report; document has what is known of the machine."""
    machine = document["environment"]
    if machine is None:
        return
    yield LeftOut(
        "order of tasks, accesses, reductions and memory",
        "this command compares bits; pytest --pyargs starpullm.suite checks the rest",
    )
    yield LeftOut("speed", "starpullm bench measures it")
    if not run.llmc_library:
        yield LeftOut("llm.c itself as reference", "there is no llm.c: --llmc-library names one")
    chosen = {
        "records": [record.name for record, _ in plan],
        "partitions": run.partitions,
        "schedulers": run.schedulers,
        "reductions": [run.reduction],
    }
    yield from not_chosen(machine, document["ranks"], chosen, _HOW)


_HOW = {
    "ranks": "mpirun -n R starpullm parity",
    "records": "--full adds the largest, RECORD.json chooses",
    "partitions": "--partition chooses partitions",
    "schedulers": "--scheduler chooses schedulers",
    "reductions": "--reduction chooses one",
}


def _record(report: CommandReport, context: CheckContext, case: Case) -> None:
    """Record some steps for the pictures of a report, unless the model or the number of recordings is large."""
    model = find_record(case.record).model
    if len(report.document["recordings"]) < MAX_RECORDED and num_parameters(model) <= MAX_RECORDED_PARAMETERS:
        report.document["recordings"].append(record_steps(context, case))


def _as_test(result: Result) -> dict[str, Any]:
    """Return a result in the form that a report has for tests."""
    outcomes = {Outcome.PASSED: "passed", Outcome.FAILED: "failed"}
    return {
        "test": result.where,
        "family": result.family,
        "configuration": result.where.partition(" on ")[2],
        "outcome": outcomes.get(result.outcome, "skipped"),
        "ending": result.outcome.value,
        "seconds": 0.0,
        "message": "" if result.outcome is Outcome.PASSED else "\n".join(result.lines()),
        "results": [result.as_json()],
    }


def _exit_status(results: Sequence[Result]) -> int:
    outcomes = {result.outcome for result in results}
    if Outcome.FAILED in outcomes:
        return EXIT_DIFFERENT
    return EXIT_NOT_COMPARABLE if Outcome.NOT_COMPARABLE in outcomes else 0


def _show(result: Result, report: CommandReport, *, as_json: bool) -> None:
    """Add a result to the report, and print it."""
    report.document["tests"].append(_as_test(result))
    report.renew()
    for line in [] if as_json else result.first_lines(MAX_LINES):
        OUT.print(line)


def _print_summary(results: Sequence[Result], *, as_json: bool) -> None:
    if as_json:
        print_json([result.as_json() for result in results])
        return
    different = sum(result.count for result in results)
    if _exit_status(results) == EXIT_NOT_COMPARABLE:
        OUT.print("parity: not comparable")
        return
    tensors = sum(result.compared for result in results)
    steps = sum(result.facts["steps"] for result in results)
    OUT.print(f"parity: {tensors} tensors over {steps} steps, {different} differ")
