"""The verdict on a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from starpullm.checks.result import Result
from starpullm.probe.findings import Fault, ProgramFinding
from starpullm.probe.probe_schedules import REPEATED
from starpullm.probe.program_tasks import counted
from starpullm.probe.undeclared import Watched


@dataclass(frozen=True, kw_only=True)
class ProbeResult(Result):
    """Whether a program's results depend on the schedule, and whether its tasks do what they declare.

    ``compared`` counts contents of handles that were compared with those of the reference schedule: after tasks, and of
    handles that the application unregisters after accesses whose order is free. ``measured`` counts findings that
    aren't notes. ``runs`` counts runs besides the reference. ``tolerated`` contents differ because of accesses that
    StarPU may reorder (REDUX, COMMUTE, no sequential consistency); ``tolerance`` says what they were bounded by, if
    they were. ``intended`` are findings that a file gives reasons for, ``not_found`` its entries without a finding.
    ``num_ranks`` is 0 for a program that isn't started as ranks. ``num_workers`` are those of the rank with the fewest.
    ``surroundings`` are sentences about StarPU, and about input and files of runs. ``unseen`` says what couldn't be
    seen. ``watched`` says where undeclared accesses were looked for. ``seconds`` has the time of each run by the name
    of its schedule.
    """

    check: str = "probe"
    unit: str = "contents of handles"
    command: tuple[str, ...]
    starpu_version: str
    num_ranks: int
    num_workers: int
    surroundings: tuple[str, ...]
    num_tasks: int
    num_compared_handles: int
    runs: int
    different: int
    tolerated: int
    tolerated_contents: str
    tolerance: str
    unseen: tuple[str, ...]
    watched: Watched
    findings: tuple[ProgramFinding, ...]
    notes: tuple[ProgramFinding, ...]
    intended: tuple[str, ...]
    not_found: tuple[str, ...]
    last_moments: tuple[str, ...]
    seconds: dict[str, float]

    @property
    def is_only_untrue(self) -> bool:
        """Whether declarations are untrue, and no run has shown another result."""
        return bool(self.findings) and all(finding.is_only_untrue for finding in self.findings)

    def lines(self) -> list[str]:
        """Return the verdict, what was run, then the findings."""
        return [f"{self.check}: {self.sentence}", *(f"  {line}" for line in self.details())]

    def _run_line(self) -> str:
        ranks = f" of {self.num_ranks} ranks" if self.num_ranks else ""
        compared = "nothing was compared"
        if self.num_compared_handles:
            handles = counted(self.num_compared_handles, "handle")
            compared = f"{counted(self.compared, 'content')} of {handles} compared, {self.different} different"
        others = counted(self.runs, "other run")
        workers = counted(self.num_workers, "worker") + " each" * (self.num_ranks > 1)
        tasks = counted(self.num_tasks, "task")
        return f"run: {tasks}{ranks} on {workers}, the reference schedule and {others}, {compared}"

    def details(self) -> Iterator[str]:
        """Yield what was run, findings about results, then about declarations, notes, and an ended process's state."""
        yield self._run_line()
        yield from self.surroundings
        yield str(self.watched)
        for finding in self.findings:
            yield from finding.lines()
        yield from self.last_moments
        wrong = (Fault.BEYOND_TOLERANCE, Fault.NOT_BOUNDED)
        if self.tolerated and self.tolerance and not any(finding.kind in wrong for finding in self.findings):
            yield f"tolerated: {self.tolerated_contents} differ by at most {self.tolerance}"
        yield from (f"not seen: {line}" for line in self.unseen)
        yield from (f"intended: {line}" for line in self.intended)
        yield from (f"intended, but not found: {line}" for line in self.not_found)
        for note in self.notes:
            first, *evidence = note.lines()
            yield f"note: {first}"
            yield from evidence


def verdict(
    findings: Sequence[ProgramFinding], intended: Sequence[str] = (), unseen: Sequence[str] = (), bound: str = ""
) -> str:
    """Return one sentence: a word, and what it means for this program."""
    if not findings:
        known = ", but for what is intended" if intended else ""
        word = "same in what was seen" if unseen else "same"
        result = f"no schedule gave another result{bound}"
        return f"{word}: {result}, and no task was seen to do anything else than it declares{known}"
    ending = next((finding for finding in findings if finding.kind is Fault.ENDING), None)
    if ending is not None:
        return f"failed: {ending.sentence} [{ending.schedule}]"
    others = [finding for finding in findings if not finding.kind.forbids_comparison]
    if not others:
        return f"not comparable: {_why_not(findings)}"
    if all(finding.is_only_untrue for finding in others):
        untrue = counted(len({finding.codelet for finding in others}), "codelet")
        rest = "no schedule gave another result" if len(others) == len(findings) else _why_not(findings)
        return f"differs: tasks of {untrue} do something else than they declare; {rest}"
    return f"differs: results depend on the schedule ({counted(len(findings), 'finding')})"


def _why_not(findings: Sequence[ProgramFinding]) -> str:
    """Return why schedules can't be compared."""
    kinds = {finding.kind for finding in findings if finding.kind.forbids_comparison}
    if kinds & {Fault.NOT_DETERMINISTIC, Fault.CHANGING_INPUT}:
        return "results change from run to run in one and the same schedule"
    if kinds == {Fault.NOT_BOUNDED}:
        return "contents that a free order has changed can't be bounded"
    is_same = any(one.kind is Fault.OTHER_TASKS and one.schedule == REPEATED.name for one in findings)
    where = "from run to run in one and the same schedule" if is_same else "in another schedule"
    return f"the program submits other tasks {where}"
