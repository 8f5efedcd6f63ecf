"""Runs random programs until one fails, and shrinks that one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from starpullm.fuzz.configuration import Configuration
from starpullm.fuzz.draw import Program, build, random_records
from starpullm.fuzz.interpreter import Failure, Interpreter, built_interpreter, c_program

_PROGRAMS_OF_A_SEED = 40
_OPERATIONS = 64, 256
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


class _Shrinking:
    """Makes a program that failed smaller for as long as it fails."""

    def __init__(self, interpreter: Interpreter, found: FailedProgram, records: list[bytes]) -> None:
        self._interpreter = interpreter
        self._found = found
        self._records = records
        found.tried = 3 if found.failure.is_hang else _TRIES  # a hang takes long
        found.failed = sum(self._run(found.program) is not None for _ in range(found.tried))
        certain = found.failed == found.tried
        self._repeats = 1 if certain else min(_MOST_REPEATS, 3 * found.tried // max(found.failed, 1))
        self._deadline = time.monotonic() + _SHRINKING_SECONDS

    def shrink(self) -> None:
        """Do what can be done until nothing changes any more, or the time is over."""
        before: list[bytes] = []
        while before != self._records:
            before = self._records
            self._leave_out()
            self._set_to_zero()

    def _leave_out(self) -> None:
        """Leave records out, many at once first."""
        size = len(self._records)
        while size:
            for start in reversed(range(0, len(self._records), size)):
                self._try(self._records[:start] + self._records[start + size :])
            size //= 2

    def _set_to_zero(self) -> None:
        """Set bytes to zero, which is the simplest of everything."""
        for i in range(len(self._records)):
            for j, byte in enumerate(self._records[i]):
                if byte:
                    record = self._records[i]
                    simpler = record[:j] + b"\0" + record[j + 1 :]
                    self._try([*self._records[:i], simpler, *self._records[i + 1 :]])

    def _try(self, records: list[bytes]) -> None:
        """Go on with these records if their program is the same, or smaller and fails."""
        if time.monotonic() > self._deadline:
            return
        found = self._found
        program = build(records, self._interpreter.configuration)
        if program > found.program:
            return
        if program < found.program:
            # So often that it would probably fail if it could.
            failure = next(filter(None, (self._run(program) for _ in range(self._repeats))), None)
            if failure is None:
                return
            found.program, found.failure = program, replace(failure, details=failure.details or found.failure.details)
        self._records = records

    def _run(self, program: Program) -> Failure | None:
        return self._interpreter.run(program.text, _SHRINKING_LIMIT, stacks=False)


def search_seed(
    directory: Path, seed: int, chosen: str, deadline: float, count: int
) -> tuple[FailedProgram | None, int]:
    """Run programs of a seed in its configuration; return the first failure, and how many programs were run."""
    configuration, random = Configuration.drawn(seed, chosen), Random(seed)
    with Interpreter(directory, configuration) as interpreter:
        for number in range(count):
            if time.monotonic() > deadline:
                return None, number
            records = random_records(random, random.randint(*_OPERATIONS))
            program = build(records, configuration)
            if failure := interpreter.run(program.text, _TIME_LIMIT):
                found = FailedProgram(seed, configuration, program, failure, time.monotonic())
                _Shrinking(interpreter, found, records).shrink()
                return found, number + 1
    return None, count


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
