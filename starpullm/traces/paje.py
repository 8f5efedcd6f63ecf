"""Paje, the format of ViTE, pj_dump and PajeNG: containers for ranks and workers, states for tasks, links for edges.

Its description: "Paje trace file format" by L. M. Schnorr, in PajeNG's repository. Events are sorted by time, in
seconds after the first submission.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from starpullm.traces.content import KIND_COLORS, dependencies_of_run_tasks, kind_of
from starpullm.traces.traced_run import TracedRun

_EVENTS = {
    "PajeDefineContainerType": "Alias Type Name",
    "PajeDefineStateType": "Alias Type Name",
    "PajeDefineLinkType": "Alias Type StartContainerType EndContainerType Name",
    "PajeDefineEntityValue": "Alias Type Name Color",
    "PajeCreateContainer": "Time Alias Type Container Name",
    "PajeDestroyContainer": "Time Type Name",
    "PajePushState": "Time Type Container Value Task Step SubBatch Layer",
    "PajePopState": "Time Type Container",
    "PajeStartLink": "Time Type Container StartContainer Value Key",
    "PajeEndLink": "Time Type Container EndContainer Value Key",
}
_TYPES = {"Time": "date", "Color": "color"}  # all other fields are strings
_NUMBERS = {name: number for number, name in enumerate(_EVENTS)}
# At one time a state ends before a link leaves it, and a link arrives before the state that it leads to begins. The end
# of a task without a duration comes last.
_POP, _START_LINK, _END_LINK, _PUSH, _POP_AT_ONCE = range(5)
_LINK_COLORS = {"data": (0.0, 0.0, 0.0), "reuse": (0.6, 0.6, 0.6)}


def paje_lines(run: TracedRun) -> Iterator[str]:
    """Yield the lines of a Paje file."""
    for number, (name, fields) in enumerate(_EVENTS.items()):
        yield f"%EventDef {name} {number}\n"
        yield from (f"% {field} {_TYPES.get(field, 'string')}\n" for field in fields.split())
        yield "%EndEventDef\n"
    yield from _types(run)
    yield _line("PajeCreateContainer", _seconds(0), "run", "Run", "0", "run")
    workers = sorted({(task.rank, task.worker) for task in run.trace if task.worker >= 0})
    for rank, info in enumerate(run.ranks):
        name = f"rank {rank} on {info.host}"
        yield _line("PajeCreateContainer", _seconds(0), f"r{rank}", "Rank", "run", name)
    for rank, worker in workers:
        # Names of containers have to be unique.
        alias = _worker(rank, worker)
        yield _line("PajeCreateContainer", _seconds(0), alias, "Worker", f"r{rank}", f"worker {rank}.{worker}")
    end = 0
    for time, _, line in sorted([*_states(run), *_links(run)]):
        end = max(end, time + 1)  # PajeNG drops the last link of the instant in which its container ends
        yield line
    for rank, worker in workers:
        yield _line("PajeDestroyContainer", _seconds(end), "Worker", _worker(rank, worker))
    for rank in range(len(run.ranks)):
        yield _line("PajeDestroyContainer", _seconds(end), "Rank", f"r{rank}")
    yield _line("PajeDestroyContainer", _seconds(end), "Run", "run")


def _types(run: TracedRun) -> Iterator[str]:
    yield _line("PajeDefineContainerType", "Run", "0", "Run")
    yield _line("PajeDefineContainerType", "Rank", "Run", "Rank")
    yield _line("PajeDefineContainerType", "Worker", "Rank", "Worker")
    yield _line("PajeDefineStateType", "Task", "Worker", "Task")
    yield _line("PajeDefineLinkType", "Dependency", "Run", "Worker", "Worker", "Dependency")
    numbers: Counter[str] = Counter()
    for operation in run.trace.operations:
        kind = kind_of(operation)
        # Operations of one kind have shades of its colour.
        shade = 1 - 0.12 * (numbers[kind] % 5)
        numbers[kind] += 1
        color = _color(tuple(shade * part for part in KIND_COLORS[kind]))
        yield _line("PajeDefineEntityValue", operation, "Task", operation, color)
    for name, parts in _LINK_COLORS.items():
        yield _line("PajeDefineEntityValue", name, "Dependency", name, _color(parts))


def _states(run: TracedRun) -> Iterator[tuple[int, int, str]]:
    """Yield for each task its start and its end: time, place among the events of that time, line."""
    for task in run.trace:
        if task.worker < 0:
            continue
        start, end = task.start_ns - run.origin_ns, task.end_ns - run.origin_ns
        container = _worker(task.rank, task.worker)
        numbers = (str(number) for number in (task.id, task.step, task.sub_batch, task.layer))
        push = _line("PajePushState", _seconds(start), "Task", container, task.operation, *numbers)
        yield start, _PUSH, push
        yield end, _POP if end > start else _POP_AT_ONCE, _line("PajePopState", _seconds(end), "Task", container)


def _links(run: TracedRun) -> Iterator[tuple[int, int, str]]:
    tasks = run.trace.tasks
    for edge in dependencies_of_run_tasks(run):
        before, after = tasks[edge.before], tasks[edge.after]
        start, end = int(before["end_ns"]) - run.origin_ns, int(after["start_ns"]) - run.origin_ns
        value, key = "reuse" if edge.is_reuse else "data", f"{before['id']}_{after['id']}"
        end = max(start, end)  # the clocks of two ranks can be a little apart
        ends = (_worker(int(task["rank"]), int(task["worker"])) for task in (before, after))
        origin, destination = ends
        yield start, _START_LINK, _line("PajeStartLink", _seconds(start), "Dependency", "run", origin, value, key)
        yield end, _END_LINK, _line("PajeEndLink", _seconds(end), "Dependency", "run", destination, value, key)


def _line(event: str, *values: str) -> str:
    """Return an event's line; a text in quotes must contain none."""
    quoted = (value if _is_number(value) else '"' + value.replace('"', "'") + '"' for value in values)
    return f"{_NUMBERS[event]} {' '.join(quoted)}\n"


def _is_number(value: str) -> bool:
    return value.replace(".", "", 1).removeprefix("-").isdigit()


def _worker(rank: int, worker: int) -> str:
    return f"r{rank}w{worker}"


def _seconds(time_ns: int) -> str:
    return f"{time_ns / 1e9:.9f}"


def _color(parts: tuple[float, ...]) -> str:
    return " ".join(f"{part:.2f}" for part in parts)
