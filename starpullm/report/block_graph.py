"""One block of the folded task graph unfolded: each task of one sub-batch, and the updates of the block's parameters.

Forward tasks go down in the order of submission, backward tasks beside them up, as data flow in the folded graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starpullm.report.phases import phase_of
from starpullm.report.task_graph import Line, edge_class
from starpullm.report.violations import Violation

_WIDTH, _HEIGHT, _PITCH_Y, _GAP_X, _LEFT, _TOP = 246, 24, 34, 96, 36, 30
_PHASES = ("forward", "backward", "update")


@dataclass(frozen=True)
class TaskBox:
    """A task of the picture."""

    phase: str
    x: int
    y: int
    label: str


@dataclass(frozen=True)
class BlockPicture:
    """The tasks of a block and of one sub-batch in it, and the dependencies between them."""

    layer: int
    sub_batch: int
    width: int
    height: int
    box_width: int
    box_height: int
    columns: tuple[tuple[str, int], ...]
    boxes: tuple[TaskBox, ...]
    lines: tuple[Line, ...]
    violations: tuple[Line, ...]
    table: tuple[tuple[str, str, str, str], ...]
    """From, to, class of edge, handle."""


def block_graph_of(recording: Mapping[str, Any], violations: Sequence[Violation]) -> BlockPicture | None:
    """Return a block of the step with edges: one with a violation, otherwise the middle one; None without tasks."""
    tasks, edges = recording["tasks"], recording["edges"]
    if not edges["after"]:
        return None
    step = tasks["step"][edges["after"][0]]
    bad = [violation.before for violation in violations if 0 <= violation.before["layer"] < recording["layers"]]
    layer = bad[0]["layer"] if bad else recording["layers"] // 2
    sub_batch = max(bad[0]["sub_batch"], 0) if bad else 0
    chosen = [
        number
        for number, (at, of_layer, part) in enumerate(
            zip(tasks["step"], tasks["layer"], tasks["sub_batch"], strict=True)
        )
        if at == step and of_layer == layer and part in (sub_batch, -1)
    ]
    names = [recording["operations"][tasks["operation"][number]] for number in chosen]
    outputs = _outputs(recording, chosen)
    by_phase = {
        phase: [n for n, name in zip(chosen, names, strict=True) if phase_of(name) == phase] for phase in _PHASES
    }
    columns = [phase for phase in _PHASES if by_phase[phase]]
    if not columns:
        return None
    height = _TOP + max(map(len, by_phase.values())) * _PITCH_Y
    x_of = {phase: _LEFT + number * (_WIDTH + _GAP_X) for number, phase in enumerate(columns)}
    boxes: dict[int, TaskBox] = {}
    for phase in columns:
        numbers = by_phase[phase]
        for row, number in enumerate(reversed(numbers) if phase == "backward" else numbers):
            name = recording["operations"][tasks["operation"][number]]
            label = f"{name} → {outputs[number]}" if number in outputs else name
            boxes[number] = TaskBox(phase, x_of[phase], _TOP + row * _PITCH_Y, label)
    inner = list(_inner_edges(recording, boxes))
    return BlockPicture(
        layer=layer,
        sub_batch=sub_batch,
        width=_LEFT + len(columns) * (_WIDTH + _GAP_X),
        height=height,
        box_width=_WIDTH,
        box_height=_HEIGHT,
        columns=tuple((phase, x_of[phase] + _WIDTH // 2) for phase in columns),
        boxes=tuple(boxes.values()),
        lines=tuple(
            Line(what, _path(boxes[before], boxes[after]), f"{boxes[before].label} → {boxes[after].label}: {handle}", 1)
            for before, after, what, handle in inner
        ),
        violations=tuple(_violation_lines(recording, boxes, violations)),
        table=tuple((boxes[before].label, boxes[after].label, what, handle) for before, after, what, handle in inner),
    )


def _outputs(recording: Mapping[str, Any], chosen: Sequence[int]) -> dict[int, str]:
    """Return for each task a tensor: one that it writes and a later task reads, or else one whose gradient it reads."""
    edges, handles = recording["edges"], recording["handles"]
    wanted = set(chosen)
    written: dict[int, str] = {}
    read: dict[int, str] = {}
    columns = (edges[name] for name in ("before", "after", "handle", "kind"))
    for before, after, handle, kind in zip(*columns, strict=True):
        group, _, rest = handles[handle].partition("/")
        tensor = rest.partition("#")[0].partition("[")[0]
        if kind == 0 and before in wanted:
            written.setdefault(before, tensor)
        if kind == 0 and after in wanted and group == "grads":
            read.setdefault(after, tensor)
    return {**read, **written}


def _inner_edges(recording: Mapping[str, Any], boxes: Mapping[int, TaskBox]) -> Iterator[tuple[int, int, str, str]]:
    edges, handles = recording["edges"], recording["handles"]
    columns = (edges[name] for name in ("before", "after", "handle", "kind"))
    for before, after, handle, kind in zip(*columns, strict=True):
        if before in boxes and after in boxes:
            yield before, after, edge_class(handles[handle], kind), handles[handle]


def _violation_lines(
    recording: Mapping[str, Any], boxes: Mapping[int, TaskBox], violations: Sequence[Violation]
) -> Iterator[Line]:
    """Yield a line for each violation between tasks of the picture; tasks of one operation can't be told apart."""
    operations = [recording["operations"][number] for number in recording["tasks"]["operation"]]
    by_operation: dict[tuple[str, int], TaskBox] = {}
    for number, box in boxes.items():
        by_operation.setdefault((operations[number], recording["tasks"]["layer"][number]), box)
    for violation in violations:
        ends = [by_operation.get((task["operation"], task["layer"])) for task in (violation.before, violation.after)]
        if ends[0] is not None and ends[1] is not None:
            yield Line("violation", _path(ends[0], ends[1]), f"{violation.what}: {violation.witness}", 1)


def _path(before: TaskBox, after: TaskBox) -> str:
    y1, y2 = before.y + _HEIGHT // 2, after.y + _HEIGHT // 2
    if before.phase == after.phase:
        rows = abs(after.y - before.y) // _PITCH_Y
        if rows == 1:
            x = before.x + _WIDTH // 2
            return (
                f"M{x},{before.y + _HEIGHT} L{x},{after.y}" if y2 > y1 else f"M{x},{before.y} L{x},{after.y + _HEIGHT}"
            )
        bend = before.x - min(12 + 3 * rows, _LEFT)
        return f"M{before.x},{y1} C{bend},{y1} {bend},{y2} {after.x},{y2}"
    right = after.x > before.x
    x1, x2 = (before.x + _WIDTH, after.x) if right else (before.x, after.x + _WIDTH)
    bend = _GAP_X // 2 * (1 if right else -1)
    return f"M{x1},{y1} C{x1 + bend},{y1} {x2 - bend},{y2} {x2},{y2}"
