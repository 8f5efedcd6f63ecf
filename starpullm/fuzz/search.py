"""Runs programs that Hypothesis draws until one fails, and shrinks that one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException

from starpullm.fuzz.configuration import Configuration
from starpullm.fuzz.draw import HANDLE, RECORD, Program, build
from starpullm.fuzz.interpreter import Failure, Interpreter, built_interpreter, c_program

_PROGRAMS_OF_A_SEED = 40
_OPERATIONS, _BLOCK = 256, 8
_TIME_LIMIT = 15.0  # of a program, in seconds; most take some milliseconds
_SHRINKING_LIMIT = 4.0  # the same while one is shrunk, when many hang
_SHRINKING_SECONDS = 120.0
_TRIES, _MOST_REPEATS = 20, 30  # to see how often a program fails, and to see it fail


@dataclass
class FailedProgram:
    """A program that failed, and how; smaller ones take its place while it is shrunk."""

    seed: int
    configuration: Configuration
    program: Program
    failure: Failure
    failed_at: float
    """By the monotonic clock."""
    tried: int = 0
    failed: int = 0
    """How often the program was run again, and failed again, before it was shrunk."""

    def as_json(self, path: Path) -> dict[str, object]:
        """Return what programs want to know; the path is that of the C program."""
        what, details = self.failure.sentence, self.failure.details
        place = {"seed": self.seed, "configuration": str(self.configuration), "program": str(path)}
        return {**place, "what": what, "details": details, "tasks": self.program.tasks}

    def c_program(self) -> str:
        """Return the program as C without any library but StarPU, and MPI for several ranks."""
        ranks, variables = self.configuration.ranks, self.configuration.environment(Path())
        shown = " ".join(f'{name}="{value}"' for name, value in variables.items() if name != "STARPU_HOME")
        lines = (
            self.failure.sentence,
            f"Found by starpullm fuzz --seed {self.seed} in {self.configuration};",
            f"failed in {self.failed} of {self.tried} more runs before it was shrunk.",
            f"Environment: {shown}",
            *[f"Compile it with mpicc, and run it with mpirun -n {ranks}."] * (ranks > 1),
        )
        return c_program(self.program.text, "\n * ".join(lines), ranks)


@st.composite
def _block(draw: st.DrawFn) -> list[bytes]:
    """Draw some records; Hypothesis makes all of them zeros at once if it can."""
    return [draw(st.binary(min_size=RECORD, max_size=RECORD)) for _ in range(_BLOCK)]


@st.composite
def _programs(draw: st.DrawFn, configuration: Configuration, operations: int) -> Program:
    """Draw a program of at most so many operations, to which those are added that make it legal and compare its end."""
    handles = [draw(st.binary(min_size=HANDLE, max_size=HANDLE)) for _ in range(draw(st.integers(1, 6)))]
    blocks = [draw(_block()) for _ in range(draw(st.integers(1, operations // _BLOCK)))]
    return build(handles, [record for block in blocks for record in block], configuration.unit, configuration.ranks)


class _FailedError(Exception):
    """A program has failed, for Hypothesis to shrink it."""


class _Search:
    """The programs of a seed, and the smallest one that fails."""

    def __init__(self, interpreter: Interpreter, seed: int, deadline: float) -> None:
        self.ran = 0
        self.found: FailedProgram | None = None
        self._interpreter = interpreter
        self._seed = seed
        self._deadline = deadline
        self._repeats = 1

    def fails(self, program: Program) -> bool:
        """Run a program; to shrink one, so often that it would probably fail again if it could."""
        if time.monotonic() > self._deadline:
            return False
        if found := self.found:
            failure = next(filter(None, (self._again(program) for _ in range(self._repeats))), None)
            if failure is not None and program < found.program:
                details = failure.details or found.failure.details
                found.program, found.failure = program, replace(failure, details=details)
            return failure is not None
        self.ran += 1
        failure = self._interpreter.run(program.text, _TIME_LIMIT)
        if failure is None:
            return False
        configuration = self._interpreter.configuration
        self.found = FailedProgram(self._seed, configuration, program, failure, time.monotonic())
        self._judge(self.found)
        self._deadline = time.monotonic() + _SHRINKING_SECONDS
        return True

    def _again(self, program: Program) -> Failure | None:
        return self._interpreter.run(program.text, _SHRINKING_LIMIT, stacks=False)

    def _judge(self, found: FailedProgram) -> None:
        """See how often a program fails; one that hangs takes long, and is run less often."""
        found.tried = 3 if found.failure.is_hang else _TRIES
        found.failed = sum(self._again(found.program) is not None for _ in range(found.tried))
        if found.failed < found.tried:
            self._repeats = min(_MOST_REPEATS, 3 * found.tried // max(found.failed, 1))


def search_seed(
    directory: Path, seed: int, chosen: str, deadline: float, count: int
) -> tuple[FailedProgram | None, int]:
    """Run the programs of a seed in its configuration; return a failure, and how many programs were run."""
    configuration = Configuration.drawn(seed, chosen)
    with Interpreter(directory, configuration) as interpreter:
        search = _Search(interpreter, seed, deadline)

        @hypothesis_seed(seed)
        @settings(
            max_examples=count,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            print_blob=False,
        )
        @given(_programs(configuration, _OPERATIONS))
        def run(program: Program) -> None:
            if search.fails(program):
                raise _FailedError  # in one place: Hypothesis takes failures in different ones for different failures

        try:
            run()
        except (_FailedError, HypothesisException, ExceptionGroup):  # also Flaky: threads may not fail again
            if search.found is None:
                raise
    return search.found, search.ran


def search(
    seed: int, seconds: float, chosen: str, progress: Callable[[int, Configuration, int], None]
) -> tuple[FailedProgram | None, int]:
    """Run programs of this seed and the ones after it until one fails or the time is over."""
    deadline = time.monotonic() + seconds
    total = 0
    with built_interpreter(Configuration.drawn(seed, chosen).ranks) as directory:
        while time.monotonic() < deadline:
            progress(seed, Configuration.drawn(seed, chosen), total)
            finding, ran = search_seed(directory, seed, chosen, deadline, _PROGRAMS_OF_A_SEED)
            total += ran
            if finding is not None:
                return finding, total
            seed += 1
    return None, total
