"""The project's checks in the order of their cost, and which of them is the first to catch a defect.

Everything runs in child processes whose environment names the library or a copy of the package.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from starpullm import machine
from starpullm.binding import allocations
from starpullm.checks.cases import TILES, Case
from starpullm.checks.check import all_checks
from starpullm.checks.check_context import environment, serve_checks
from starpullm.checks.devices import PLACEMENTS, case_on
from starpullm.checks.kernels.kernel_cases import CASES
from starpullm.checks.result import Outcome, Result
from starpullm.checks.scenario.scenarios import PARTS
from starpullm.checks.suite_items import Item
from starpullm.data.generator import generate_checkpoint, generate_tokens
from starpullm.files.tokens import write_tokens
from starpullm.golden.records import shipped_record
from starpullm.options import OFFLOAD_PLANS, RuntimeConfiguration
from starpullm.processes.children import Hung, Pool
from starpullm.processes.endings import Completed, Job, TimedOut
from starpullm.processes.job import run_job
from starpullm.processes.service import Answered
from starpullm.pytest_plugin.plugin_options import PERTURBING
from starpullm.speed.interleaved_rounds import interleaved_rounds, with_control
from starpullm.speed.variant import Variant
from starpullm.speed.workload import Workload

from ..from_tests import scarce_kernels, shares_of_ranks
from .generated.stages import Stage, Workplace
from .mutants import Builder
from .patches import Patch

ONE, TWO, TEAM = (RuntimeConfiguration(partition, "lws") for partition in ("1x1", "2x1", "1x2"))

RANKS, PIPELINES = (RuntimeConfiguration("1x1", "lws", ranks) for ranks in (2, 4))

SEED = 1
TIME_LIMIT = 30.0
"""Seconds for one call; the longest, memory growth, takes 5 on a quiet machine with two cores."""

TIME_LIMIT_CATCH = "time limit"
"""What catches a defect that keeps a check from ending. No check is credited with it."""

PROJECTS_TESTS = "project's tests"
"""What catches a defect of the package: tests of the loader, of conversions, and of `starpullm train`; and a defect of
kernels that have no memory, or of what a rank registers, submits and exchanges."""

FOUND, SECONDS = "found", "seconds"
"""The properties of a test that the list at the end of the run is made of."""

NOTHING = "nothing"
"""What a patch names whose defect no check finds."""


@dataclass(frozen=True)
class Catch:
    """A check that failed, or the time limit, and one line of what was found."""

    check: str
    finding: str


class UnansweredError(Exception):
    """A child has not answered; ``has_hung`` says whether the time limit has ended it."""

    def __init__(self, text: str, has_hung: bool) -> None:
        super().__init__(text)
        self.has_hung = has_hung


class Laboratory:
    """A library, perhaps with a defect, and the processes that check it; a context manager.

    Parameters
    ----------
    library
        The shared library.
    directory
        For files.
    without_defect
        What the speed is compared with; None: the library itself.
    only_tiny
        Leave out what takes longer because it trains larger models.
    """

    def __init__(
        self, library: Path, directory: Path, *, without_defect: Path | None = None, only_tiny: bool = False
    ) -> None:
        self.directory = directory
        self.without_defect = without_defect or library
        self.only_tiny = only_tiny
        # Two cores on any machine.
        self.environment = {
            "STARPULLM_LIB": str(library),
            "HWLOC_SYNTHETIC": "numa:1 core:2 pu:1",
            "STARPU_HOME": str(directory),
            "STARPU_RAND_SEED": str(SEED),
        }
        self._pool = Pool(serve_checks, self.environment)
        self._seeds = itertools.count(SEED)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.close()

    def next_seed(self) -> int:
        """Return a seed that was not returned before."""
        return next(self._seeds)

    def alone(self, name: str, case: Case, *, check: str = "", ranks: int = 1) -> Iterator[Catch]:
        """Yield what a registered check, by default of this name, has found in processes without a runtime."""
        return self._found(name, "", Item(all_checks()[check or name], case, None, ranks).run)

    def test(
        self,
        name: str,
        test: Callable[..., None],
        placement: RuntimeConfiguration | None = None,
        environment: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> Iterator[Catch]:
        """Yield what one of the project's own tests has found, by default in a process without a runtime."""
        request = partial(test, **arguments)
        return self._found(name, "", lambda ask: ask(placement, request, environment=environment))

    def check(self, name: str, configuration: RuntimeConfiguration, check: str, case: Case) -> Iterator[Catch]:
        """Yield what a registered check has found."""
        return self._found(name, str(configuration), Item(all_checks()[check], case, configuration).run)

    def together(self, name: str, check: str, parts: Sequence[tuple[RuntimeConfiguration, Case]]) -> Iterator[Catch]:
        """Yield what a registered check finds that compares several runs, or what one of them has found."""
        return self._found(name, check, Item(all_checks()[check], Case(), None, parts=parts).run)

    def _found(self, name: str, where: str, run: Callable[[Callable[..., Any]], Result | None]) -> Iterator[Catch]:
        """Yield what a run has found that asks children by the function that it is given."""
        try:
            result = run(self._ask)
        except UnansweredError as lost:
            yield Catch(TIME_LIMIT_CATCH if lost.has_hung else name, str(lost).splitlines()[0])
        else:
            if result is not None:
                yield from judge(name, result, where)

    def _ask(self, placement: RuntimeConfiguration | None, request: partial[Any], **options: Any) -> Any:
        start = time.monotonic()
        reply = self._pool.ask(placement, request, time_limit=TIME_LIMIT, **options)
        if isinstance(reply, Answered):
            return reply.value
        assert "LibraryNotFoundError" not in reply.text, reply.text  # nothing was tried
        # A job whose ranks have crashed may take a moment to end, and then reads as if it had hung.
        raise UnansweredError(reply.text, isinstance(reply, Hung) and time.monotonic() - start >= TIME_LIMIT)

    def job(self, ranks: int | None, *command: str) -> Any:
        """Run Python with this library: in one process if `ranks` is None, else under mpirun."""
        return run_job(Job([sys.executable, *command], TIME_LIMIT, ranks, environment=self.environment))


def judge(name: str, result: Result, where: str) -> Iterator[Catch]:
    """Yield a failure; a check that could not compare anything is an error."""
    if result.outcome is Outcome.FAILED:
        yield Catch(name, f"{where}: {result.sentence}")
    elif result.outcome is not Outcome.PASSED:
        raise AssertionError(f"{where}: {result.lines()}")


ALL = ("ordered", "tree", "redux")

Check = Callable[[Laboratory, str], Iterator[Catch]]


def parity(laboratory: Laboratory, name: str) -> Iterator[Catch]:
    """Compare with golden records: several models, partitions and numbers of sub-batches."""
    for configuration, record, sub_batches in (
        (ONE, "tiny", 1),
        (TWO, "tiny", 2),
        (TEAM, "tiny", 1),
        (TWO, "odd", 3),
        (TWO, "small", 4),
        (TEAM, "odd", 1),
    ):
        if laboratory.only_tiny and record != "tiny":
            continue
        yield from laboratory.check(
            name, configuration, "parity", Case(record, sub_batches=sub_batches, reduction="ordered")
        )
    yield from laboratory.check(
        name, TWO, "parity", Case("tiny", sub_batches=2, reduction="ordered", weight_gradient_tiles=TILES)
    )
    if not laboratory.only_tiny:
        for case in (
            Case("odd", sub_batches=3, reduction="ordered", recompute="block"),
            Case("odd", sub_batches=1, reduction="ordered", weight_gradients="reused"),
            Case("odd", sub_batches=3, reduction="ordered", arithmetic="fused"),
        ):
            yield from laboratory.check(name, TWO, "parity", case)


def registered(check: str, *reductions: str, place: RuntimeConfiguration = TWO, sub_batches: int = 2) -> Check:
    """Return a check of the package that runs on tiny, by default with two workers, once for each reduction."""

    def run(laboratory: Laboratory, name: str) -> Iterator[Catch]:
        for reduction in reductions:
            yield from laboratory.check(
                name, place, check, Case("tiny", sub_batches=sub_batches, reduction=reduction, seed=SEED)
            )

    return run


def bit_stability(laboratory: Laboratory, name: str) -> Iterator[Catch]:
    """Compare the gradients of the tree reduction on three partitions."""
    record, sub_batches = ("tiny", 2) if laboratory.only_tiny else ("odd", 3)
    case = Case(record, sub_batches=sub_batches, reduction="tree", seed=SEED)
    yield from laboratory.together(name, "bit stability", [(place, case) for place in (ONE, TWO, TEAM)])


def perturbation(laboratory: Laboratory, name: str) -> Iterator[Catch]:
    """Compare a run on one worker with runs on two, with random delays, by each scheduler; every call delays anew."""
    plain = Case("tiny", sub_batches=2, reduction="tree", seed=SEED)
    case = replace(plain, delays=laboratory.next_seed())
    places = [(RuntimeConfiguration("2x1", scheduler), case) for scheduler in PERTURBING]
    yield from laboratory.together(name, "perturbation", [(RuntimeConfiguration("1x1", "eager"), plain), *places])


def parity_over_ranks(laboratory: Laboratory, name: str) -> Iterator[Catch]:
    """Compare with golden records on two ranks."""
    for record, sub_batches in (("tiny", 1), ("small", 2)):
        if not (laboratory.only_tiny and record != "tiny"):
            yield from laboratory.check(
                name, RANKS, "parity", Case(record, sub_batches=sub_batches, reduction="ordered")
            )


def parity_of_stages(laboratory: Laboratory, name: str) -> Iterator[Catch]:
    """Compare with golden records on two ranks, each of which has a stage."""
    for case in (
        Case("tiny", sub_batches=2, reduction="ordered", stages=2),
        Case("small", sub_batches=4, reduction="ordered", stages=2, schedule="1f1b"),
        Case("small", sub_batches=4, reduction="ordered", stages=(2, 2), activation_sets=2),
        Case(
            "small", sub_batches=8, reduction="ordered", stages=(2, 2), schedule="zero-bubble", gradient_buffers="block"
        ),
    ):
        if not (laboratory.only_tiny and case.record != "tiny"):
            yield from laboratory.check(name, RANKS, "parity", case)


def parity_of_pipelines(laboratory: Laboratory, name: str) -> Iterator[Catch]:
    """Compare with golden records on four ranks, of which each two are a pipeline."""
    yield from laboratory.check(name, PIPELINES, "parity", Case("tiny", sub_batches=1, reduction="ordered", stages=2))


def messages_of_stages(laboratory: Laboratory, name: str) -> Iterator[Catch]:
    """Count what two stages send each other."""
    yield from laboratory.alone(name, Case(reduction="ordered", stages=2), check="transfers", ranks=2)


def training_over_ranks(laboratory: Laboratory, name: str) -> Iterator[Catch]:
    """Compare the losses and the trained model of two ranks with those of one process."""
    record = shipped_record("tiny")
    tokens, model = laboratory.directory / "tokens.bin", laboratory.directory / "model.bin"
    write_tokens(tokens, generate_tokens(SEED, 0, 1, 100, record.model.vocab_size)[0].reshape(-1))
    made = laboratory.job(None, "-c", GENERATE, str(model)).completed()
    assert not made.stdout
    results = []
    for ranks in (None, 2):
        saved = laboratory.directory / f"trained{ranks}.bin"
        batch = str(2 // (ranks or 1))
        options = f"--checkpoint {model} --tokens {tokens} --seq-len 8 --steps 4 --json --save {saved}".split()
        command = ["-m", "starpullm.commands", "train", *options, "--batch-size", batch, "--sub-batches", batch]
        outcome = laboratory.job(ranks, *command)
        if not isinstance(outcome, Completed):
            yield Catch(TIME_LIMIT_CATCH if isinstance(outcome, TimedOut) else name, outcome.sentence)
            return
        results.append((json.loads(outcome.reports[0].stdout)["losses"], saved.read_bytes()))
    if results[0][0] != results[1][0]:
        yield Catch(name, f"losses of one process {results[0][0]}, of two ranks {results[1][0]}")
    elif results[0][1] != results[1][1]:
        yield Catch(name, "the trained models differ")


def scenarios(laboratory: Laboratory, name: str) -> Iterator[Catch]:
    """Run the suite's sequences of calls."""
    for level, part in itertools.product(("best", "ref"), range(1, PARTS + 1)):
        yield from laboratory.alone(name, Case(what=f"{level}-{part}", seed=SEED))


def offloading(laboratory: Laboratory, name: str) -> Iterator[Catch]:
    """Train with a memory limit and a disk."""
    for plan in OFFLOAD_PLANS:
        recompute = "attention" if plan == "ahead" else "none"
        yield from laboratory.alone(
            name, Case("small", sub_batches=2, reduction="ordered", what=plan, recompute=recompute, seed=SEED)
        )


def devices(laboratory: Laboratory, name: str) -> Iterator[Catch]:
    """Train with a device, where one is found."""
    for what in PLACEMENTS if has_device() else ():
        yield from laboratory.alone(name, case_on(what, SEED))


@cache
def has_device() -> bool:
    """Whether there is an OpenCL device that StarPU can use; a CPU is one."""
    with environment(STARPU_OPENCL_ON_CPUS="1"):
        return any(machine.devices())


def projects_tests(laboratory: Laboratory, name: str) -> Iterator[Catch]:
    """Let allocations of kernels fail, and count what each of two ranks has."""
    yield from laboratory.test(name, scarce_kernels, environment=allocations.preloading())
    for reduction in ALL:
        yield from laboratory.test(name, shares_of_ranks, RANKS, reduction=reduction)


def kernel_bits(laboratory: Laboratory, name: str) -> Iterator[Catch]:
    """Compare the kernels of all SIMD levels."""
    for kernel in CASES:
        yield from laboratory.check(name, ONE, "kernel bits", Case(what=kernel, seed=SEED))


ROUNDS = 16
"""Turns of each build: enough to see a slowdown of 20 %."""

BUDGET = 0.05
"""A smaller slowdown is allowed."""


def speed(laboratory: Laboratory, name: str) -> Iterator[Catch]:
    """Compare with the speed of the library without the defect."""
    record = shipped_record("small")
    model = laboratory.directory / "speed.bin"
    generate_checkpoint(model, record.model, record.seed)
    new = Variant("library", environment=laboratory.environment)
    baseline = Variant("without the defect", library=laboratory.without_defect, environment=laboratory.environment)
    workload = Workload(
        model=record.name,
        batch_size=record.batch_size,
        seq_len=record.seq_len,
        partition="1x1",
    )
    with interleaved_rounds(workload, model, with_control(new, baseline)) as rounds:
        for _ in range(ROUNDS):
            rounds.run_round()
        results = rounds.decide(rounds.finish(), BUDGET), rounds.compare_costs()
    for result in results:  # "inconclusive", on a busy machine, is no alarm
        if result.outcome is Outcome.FAILED:
            yield Catch(name, result.sentence)


GENERATE = """
import sys
from pathlib import Path
from starpullm.data.generator import generate_checkpoint
from starpullm.golden.records import shipped_record
record = shipped_record("tiny")
generate_checkpoint(Path(sys.argv[1]), record.model, record.seed)
"""

CHECKS: dict[str, Check] = {
    "parity": parity,
    "observed order": registered("observed order", *ALL),
    "reuse": registered("handle reuse", "ordered"),
    "accesses": registered("accesses", "ordered", "tree", place=ONE),
    "runtime graph": registered("runtime graph", "ordered", "tree"),
    "priorities": registered("priorities", "ordered", place=ONE),
    "poison": registered("poison", "ordered"),
    "gradient error": registered("gradient bounds", *ALL),
    "loss falls": registered("loss falls", "ordered"),
    "underflow": registered("denormal gradients", "ordered"),
    "bit stability": bit_stability,
    "perturbation": perturbation,
    "parity over ranks": parity_over_ranks,
    "parity of stages": parity_of_stages,
    "parity of pipelines": parity_of_pipelines,
    "messages of stages": messages_of_stages,
    "gradient error over ranks": registered("gradient bounds", *ALL, place=RANKS, sub_batches=1),
    "training over ranks": training_over_ranks,
    "scenarios": scenarios,
    "offloading": offloading,
    "devices": devices,
    "memory growth": registered("growth over steps", "ordered"),
    "memory growth, trainers": registered("growth over trainers", "ordered"),
    "kernel bits": kernel_bits,
    PROJECTS_TESTS: projects_tests,
    "throughput": speed,
}
"""By name, the cheapest first."""

REPEATED = tuple(CHECKS)[: tuple(CHECKS).index("parity over ranks")]
"""The checks that take well below a second once their processes have started."""


class Hunt(NamedTuple):
    """What the checks found of one defect: first, after how many seconds, and the one that must catch it.

    ``by_expected`` says whether that is its own finding: a check that did not end caught nothing.
    """

    first: Catch | None
    seconds: float
    expected: Catch | None
    by_expected: bool


def hunt(laboratory: Laboratory, expected: str) -> Hunt:
    """Run the checks until one catches the defect, and then the expected one, if that was another."""
    start = time.monotonic()
    first = next((caught for name, check in CHECKS.items() for caught in check(laboratory, name)), None)
    seconds = time.monotonic() - start
    caught = first
    if first is not None and first.check != expected and expected in CHECKS:
        caught = next(CHECKS[expected](laboratory, expected), None)
    return Hunt(first, seconds, caught, caught is not None and caught.check == expected)


OF_PACKAGE = (
    "../unit/test_loader.py",
    "../unit/test_conversion.py",
    "test_saving.py::test_a_run_that_was_ended_goes_on",
    "test_saving.py::test_a_resumed_run_continues_its_schedule",
    "../ranks/test_training.py::test_three_ranks_resume_what_three_ranks_saved",
)


def hunt_in_package(patch: Patch, builder: Builder, directory: Path) -> Hunt:
    """Run the project's tests with a copy of the package that has the defect."""
    workplace = Workplace(directory, builder)
    patch.apply(workplace.package)
    outcome = workplace.try_mutant(Stage(PROJECTS_TESTS, files=OF_PACKAGE), builder.library)
    found = Catch(PROJECTS_TESTS, f"{outcome.test}: {outcome.finding}") if outcome.test else None
    return Hunt(found, outcome.seconds, found, found is not None and patch.caught_by == PROJECTS_TESTS)
