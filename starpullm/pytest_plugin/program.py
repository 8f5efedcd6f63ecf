"""The fixture that probes a StarPU program in a test: ``starpullm_program("./heat", "-n", "8").probe(runs=5)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from starpullm.probe import ProbeResult


class Program:
    """A StarPU program with its arguments, which a test probes."""

    def __init__(self, *command: str) -> None:
        self.command = tuple(map(str, command))

    def probe(
        self,
        *,
        runs: int = 5,
        seed: int = 1,
        workers: int = 4,
        time_limit: float | None = None,
        tolerance: str | None = None,
        tolerance_type: str | None = None,
        same: bool = True,
    ) -> ProbeResult:
        """Probe the program, and fail the test unless its results are the same in all schedules.

        The arguments are those of `starpullm.probe.probe_program`. With ``same=False`` the result is returned whatever
        it is. A program that can't be judged raises an `InvalidArgumentError`.
        """
        from starpullm.checks.result import Outcome
        from starpullm.probe import probe_program

        result = probe_program(
            self.command,
            runs=runs,
            seed=seed,
            workers=workers,
            time_limit=time_limit,
            tolerance=tolerance,
            tolerance_type=tolerance_type,
        )
        if same and result.outcome is not Outcome.PASSED:
            pytest.fail("\n".join(result.lines()), pytrace=False)
        return result


@pytest.fixture(scope="session")
def starpullm_program() -> Callable[..., Program]:
    """Give a function from a StarPU program and its arguments to a `Program`, which can be probed."""
    return Program
