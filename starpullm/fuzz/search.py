"""Runs programs that Hypothesis draws until one fails, and shrinks that one."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis.errors import HypothesisException

from starpullm.fuzz.c_program import c_program
from starpullm.fuzz.configuration import Configuration
from starpullm.fuzz.draw import Program, programs
from starpullm.fuzz.interpreter import Failure, Interpreter, build_interpreter

PROGRAMS_OF_A_SEED = 100
_OPERATIONS = 256
_TIME_LIMIT = 15.0  # of a program, in seconds; most take some milliseconds
_LEAST_LIMIT = 2.0  # the same while a program is shrunk, when many hang
_TIMES_SLOWEST = 8
_SHRINKING_SECONDS = 120.0
_TRIES = 20  # to see how often a program fails
_MOST_REPEATS = 30


@dataclass(frozen=True)
class FailedProgram:
    """A program that failed, and how."""

    seed: int
    configuration: Configuration
    program: Program
    failure: Failure
    tried: int
    failed: int
    """How often the program was run again, and failed again, before it was shrunk."""
    shrinking_seconds: float

    def c_program(self) -> str:
        """Return the program as C without any library but StarPU."""
        variables = self.configuration.environment(Path())
        shown = " ".join(f'{name}="{value}"' for name, value in variables.items() if name != "STARPU_HOME")
        lines = (
            self.failure.sentence,
            f"Found by starpullm fuzz --seed {self.seed} in {self.configuration};",
            f"failed in {self.failed} of {self.tried} more runs before it was shrunk.",
            f"Environment: {shown}",
        )
        return c_program(self.program.text, "\n * ".join(lines))


class _FailedError(Exception):
    """A program has failed, for Hypothesis to shrink it."""


class _Search:
    """The programs of a seed: the first one that fails, and the smallest."""

    def __init__(self, interpreter: Interpreter, deadline: float, *, shrink: bool) -> None:
        self.ran = 0
        self.smallest: tuple[Program, Failure] | None = None
        self.tried, self.failed = 0, 0
        self.failed_at = 0.0
        self._interpreter = interpreter
        self._deadline = deadline
        self._shrink = shrink
        self._repeats = 1
        self._slowest = 0.0

    def fails(self, program: Program) -> bool:
        """Run a program; to shrink one, so often that it would probably fail again if it could."""
        if time.monotonic() > self._deadline:
            return False
        if self.smallest is not None:
            failure = next(filter(None, (self._again(program) for _ in range(self._repeats))), None)
            if failure is not None:
                self._keep(program, failure)
            return failure is not None
        self.ran += 1
        start = time.monotonic()
        failure = self._interpreter.run(program.text, _TIME_LIMIT)
        if failure is None:
            self._slowest = max(self._slowest, time.monotonic() - start)
            return False
        self.failed_at = time.monotonic()
        self.smallest = program, failure
        if self._shrink:
            self._judge(program, failure)
        self._deadline = time.monotonic() + _SHRINKING_SECONDS * self._shrink
        return True

    def _again(self, program: Program) -> Failure | None:
        limit = min(max(_LEAST_LIMIT, _TIMES_SLOWEST * self._slowest), _TIME_LIMIT)
        return self._interpreter.run(program.text, limit, stacks=False)

    def _judge(self, program: Program, failure: Failure) -> None:
        """See how often a program fails; one that hangs takes long, and is run less often."""
        self.tried = _TRIES if not failure.is_hang else 3
        self.failed = sum(self._again(program) is not None for _ in range(self.tried))
        self._repeats = min(_MOST_REPEATS, 3 * self.tried // self.failed) if self.failed else _MOST_REPEATS
        if self.failed == self.tried:
            self._repeats = 1

    def _keep(self, program: Program, failure: Failure) -> None:
        assert self.smallest is not None
        best, first = self.smallest
        if (program.tasks, len(program.text)) < (best.tasks, len(best.text)):
            self.smallest = program, replace(failure, details=failure.details or first.details)


def search_seed(
    directory: Path, seed: int, chosen: str, deadline: float, count: int, *, shrink: bool = True
) -> tuple[FailedProgram | None, int]:
    """Run the programs of a seed in its configuration; return a failure, and how many programs were run."""
    configuration = Configuration.drawn(seed, chosen)
    with Interpreter(directory, configuration) as interpreter:
        search = _Search(interpreter, deadline, shrink=shrink)

        @hypothesis_seed(seed)
        @settings(
            max_examples=count,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            print_blob=False,
        )
        @given(programs(configuration.unit, _OPERATIONS))
        def run(program: Program) -> None:
            if search.fails(program):
                raise _FailedError  # in one place: Hypothesis takes failures in different ones for different failures

        try:
            run()
        except (_FailedError, HypothesisException):  # such as Flaky: a failure of threads may not come again
            if search.smallest is None:
                raise
        except ExceptionGroup as group:
            if search.smallest is None or group.split((_FailedError, HypothesisException))[1]:
                raise
    if search.smallest is None:
        return None, search.ran
    program, failure = search.smallest
    shrinking = time.monotonic() - search.failed_at
    return FailedProgram(seed, configuration, program, failure, search.tried, search.failed, shrinking), search.ran


@contextmanager
def built_interpreter() -> Iterator[Path]:
    """Provide a directory with the interpreter, compiled against the StarPU that is found."""
    with tempfile.TemporaryDirectory(prefix="starpullm-fuzz-") as name:
        directory = Path(name)
        build_interpreter(directory)
        yield directory


def search(
    seed: int,
    seconds: float,
    chosen: str,
    progress: Callable[[int, Configuration, int], None],
    count: int = PROGRAMS_OF_A_SEED,
    *,
    shrink: bool = True,
) -> tuple[FailedProgram | None, int]:
    """Run programs of this seed and the ones after it until one fails or the time is over."""
    deadline = time.monotonic() + seconds
    total = 0
    with built_interpreter() as directory:
        while time.monotonic() < deadline:
            progress(seed, Configuration.drawn(seed, chosen), total)
            finding, ran = search_seed(directory, seed, chosen, deadline, count, shrink=shrink)
            total += ran
            if finding is not None:
                return finding, total
            seed += 1
    return None, total
