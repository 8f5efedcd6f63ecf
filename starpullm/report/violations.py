"""The faults of order that checks have found: pairs of tasks, with the finding and a link to the failure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from starpullm.report.document import Document
from starpullm.report.failures import failure_anchor

MAX_VIOLATIONS = 40
"""Of more, only the first are drawn and listed; the JSON file has those that the checks list."""


_KINDS = ("StarPU doesn't wait", "StarPU waits without a reason", "started too early")


@dataclass(frozen=True)
class Violation:
    """Two tasks in a wrong order, each as the fields of a task's name."""

    what: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    witness: str
    anchor: str


def violations_of(document: Document) -> list[Violation]:
    """Return the faults of order, each pair of kinds of tasks once."""
    found: dict[tuple[str, str], Violation] = {}
    for number, test in enumerate(document["tests"]):
        for result in test["results"]:
            for what, before, after, handle in _pairs(result):
                witness = f"{task_words(before)} → {task_words(after)}: {handle}"
                violation = Violation(what, before, after, witness, failure_anchor(number))
                found.setdefault((what, witness), violation)
    return sorted(found.values(), key=lambda violation: _KINDS.index(violation.what))[:MAX_VIOLATIONS]


def _pairs(result: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any], str]]:
    for edge in result.get("missing", ()):
        yield _KINDS[0], edge["before"], edge["after"], f"{edge['kind']} of {edge['handle']}"
    for edge in result.get("superfluous", ()):
        common = ", ".join(edge["common"]) or "no handle in common"
        yield _KINDS[1], edge["before"], edge["after"], common
    for violation in result.get("violations", ()):
        path = violation["path"]
        handles = ", ".join(edge["handle"] for edge in path)
        text = f"{handles}; started {violation['overlap_ns']:,} ns too early"
        yield _KINDS[2], path[0]["before"], path[-1]["after"], text


def task_words(task: Mapping[str, Any]) -> str:
    """Return a task's operation, step, sub-batch and layer in words."""
    words = {"sub_batch": "sub-batch", "layer": "layer"}
    parts = [f"step {task['step']}", *(f"{word} {task[name]}" for name, word in words.items() if task[name] >= 0)]
    return f"{task['operation']} ({', '.join(parts)})"
