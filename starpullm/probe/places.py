"""Places in the source that a log has stacks of: of an access, of a task's submission, of a handle's registration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypeVar

from starpullm.checks.source_line import source_line
from starpullm.errors import FormatError
from starpullm.files.header import reading
from starpullm.probe.findings import ProgramFinding
from starpullm.probe.program_tasks import TaskFlow, element_at, element_name

_Parsed = TypeVar("_Parsed")
_SYSTEM_LIBRARIES = (
    "libc.so",
    "libc-",
    "libm.so",
    "libm-",
    "ld-linux",
    "libstarpu-",
    "libstarpumpi",
    "libstarpullm_probe",
)
"""Functions in them were called by whoever is to be named."""


@dataclass(frozen=True, slots=True)
class Frame:
    """An instruction, where its module begins in memory, its function if that is exported, and the module's path."""

    address: int
    base: int
    function: str
    module: str

    @property
    def is_own(self) -> bool:
        """Whether the function is the program's, or a library's that isn't of the system."""
        return bool(self.module) and not Path(self.module).name.startswith(_SYSTEM_LIBRARIES)

    @property
    def line(self) -> str:
        """Where the instruction is in the source; nothing if that isn't known."""
        return _line(self)[1]

    def place(self) -> tuple[str, bool]:
        """Return function and line, or where it lies in its module, and whether the line is known."""
        function, line = _line(self)
        if line:
            return f"in {function or self.function} ({line})", True
        where = f"{Path(self.module).name}+0x{self.address - self.base:x}"
        return f"in {self.function} ({where})" if self.function else f"at {where}", False


def frames_of(columns: Sequence[str]) -> tuple[Frame, ...]:
    """Return the frames of a line's columns behind its first ones; a `ValueError` is raised if they aren't whole."""
    members = zip(*(columns[column::4] for column in range(4)), strict=True)
    # Of a function that has called another one, the address behind the call is known.
    return tuple(
        Frame(int(address, 16) - (number > 0), 0 if base == "(nil)" else int(base, 16), function, module)
        for number, (address, base, function, module) in enumerate(members)
    )


@cache
def _line(frame: Frame) -> tuple[str, str]:
    """Return what the debugging information says: the function, and FILE:LINE; nothing if there is none."""
    with suppress(OSError):
        with Path(frame.module).open("rb") as file:
            is_fixed = file.read(18)[16:18] == b"\x02\x00"  # ET_EXEC: addresses in the file are those in memory
        return source_line(frame.module, frame.address if is_fixed else frame.address - frame.base)
    return "", ""


def with_places(findings: Sequence[ProgramFinding], flows: Mapping[int, TaskFlow]) -> list[ProgramFinding]:
    """Return findings with the places at which their tasks were submitted and their handles registered.

    ``flows`` are those of a run that has recorded stacks, by rank.
    """
    stacks = {rank: dict(read_lines(flow.log.folder / "stacks", "a stack", _stack)) for rank, flow in flows.items()}
    return [
        _with_places(finding, flows[finding.rank], stacks[finding.rank]) if finding.rank in flows else finding
        for finding in findings
    ]


def read_lines(path: Path, expected: str, parse: Callable[[list[str]], _Parsed]) -> Iterator[_Parsed]:
    """Yield what each line of a log's text says; one whose columns `parse` refuses by a `ValueError` is refused."""
    with reading(path) as (file, _):
        content = file.read().decode(errors="replace")
    for line in content.splitlines():
        try:
            yield parse(line.split("\t"))
        except ValueError as error:
            raise FormatError(f"{path}: found the line {line!r:.40}, expected {expected}: {error}") from error


def _stack(columns: list[str]) -> tuple[int, tuple[Frame, ...]]:
    return int(columns[0]), frames_of(columns[1:])


def _with_places(finding: ProgramFinding, flow: TaskFlow, stacks: Mapping[int, tuple[Frame, ...]]) -> ProgramFinding:
    task, evidence = finding.task, dict(finding.evidence)
    if not 0 <= task < flow.num_submitted or finding.codelet not in ("", flow.log.names[int(flow.codelet[task])]):
        return finding  # the runs don't have it in common
    places = {}
    if "handle" in evidence:
        places["handle"] = evidence.pop("handle") + _registration(flow, finding.handle, stacks)
    stack = int(flow.log.tasks["stack"][flow.tasks[task]])
    if submitted := _place_in_program(stacks, stack):
        places["submitted"] = submitted
    lines = [line for frame in stacks.get(stack, ()) if frame.is_own and (line := frame.line)]
    where = ", ".join([finding.where, *lines[:1]])
    return replace(finding, where=where, evidence={**places, **evidence})


def _registration(flow: TaskFlow, handle: int, stacks: Mapping[int, tuple[Frame, ...]]) -> str:
    """Return where a handle was registered, or the one of which it is a part, and which; nothing if that isn't known.

    StarPU doesn't tell a part's parent: it is the last registered handle before with this memory.
    """
    of_log = int(flow.handle_of_log[handle])
    handles = flow.log.handles
    part = handles[of_log]
    if part["stack"]:
        place = _place_in_program(stacks, int(part["stack"]))
        return f", registered {place}" if place else ""
    for whole in handles[:of_log][::-1]:
        element = element_at(whole, int(part["address"])) if whole["stack"] and part["address"] else None
        if element is not None:
            place = _place_in_program(stacks, int(whole["stack"]))
            return f", a part, from {element_name(whole, element)} on, of the one registered {place}" if place else ""
    return ""


def _place_in_program(stacks: Mapping[int, tuple[Frame, ...]], number: int) -> str:
    """Return the innermost place of the program's own in a stack, and from where that was called; or nothing."""
    own = [frame for frame in stacks.get(number, ()) if frame.is_own]
    places = [frame.place() for frame in own[:2]]
    text = places[0][0] if places else ""
    return f"{text}, called {places[1][0]}" if len(places) == 2 and places[1][1] else text
