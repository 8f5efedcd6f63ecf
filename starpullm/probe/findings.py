"""What the probe can find in a program, as sentences with the tasks and the handle that they are about."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from starpullm.probe.program_tasks import TaskFlow

_MAX_SUSPECTS = 5


class Fault(Enum):
    """What is wrong; the value is the word of reports and of ``--json``."""

    OUTPUT_DIFFERS = "output differs"
    INPUT_CHANGED = "input changed"
    CHANGED_BETWEEN = "changed without a declared writer"
    UNDECLARED_READ = "undeclared read"
    UNDECLARED_WRITE = "undeclared write"
    READ_WRITTEN = "declared read, but written"
    WRITTEN_READ = "declared written, but read"
    SCRATCH_READ = "scratch memory read, but not written"
    NOT_WRITTEN = "declared written, but nothing was"
    PARTLY_WRITTEN = "declared written, but not all of it was"
    NOT_DETERMINISTIC = "not deterministic"
    CHANGING_INPUT = "input changes from run to run"
    INPUT_FROM_OUTSIDE = "input from outside"
    OTHER_TASKS = "other tasks"
    ORDER = "order"
    ENDING = "ending"
    POISONED_ENDING = "ending with poison"
    BEYOND_TOLERANCE = "beyond the tolerance"
    NOT_BOUNDED = "not bounded"
    LEFT_UNWRITTEN = "declared written, left as it was, and not used"
    NEVER_CHANGED = "declared updated, never changed"
    NOT_CHECKED = "not checked"

    @property
    def is_note(self) -> bool:
        """Whether it is only worth knowing: no result of this program depends on it here."""
        return self in (Fault.LEFT_UNWRITTEN, Fault.NEVER_CHANGED, Fault.NOT_CHECKED)

    @property
    def is_declaration(self) -> bool:
        """Whether a task does something else than it declares, which alone changes no result of this program here."""
        declared = (Fault.READ_WRITTEN, Fault.WRITTEN_READ, Fault.SCRATCH_READ, Fault.NOT_WRITTEN, Fault.PARTLY_WRITTEN)
        seen = (Fault.UNDECLARED_READ, Fault.UNDECLARED_WRITE, Fault.CHANGED_BETWEEN)
        return self in (*declared, *seen, Fault.POISONED_ENDING)

    @property
    def forbids_comparison(self) -> bool:
        """Whether the program has no single result that schedules could be compared with, as far as can be told."""
        return self in (Fault.NOT_DETERMINISTIC, Fault.CHANGING_INPUT, Fault.OTHER_TASKS, Fault.NOT_BOUNDED)


@dataclass(frozen=True, slots=True)
class ProgramFinding:
    """One fault, and where it was seen.

    ``schedule`` is the run in which it was seen. ``task`` is a number in the order of submission, ``codelet`` its name;
    ``handle`` is a number by first use, -1 if the finding is about no handle. ``suspects`` are other tasks that belong
    to it, by name. ``rank`` is -1 in a program without ranks; each rank numbers its own tasks and handles.
    """

    kind: Fault
    schedule: str
    sentence: str
    task: int = -1
    codelet: str = ""
    handle: int = -1
    count: int = 1
    """Findings of this kind with the same codelet; this is the first of them."""
    suspects: tuple[str, ...] = ()
    rank: int = -1
    element: int = -1
    """The first element that differs, counted from 0 in the order of the handle's dimensions; -1: not known."""
    expected: str = ""
    found: str = ""
    again: str = ""
    """Words of a schedule that shows it by the order of two tasks alone; nothing if none is known."""
    places: str = ""
    """Where the task was submitted and the handle registered; nothing if that isn't known."""

    def __str__(self) -> str:
        more = f" (and {self.count - 1} more like it)" if self.count > 1 else ""
        listed = ", ".join(self.suspects[:_MAX_SUSPECTS])
        if len(self.suspects) > _MAX_SUSPECTS:
            listed += f" and {len(self.suspects) - _MAX_SUSPECTS} more"
        suspects = f"; suspects: {listed}" if self.suspects else ""
        where = f"rank {self.rank}, {self.schedule}" if self.rank >= 0 else self.schedule
        return f"{self.kind.value}: {self.sentence}{suspects}{more} [{where}]"


def finding_of(kind: Fault, schedule: str, flow: TaskFlow, access: int, text: str, **members: object) -> ProgramFinding:
    """Return a finding about an access; ``{task}`` and ``{handle}`` in the text are replaced by names."""
    task, handle = int(flow.task[access]), int(flow.handle[access])
    sentence = text.replace("{task}", flow.name(task)).replace("{handle}", flow.handle_name(handle))
    codelet = flow.log.names[int(flow.codelet[task])]
    rank = int(flow.log.header["rank"])
    return ProgramFinding(kind, schedule, sentence, task, codelet, handle, rank=rank, **members)  # type: ignore[arg-type]


def first_of_each(findings: list[ProgramFinding]) -> list[ProgramFinding]:
    """Return the first finding of each kind and codelet, with the number of all of them."""
    grouped: dict[tuple[Fault, str], list[ProgramFinding]] = {}
    for finding in findings:
        grouped.setdefault((finding.kind, finding.codelet), []).append(finding)
    return [replace(same[0], count=len(same)) for same in grouped.values()]
