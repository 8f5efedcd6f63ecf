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
_SHRINKING_LIMIT = 4.0  # the same while one is shrunk, when many hang
_SHRINKING_SECONDS = 120.0
_TRIES = 20  # to see how often a program fails
_MOST_REPEATS = 30


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
    """The programs of a seed, and the smallest one that fails."""

    def __init__(self, interpreter: Interpreter, seed: int, deadline: float, *, shrink: bool) -> None:
        self.ran = 0
        self.found: FailedProgram | None = None
        self._interpreter = interpreter
        self._seed = seed
        self._deadline = deadline
        self._shrink = shrink
        self._repeats = 1

    def fails(self, program: Program) -> bool:
        """Run a program; to shrink one, so often that it would probably fail again if it could."""
        if time.monotonic() > self._deadline:
            return False
        if found := self.found:
            failure = next(filter(None, (self._again(program) for _ in range(self._repeats))), None)
            if failure is not None and program.size < found.program.size:
                details = failure.details or found.failure.details
                found.program, found.failure = program, replace(failure, details=details)
            return failure is not None
        self.ran += 1
        failure = self._interpreter.run(program.text, _TIME_LIMIT)
        if failure is None:
            return False
        configuration = self._interpreter.configuration
        self.found = FailedProgram(self._seed, configuration, program, failure, time.monotonic())
        if self._shrink:
            self._judge(self.found)
        self._deadline = time.monotonic() + _SHRINKING_SECONDS * self._shrink
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
    directory: Path, seed: int, chosen: str, deadline: float, count: int, *, shrink: bool = True
) -> tuple[FailedProgram | None, int]:
    """Run the programs of a seed in its configuration; return a failure, and how many programs were run."""
    configuration = Configuration.drawn(seed, chosen)
    with Interpreter(directory, configuration) as interpreter:
        search = _Search(interpreter, seed, deadline, shrink=shrink)

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
        except (_FailedError, HypothesisException, ExceptionGroup):  # also Flaky: threads may not fail again
            if search.found is None:
                raise
    return search.found, search.ran


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
