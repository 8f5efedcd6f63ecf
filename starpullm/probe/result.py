"""The verdict on a program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from starpullm.checks.result import CheckResult, listed
from starpullm.probe.findings import Finding, Kind


@dataclass(frozen=True, kw_only=True)
class ProbeResult(CheckResult):
    """Whether a program's results depend on the schedule, and whether its tasks do what they declare.

    ``compared`` counts contents of handles after a task that were compared with those of the reference schedule;
    ``measured`` counts findings that aren't notes. ``runs`` counts runs besides the reference. ``tolerated`` contents
    differ because of accesses that StarPU may reorder (REDUX, COMMUTE, no sequential consistency); ``tolerance`` says
    what they were bounded by, if they were. ``num_ranks`` is 0 for a program that isn't started as ranks. Of ``unseen``
    accesses the contents can't be read. ``seconds`` has the time of each run by the name of its schedule.
    """

    unit: str = "contents of handles"
    command: tuple[str, ...]
    starpu_version: str
    num_ranks: int
    num_tasks: int
    num_handles: int
    runs: int
    different: int
    tolerated: int
    tolerance: str
    unseen: int
    findings: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    last_moments: tuple[str, ...]
    seconds: dict[str, float]

    def _bound(self) -> str:
        if not self.tolerance:
            return "; by how much wasn't looked at (--tolerance)"
        wrong = (Kind.BEYOND_TOLERANCE, Kind.NOT_BOUNDED)
        if any(finding.kind in wrong for finding in self.findings):
            return ""
        return f"; all of them are within {self.tolerance}"

    def detail_lines(self) -> Iterator[str]:
        """Yield the findings, then the notes, then what is known of a process that was ended."""
        yield from listed(self.findings, len(self.findings))
        yield from self.last_moments
        if self.tolerated:
            yield (
                f"tolerated: {self.tolerated} contents differ, which come from accesses whose order is free (REDUX, "
                f"COMMUTE, or without sequential consistency){self._bound()}"
            )
        if self.unseen:
            yield f"not seen: the contents of {self.unseen} accesses can't be read"
        yield from listed(self.notes, len(self.notes), "note: ")
