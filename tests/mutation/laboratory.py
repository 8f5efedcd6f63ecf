"""The project's checks in the order of their cost, and which of them is the first to catch a library with a defect.

Everything runs in child processes whose environment names the library.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from starpullm.checks import lifetimes, pruning, runs
from starpullm.checks.isolation import CheckReport, Pool, RuntimeConfiguration
from starpullm.checks.result import CheckResult, Outcome
from starpullm.checks.same_bits import MAX_DELAY_US, check_same_bits
from starpullm.checks.underflow import underflow
from starpullm.data.generator import generate_checkpoint, generate_tokens
from starpullm.files.tokens import write_tokens
from starpullm.golden.records import shipped_record
from starpullm.processes.children import Answered, Hung
from starpullm.processes.job import Completed, Job, TimedOut, run_job
from starpullm.pytest_plugin.options import PERTURBING
from starpullm.speed.contender import Contender
from starpullm.speed.turns import taking_turns, with_control
from starpullm.speed.workload import Workload

from ..native.limits.operations import operation_growth
from ..native.limits.scarcity import scarce_memory

__all__ = ["CHECKS", "REPEATED", "TIME_LIMIT_CATCH", "Catch", "Hunt", "Laboratory", "hunt"]

ONE, TWO, TEAM = (RuntimeConfiguration(partition, "lws") for partition in ("1x1", "2x1", "1x2"))

RANKS = RuntimeConfiguration("1x1", "lws", 2)

SEED = 1
TIME_LIMIT = 30.0
"""Seconds for one call; the longest, memory growth, takes 5 on a quiet machine with two cores."""

TIME_LIMIT_CATCH = "time limit"
"""What catches a defect that keeps a check from ending. No check is credited with it."""


@dataclass(frozen=True)
class Catch:
    """A check that failed, or the time limit, and one line of what was found."""

    check: str
    finding: str


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
        self._pool = Pool(self.environment)
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

    def call(
        self,
        name: str,
        configuration: RuntimeConfiguration,
        function: Callable[..., CheckResult | None],
        **arguments: Any,
    ) -> Iterator[Catch]:
        """Yield what a check in a child has found: that it failed, that the child died, or that it took too long."""
        start = time.monotonic()
        answer = self._pool.call(configuration, function, time_limit=TIME_LIMIT, **arguments)
        seconds = time.monotonic() - start
        if not isinstance(answer, Answered):
            assert "LibraryNotFoundError" not in answer.text, answer.text  # nothing was tried
            # A job whose ranks have crashed may take a moment to end, and then reads as if it had hung.
            hung = isinstance(answer, Hung) and seconds >= TIME_LIMIT
            yield Catch(TIME_LIMIT_CATCH if hung else name, answer.text.splitlines()[0])
        elif answer.value is not None:
            yield from judge(name, answer.value, str(configuration))

    def job(self, ranks: int | None, *command: str) -> Any:
        """Run Python with this library: in one process if `ranks` is None, else under mpirun."""
        return run_job(Job([sys.executable, *command], TIME_LIMIT, ranks, environment=self.environment))


def judge(name: str, report: CheckReport, where: str) -> Iterator[Catch]:
    """Yield a failure; a check that could not compare anything is an error."""
    if report.outcome is Outcome.FAILED:
        yield Catch(name, f"{where}: {report.finding}")
    elif report.outcome is not Outcome.PASSED:
        raise AssertionError(f"{where}: {report.lines}")


ALL = ("ordered", "tree", "redux")

Tensors = dict[str, NDArray[np.float32]]

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
        yield from laboratory.call(
            name, configuration, runs.parity, record=record, sub_batches=sub_batches, reduction="ordered"
        )


def each_reduction(function: Callable[..., CheckResult], reductions: tuple[str, ...], **more: object) -> Check:
    """Return a check that runs on tiny with two sub-batches and two workers, once for each reduction."""

    def check(laboratory: Laboratory, name: str) -> Iterator[Catch]:
        for reduction in reductions:
            yield from laboratory.call(
                name, TWO, function, record="tiny", sub_batches=2, reduction=reduction, seed=SEED, **more
            )

    return check


def tree_order(laboratory: Laboratory, name: str) -> Iterator[Catch]:
    """Read the order of additions off a trace; with four sub-batches it is another one than that of a chain."""
    record, sub_batches = ("tiny", 2) if laboratory.only_tiny else ("small", 4)
    yield from laboratory.call(
        name, ONE, runs.tree, record=record, sub_batches=sub_batches, reduction="tree", seed=SEED
    )


def accesses(laboratory: Laboratory, name: str) -> Iterator[Catch]:
    """Compare declared with actual accesses; on one worker, as memory is closed for the whole process."""
    for reduction in ("ordered", "tree"):
        yield from laboratory.call(
            name, ONE, runs.accesses, record="tiny", sub_batches=2, reduction=reduction, seed=SEED
        )


def bit_stability(laboratory: Laboratory, name: str) -> Iterator[Catch]:
    """Compare the gradients of the tree reduction on three partitions."""
    record, sub_batches = ("tiny", 2) if laboratory.only_tiny else ("odd", 3)
    tensors = {}
    for configuration in (ONE, TWO, TEAM):
        written = yield from written_tensors(
            laboratory, name, configuration, runs.write_gradients, record=record, sub_batches=sub_batches
        )
        if written is None:
            return
        tensors[str(configuration)] = written
    yield from judge(name, CheckReport.of(check_same_bits(name, tensors)), f"{record}, tree")


def perturbation(laboratory: Laboratory, name: str) -> Iterator[Catch]:
    """Compare a run on one worker with runs on two, with random delays, by each scheduler; every call delays anew."""
    delay_seed = laboratory.next_seed()
    plain = None
    for configuration, max_delay_us in [
        (RuntimeConfiguration("1x1", "eager"), 0),
        *((RuntimeConfiguration("2x1", scheduler), MAX_DELAY_US) for scheduler in PERTURBING),
    ]:
        found = yield from written_tensors(
            laboratory,
            name,
            configuration,
            runs.write_perturbed,
            record="tiny",
            sub_batches=2,
            max_delay_us=max_delay_us,
            delay_seed=delay_seed,
        )
        if found is None:
            return
        if plain is None:
            plain = found
            continue
        perturbed = f"{configuration}, delays of up to {max_delay_us} µs by seed {delay_seed}"
        result = check_same_bits(name, {"the plain run": plain, perturbed: found})
        yield from judge(name, CheckReport.of(result), "tiny, tree")


def written_tensors(
    laboratory: Laboratory,
    name: str,
    configuration: RuntimeConfiguration,
    function: Callable[..., CheckResult | None],
    **arguments: Any,
) -> Generator[Catch, None, Tensors | None]:
    """Return the tensors that a run with the tree reduction writes to a file; None if the run itself is caught."""
    path = laboratory.directory / "tensors.npz"
    caught = list(
        laboratory.call(name, configuration, function, reduction="tree", seed=SEED, path=str(path), **arguments)
    )
    if caught:
        yield from caught
        return None
    with np.load(path) as arrays:
        return dict(arrays)


def parity_over_ranks(laboratory: Laboratory, name: str) -> Iterator[Catch]:
    """Compare with golden records on two ranks."""
    for record, sub_batches in (("tiny", 1), ("small", 2)):
        if not (laboratory.only_tiny and record != "tiny"):
            yield from laboratory.call(
                name, RANKS, runs.parity, record=record, sub_batches=sub_batches, reduction="ordered"
            )


def gradients_over_ranks(laboratory: Laboratory, name: str) -> Iterator[Catch]:
    """Compare gradients on two ranks with their error bounds, for each reduction."""
    for reduction in ALL:
        yield from laboratory.call(
            name, RANKS, runs.gradients, record="tiny", sub_batches=1, reduction=reduction, seed=SEED
        )


def share_of_ranks(laboratory: Laboratory, name: str) -> Iterator[Catch]:
    """Compare what each of two ranks registers and submits with what it must, for each reduction."""
    for reduction in ALL:
        yield from laboratory.call(
            name, RANKS, pruning.share_of_ranks, record="tiny", sub_batches=1, reduction=reduction, seed=SEED
        )


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


ROUNDS = 16
"""Turns of each build: enough to see a slowdown of 20 %."""

BUDGET = 0.05
"""A smaller slowdown is allowed."""


def speed(laboratory: Laboratory, name: str) -> Iterator[Catch]:
    """Compare with the speed of the library without the defect."""
    record = shipped_record("small")
    model = laboratory.directory / "speed.bin"
    generate_checkpoint(model, record.model, record.seed)
    new = Contender("library", environment=laboratory.environment)
    baseline = Contender("without the defect", library=laboratory.without_defect, environment=laboratory.environment)
    workload = Workload(
        model=record.name,
        batch_size=record.batch_size,
        seq_len=record.seq_len,
        partition="1x1",
    )
    with taking_turns(workload, model, with_control(new, baseline)) as turns:
        for _ in range(ROUNDS):
            turns.run_round()
        results = turns.decide(turns.finish(), BUDGET), turns.compare_costs()
    for result in results:  # "inconclusive", on a busy machine, is no alarm
        if result.outcome is Outcome.FAILED:
            yield Catch(name, result.finding)


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
    "observed order": each_reduction(runs.observed_order, ALL),
    "reuse": each_reduction(runs.reuse, ("ordered",)),
    "accesses": accesses,
    "runtime graph": each_reduction(runs.runtime_graph, ("ordered", "tree")),
    "poison": each_reduction(runs.poison, ("ordered",)),
    "gradient error": each_reduction(runs.gradients, ALL),
    "order of the tree": tree_order,
    "underflow": each_reduction(underflow, ("ordered",)),
    "bit stability": bit_stability,
    "shared buffers": each_reduction(lifetimes.shared_buffers, ("ordered", "tree")),
    "resumed run": each_reduction(lifetimes.resumed, ("ordered",)),
    "perturbation": perturbation,
    "parity over ranks": parity_over_ranks,
    "gradient error over ranks": gradients_over_ranks,
    "training over ranks": training_over_ranks,
    "share of ranks": share_of_ranks,
    "memory growth": each_reduction(lifetimes.step_growth, ("ordered",), counts_allocations=True),
    "memory growth, trainers": each_reduction(lifetimes.trainer_growth, ("ordered",), counts_allocations=True),
    "memory growth, operations": each_reduction(operation_growth, ("ordered",), counts_allocations=True),
    "scarce memory": each_reduction(scarce_memory, ("ordered",), counts_allocations=True),
    "throughput": speed,
}
"""By name, the cheapest first."""

REPEATED = tuple(CHECKS)[: tuple(CHECKS).index("parity over ranks")]
"""The checks that take well below a second once their processes have started."""


@dataclass(frozen=True)
class Hunt:
    """What the checks found of one defect.

    Parameters
    ----------
    first
        What was found first, by whichever check or by the time limit; None: nothing.
    seconds
        Until then.
    expected
        What the check found that must catch the defect; None: nothing.
    by_expected
        Whether it is that check's own finding: if it did not end, it caught nothing.
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
