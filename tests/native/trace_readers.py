"""Readers of the formats of other tools, written from the formats' descriptions; none of them uses starpullm.

NetworkX reads DOT, with pydot. Each reader returns what a tool would see: tasks, and pairs of tasks of
which the second waits for the first.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx


@dataclass(frozen=True)
class Task:
    """Times are in microseconds after the first submission."""

    operation: str
    rank: int
    worker: int
    start: float
    end: float


Contents = tuple[dict[int, Task], set[tuple[int, int]]]


def read_perfetto(path: Path) -> Contents:
    """Check the rules of "Trace Event Format" that importers rely on, and return slices and flows."""
    trace = json.loads(path.read_text("utf-8"))
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events = trace["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "s", "f"}
    names = {(event["pid"], event["tid"]) for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
    tasks, slices = {}, defaultdict(list)
    for event in (event for event in events if event["ph"] == "X"):
        assert (event["pid"], event["tid"]) in names
        assert event["dur"] >= 0
        number, end = event["args"]["id"], event["ts"] + event["dur"]
        assert number not in tasks
        tasks[number] = Task(event["name"], event["pid"], event["tid"], event["ts"], end)
        slices[event["pid"], event["tid"]].append((event["ts"], end, number))

    def enclosing(event: dict[str, Any]) -> int:
        """The slice to which a flow event is attached: of its thread, at its time, without the slice's end."""
        found = [number for begin, end, number in slices[event["pid"], event["tid"]] if begin <= event["ts"] < end]
        assert len(found) == 1, event
        number: int = found[0]
        return number

    starts, ends = ({event["id"]: event for event in events if event["ph"] == phase} for phase in "sf")
    assert len(starts) + len(ends) == sum(event["ph"] in "sf" for event in events)
    assert starts.keys() == ends.keys()
    for number, event in ends.items():
        assert event["bp"] == "e"  # binds to the enclosing slice
        assert (event["name"], event["cat"]) == (starts[number]["name"], starts[number]["cat"])
    return tasks, {(enclosing(starts[number]), enclosing(event)) for number, event in ends.items()}


VALUES: dict[str, Callable[[str], object]] = {
    "date": float,
    "color": lambda text: [float(part) for part in text.split()],
    "string": str,
}
"""How Paje's kinds of fields are read."""


class Paje:
    """A reader of Paje files: types, containers and values are defined before they are used, and times ascend."""

    def __init__(self, path: Path) -> None:
        self.tasks: dict[int, Task] = {}
        self.edges: dict[str, tuple[tuple[str, float], tuple[str, float]]] = {}
        """Container and time of both ends, by key."""
        self._definitions: dict[str, tuple[str, list[tuple[str, str]]]] = {}
        self._types: dict[str, str] = {}  # alias to the alias of the type that it belongs to
        self._containers: dict[str, tuple[str, str]] = {"0": ("0", "")}
        self._values: set[tuple[str, str]] = set()
        self._stacks: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        self._links: dict[str, dict[str, Any]] = {}
        self._time = 0.0
        lines = iter(path.read_text("utf-8").splitlines())
        for line in lines:
            if line.startswith("%EventDef"):
                _, name, number = line.split()
                fields: list[tuple[str, str]] = []
                while (line := next(lines)) != "%EndEventDef":
                    _, field, kind = line.split()
                    fields.append((field, kind))
                self._definitions[number] = name, fields
                continue
            number, *texts = shlex.split(line)
            name, fields = self._definitions[number]
            assert len(texts) == len(fields), line
            self._event(name, {field: VALUES[kind](text) for (field, kind), text in zip(fields, texts, strict=True)})
        assert not self._links
        assert not any(self._stacks.values())
        assert list(self._containers) == ["0"], "every container is destroyed"

    def _event(self, name: str, event: dict[str, Any]) -> None:
        if "Time" in event:
            assert event["Time"] >= self._time
            self._time = event["Time"]
        snake = re.sub("([A-Z])", r"_\1", name.removeprefix("Paje")).lower()
        getattr(self, snake)(event)

    def _define_container_type(self, event: dict[str, Any]) -> None:
        assert event["Type"] == "0" or event["Type"] in self._types
        self._types[event["Alias"]] = event["Type"]

    _define_state_type = _define_container_type

    def _define_link_type(self, event: dict[str, Any]) -> None:
        assert {event["Type"], event["StartContainerType"], event["EndContainerType"]} <= self._types.keys()
        self._types[event["Alias"]] = event["Type"]

    def _define_entity_value(self, event: dict[str, Any]) -> None:
        assert event["Type"] in self._types
        assert [0 <= part <= 1 for part in event["Color"]] == 3 * [True]
        self._values.add((event["Type"], event["Alias"]))

    def _create_container(self, event: dict[str, Any]) -> None:
        assert event["Alias"] not in self._containers
        assert self._containers[event["Container"]][0] == self._types[event["Type"]]
        self._containers[event["Alias"]] = event["Type"], event["Name"]

    def _destroy_container(self, event: dict[str, Any]) -> None:
        assert self._containers.pop(event["Name"])[0] == event["Type"]

    def _push_state(self, event: dict[str, Any]) -> None:
        assert self._containers[event["Container"]][0] == self._types[event["Type"]]
        assert (event["Type"], event["Value"]) in self._values
        assert not self._stacks[event["Container"]], "a worker runs one task at a time"
        self._stacks[event["Container"]].append(event)

    def _pop_state(self, event: dict[str, Any]) -> None:
        push = self._stacks[event["Container"]].pop()
        rank, worker = (int(number) for number in event["Container"].removeprefix("r").split("w"))
        times = (time * 1e6 for time in (push["Time"], event["Time"]))
        self.tasks[int(push["Task"])] = Task(push["Value"], rank, worker, *times)

    def _start_link(self, event: dict[str, Any]) -> None:
        assert (event["Type"], event["Value"]) in self._values
        assert self._containers[event["StartContainer"]][0] == "Worker"
        self._links[event["Key"]] = event

    def _end_link(self, event: dict[str, Any]) -> None:
        start = self._links.pop(event["Key"])
        assert (event["Type"], event["Value"]) == (start["Type"], start["Value"])
        assert self._containers[event["EndContainer"]][0] == "Worker"
        self.edges[event["Key"]] = (start["StartContainer"], start["Time"]), (event["EndContainer"], event["Time"])


def read_paje(path: Path) -> Contents:
    """Return states and links; a link's key has the numbers of its tasks, at whose end and start it must be."""
    paje = Paje(path)
    edges = set()
    for key, ((origin, left), (destination, arrived)) in paje.edges.items():
        before, after = (int(number) for number in key.split("_"))
        first, second = paje.tasks[before], paje.tasks[after]
        assert (origin, destination) == (f"r{first.rank}w{first.worker}", f"r{second.rank}w{second.worker}")
        assert abs(float(left) * 1e6 - first.end) < 1e-3
        assert abs(float(arrived) * 1e6 - max(first.end, second.start)) < 1e-3  # clocks may be a little apart
        edges.add((before, after))
    assert len(edges) == len(paje.edges)
    return paje.tasks, edges


def read_dot(path: Path) -> tuple[dict[int, dict[str, str]], set[tuple[int, int]]]:
    """Return the nodes' attributes and the edges of a DOT file, by the numbers of tasks."""
    graph = networkx.nx_pydot.read_dot(path)
    # pydot leaves texts in their quotation marks, and lists the defaults as nodes.
    numbers = {node: int(node.removeprefix("t")) for node in graph.nodes if node.startswith("t")}
    nodes = {
        number: {name: value.strip('"') for name, value in graph.nodes[node].items()}
        for node, number in numbers.items()
    }
    return nodes, {(numbers[edge[0]], numbers[edge[1]]) for edge in graph.edges}
