"""The task graph of one iteration, folded: a box for each block's forward pass, backward pass and update.

Rows are the parts of the model, from the embedding down to the loss; columns are the forward passes of the sub-batches,
their backward passes, and the update. So data flow down on the left, up on the right, and then into the update.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from starpullm.report.phases import phase_of
from starpullm.report.violations import Violation

MAX_COLUMNS = 3
"""More sub-batches than this are folded into one column."""

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _LEFT, _TOP = 108, 34, 40, 20, 104, 34
_PHASES = ("forward", "backward", "update")


class Place(NamedTuple):
    """A box: its row (part of the model) and its phase and sub-batch."""

    row: int
    phase: str
    sub_batch: int


@dataclass(frozen=True)
class Box:
    """A box of the picture; ``reused`` and ``read`` count its edges from the step before."""

    place: Place
    x: int
    y: int
    label: str
    title: str
    reused: int
    read: int


@dataclass(frozen=True)
class Line:
    """A line between two boxes, as an SVG path, for all edges of one class between them."""

    kind: str
    path: str
    title: str
    count: int


@dataclass(frozen=True)
class TaskGraphPicture:
    """The picture of a recording, and the table behind it."""

    name: str
    configuration: str
    step: int
    num_tasks: int
    num_edges: int
    width: int
    height: int
    box_width: int
    box_height: int
    rows: tuple[tuple[str, int], ...]
    columns: tuple[tuple[str, int], ...]
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    violations: tuple[Line, ...]
    table: tuple[tuple[str, str, str, int], ...]
    """From, to, class of edge, number of edges."""

    folded: bool


@dataclass
class _Graph:
    """The tasks of one step by box, and their edges by the boxes that they join."""

    layers: int
    step: int
    operations: Sequence[str]
    folded: bool
    tasks: dict[Place, Counter[str]] = field(default_factory=dict)
    edges: Counter[tuple[Place, Place, str]] = field(default_factory=Counter)
    from_before: Counter[tuple[Place, str]] = field(default_factory=Counter)

    def place(self, operation: str, sub_batch: int, layer: int) -> Place:
        phase = phase_of(operation)
        phase = phase if phase in _PHASES else "forward"
        row = layer + 1 if layer >= 0 else 0 if operation.startswith("encoder") else self.layers + 1
        return Place(row, phase, -1 if self.folded or phase == "update" else max(sub_batch, 0))

    def row_name(self, row: int) -> str:
        if row == 0:
            return "embedding"
        return f"block {row - 1}" if row <= self.layers else "head, loss"

    def name(self, place: Place) -> str:
        sub_batch = f" of sub-batch {place.sub_batch}" if place.sub_batch >= 0 else ""
        return f"{self.row_name(place.row)}, {place.phase}{sub_batch}"


def task_graph_of(recording: Mapping[str, Any], violations: Sequence[Violation]) -> TaskGraphPicture | None:
    """Return the picture of a recording's iteration with edges, or None if there are none."""
    tasks, edges = recording["tasks"], recording["edges"]
    if not edges["after"]:
        return None
    step = tasks["step"][edges["after"][0]]
    sub_batches = sorted({number for number in tasks["sub_batch"] if number >= 0})
    graph = _Graph(recording["layers"], step, recording["operations"], folded=len(sub_batches) > MAX_COLUMNS)
    _fill(graph, recording)
    columns = _columns(graph, [] if graph.folded else sub_batches)
    x_of = {column: _LEFT + number * (_WIDTH + _GAP_X) for number, (column, _) in enumerate(columns)}
    boxes = {place: _box(graph, place, x_of[place.phase, place.sub_batch]) for place in sorted(graph.tasks)}
    height = _TOP + (graph.layers + 2) * (_HEIGHT + _GAP_Y)
    return TaskGraphPicture(
        name=recording["name"],
        configuration=recording["configuration"],
        step=step,
        num_tasks=sum(counts.total() for counts in graph.tasks.values()),
        num_edges=len(edges["after"]),
        width=_LEFT + len(columns) * (_WIDTH + _GAP_X),
        height=height,
        box_width=_WIDTH,
        box_height=_HEIGHT,
        rows=tuple((graph.row_name(row), _y(row) + _HEIGHT // 2) for row in range(graph.layers + 2)),
        columns=tuple((title, x_of[column] + _WIDTH // 2) for column, title in columns),
        boxes=tuple(boxes.values()),
        lines=tuple(_lines(graph, boxes)),
        violations=tuple(_violation_lines(graph, boxes, violations)),
        table=tuple(_table(graph)),
        folded=graph.folded,
    )


def _fill(graph: _Graph, recording: Mapping[str, Any]) -> None:
    tasks, edges, handles = recording["tasks"], recording["edges"], recording["handles"]
    columns = (tasks[name] for name in ("operation", "sub_batch", "layer"))
    places = [
        graph.place(graph.operations[operation], sub_batch, layer)
        for operation, sub_batch, layer in zip(*columns, strict=True)
    ]
    for place, operation, step in zip(places, tasks["operation"], tasks["step"], strict=True):
        if step == graph.step:
            graph.tasks.setdefault(place, Counter())[graph.operations[operation]] += 1
    for before, after, handle, kind in zip(
        *(edges[name] for name in ("before", "after", "handle", "kind")), strict=True
    ):
        what = edge_class(handles[handle], kind)
        if tasks["step"][before] != graph.step:
            graph.from_before[places[after], what] += 1
        elif places[before] != places[after]:
            graph.edges[places[before], places[after], what] += 1


def edge_class(handle: str, kind: int) -> str:
    """Return what an edge is drawn as: reuse, or what the later task reads (activation, gradient, parameter)."""
    if kind > 0:
        return "reuse"
    group = handle.partition("/")[0]
    if group in ("grads", "activation_grads"):
        return "gradient"
    return "parameter" if group in ("params", "m", "v") else "activation"


def _columns(graph: _Graph, sub_batches: Sequence[int]) -> list[tuple[tuple[str, int], str]]:
    """Return the columns that have boxes, from left to right, with their titles."""
    used = {(place.phase, place.sub_batch) for place in graph.tasks}
    columns = [(phase, sub_batch) for phase in _PHASES[:2] for sub_batch in (sub_batches or [-1])]
    columns.append(("update", -1))
    return [
        ((phase, number), phase if number < 0 else f"{phase} {number}")
        for phase, number in columns
        if (phase, number) in used
    ]


def _y(row: int) -> int:
    return _TOP + row * (_HEIGHT + _GAP_Y)


def _box(graph: _Graph, place: Place, x: int) -> Box:
    counts = graph.tasks[place]
    number = counts.total()
    operations = ", ".join(f"{name} × {count}" if count > 1 else name for name, count in counts.items())
    reused = graph.from_before[place, "reuse"]
    read = sum(count for (at, what), count in graph.from_before.items() if at == place and what != "reuse")
    title = f"{graph.name(place)}: {operations}"
    if reused or read:
        title += f". From the step before: {read} values read, {reused} handles reused"
    label = f"{number} task{'' if number == 1 else 's'}"
    return Box(place, x, _y(place.row), label, title, reused, read)


def _lines(graph: _Graph, boxes: Mapping[Place, Box]) -> Iterator[Line]:
    order = ("reuse", "parameter", "activation", "gradient")  # later ones are drawn on top
    for (before, after, what), count in sorted(graph.edges.items(), key=lambda edge: order.index(edge[0][2])):
        title = f"{graph.name(before)} → {graph.name(after)}: {count} {what} edge{'' if count == 1 else 's'}"
        yield Line(what, _path(boxes[before], boxes[after], order.index(what)), title, count)


def _violation_lines(graph: _Graph, boxes: Mapping[Place, Box], violations: Sequence[Violation]) -> Iterator[Line]:
    """Yield a line for each pair of boxes between which tasks have a wrong order."""
    found: dict[tuple[Place, Place], list[Violation]] = {}
    for violation in violations:
        ends = [
            graph.place(task["operation"], task["sub_batch"], task["layer"])
            for task in (violation.before, violation.after)
        ]
        if all(end in boxes for end in ends):
            found.setdefault((ends[0], ends[1]), []).append(violation)
    for (before, after), same in found.items():
        title = "; ".join(f"{violation.what}: {violation.witness}" for violation in same[:3])
        yield Line("violation", _path(boxes[before], boxes[after], 4), title, len(same))


def _path(before: Box, after: Box, lane: int) -> str:
    """Return a curve from one box to another; lines of different classes leave from different points."""
    shift = 6 * lane - 9
    if before.place == after.place:
        x, y = before.x + _WIDTH, before.y + _HEIGHT // 2
        return f"M{x},{y - 8} c26,-10 26,26 0,16"
    if before.x == after.x:
        down = after.y > before.y
        x = before.x + _WIDTH // 2 + 2 * shift
        y1, y2 = (before.y + _HEIGHT, after.y) if down else (before.y, after.y + _HEIGHT)
        if abs(after.place.row - before.place.row) == 1:
            return f"M{x},{y1} L{x},{y2}"
        side = before.x - 6
        y1, y2 = before.y + _HEIGHT // 2 + shift, after.y + _HEIGHT // 2 + shift
        return f"M{before.x},{y1} C{side - 30},{y1} {side - 30},{y2} {after.x},{y2}"
    right = after.x > before.x
    x1, x2 = (before.x + _WIDTH, after.x) if right else (before.x, after.x + _WIDTH)
    y1, y2 = before.y + _HEIGHT // 2 + shift, after.y + _HEIGHT // 2 + shift
    bend = max(20, abs(x2 - x1) // 2) * (1 if right else -1)
    return f"M{x1},{y1} C{x1 + bend},{y1} {x2 - bend},{y2} {x2},{y2}"


def _table(graph: _Graph) -> Iterator[tuple[str, str, str, int]]:
    for (before, after, what), count in sorted(graph.edges.items()):
        yield graph.name(before), graph.name(after), what, count
    for (place, what), count in sorted(graph.from_before.items()):
        yield "the step before", graph.name(place), what, count
