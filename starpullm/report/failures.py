"""The failures: for each failed test its text, and for bits that differ the element, its values and its writer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from starpullm.report.document import Document

MAX_FAILURES = 200
"""Of more failures only the first are shown in full; the JSON file has all."""

_MAX_NAMED = 40


@dataclass(frozen=True)
class Difference:
    """Where bits differ first in one result: the rows of a table, and the other tensors that differ."""

    anchor: str
    title: str
    rows: tuple[tuple[str, str], ...]
    others: tuple[str, ...]
    num_others: int


@dataclass(frozen=True)
class Failure:
    """A failed test."""

    anchor: str
    test: str
    family: str
    configuration: str
    run: str
    """The name of its run, in a report of several."""

    finding: str
    message: str
    differences: tuple[Difference, ...]


def result_anchor(test: int, index: int) -> str:
    """Return the anchor of a result of a failed test, by their numbers in the document."""
    return f"failure-{test}-{index}"


@dataclass(frozen=True)
class FailureGroup:
    """The failed tests of one kind: what they say, how many there are, and the first of them."""

    words: str
    count: int
    anchor: str


def failure_groups(document: Document, faults: Mapping[str, str]) -> list[FailureGroup]:
    """Return the failed tests by the check that failed, or by their first words if none gave a result.

    ``faults`` has for each check what is wrong if it fails.
    """
    groups: dict[str, list[int]] = {}
    for number, test in enumerate(document["tests"]):
        if test["outcome"] == "failed":
            names = [result["name"] for result in test["results"] if result["outcome"] == "failed"]
            words = faults.get(names[0], f"{names[0]} failed") if names else _first_words(test["message"])
            groups.setdefault(words, []).append(number)
    return [FailureGroup(words, len(tests), failure_anchor(tests[0])) for words, tests in groups.items()]


def _first_words(message: str) -> str:
    return message.strip().partition("\n")[0]


def failure_anchor(test: int) -> str:
    """Return the anchor of a failed test, by its number in the document."""
    return f"failure-{test}"


def failures(document: Document) -> list[Failure]:
    """Return the failed tests, at most ``MAX_FAILURES``."""
    found: list[Failure] = []
    for number, test in enumerate(document["tests"]):
        if test["outcome"] == "failed" and len(found) < MAX_FAILURES:
            message = test["message"].strip()
            found.append(
                Failure(
                    anchor=failure_anchor(number),
                    test=test["test"].rpartition("/")[2],
                    family=test["family"],
                    configuration=test["configuration"],
                    run=test.get("run", ""),
                    finding=_first_words(message),
                    message=message,
                    differences=tuple(_differences(test, number)),
                )
            )
    return found


def _differences(test: Mapping[str, Any], number: int) -> Iterator[Difference]:
    for index, result in enumerate(test["results"]):
        anchor = result_anchor(number, index)
        if result["name"] == "parity" and result.get("first"):
            yield _parity_difference(result, anchor)
        elif result.get("runs") and result.get("differences"):
            yield _run_difference(result, anchor)


def _parity_difference(result: Mapping[str, Any], anchor: str) -> Difference:
    first = result["first"]
    difference = first["difference"]
    rows = [("tensor", _tensor(difference)), ("where", _place(result))]
    if first["bits"] is None:
        rows += [("expected digest", difference["expected_digest"]), ("found digest", difference["found_digest"])]
    else:
        rows += _bits(first["bits"])
    rows.append(("expected values", first["source"]))
    rows += [("written last by", _task(task)) for task in first["writers"]]
    if not first["writers"]:
        rows.append(("written last by", "no task of this step"))
    others = [_tensor(other) for other in result["differences"][1:]]
    return Difference(
        anchor,
        f"{_first_of(len(others) + 1)}, in order of execution" if others else _first_of(1),
        tuple(rows),
        tuple(others[:_MAX_NAMED]),
        len(others),
    )


def _run_difference(result: Mapping[str, Any], anchor: str) -> Difference:
    first, *others = result["differences"]
    rows = [("tensor", first["tensor"]), ("run", first["run"]), ("compared with", first["against"])]
    names = [f"{other['tensor']} ({other['run']})" for other in others]
    count = int(result.get("measured") or len(result["differences"])) - 1
    return Difference(
        anchor,
        _first_of(count + 1),
        (*rows, *_bits(first["difference"])),
        tuple(names[:_MAX_NAMED]),
        count,
    )


def _first_of(count: int) -> str:
    return f"First of {count:,} tensors that differ" if count > 1 else "The only tensor that differs"


def _bits(bits: Mapping[str, Any]) -> list[tuple[str, str]]:
    shape = bits["shape"]
    elements = 1
    for size in shape:
        elements *= size
    distance = "none: one of the two is not a number" if bits["ulps"] is None else f"{bits['ulps']:,} ULP"
    rows = [
        ("expected", f"{_value(bits['expected'])} (0x{bits['expected_bits']})"),
        ("found", f"{_value(bits['found'])} (0x{bits['found_bits']})"),
        ("distance", distance),
    ]
    if shape:
        position = ", ".join(map(str, bits["position"]))
        rows.insert(0, ("element", f"[{position}], number {bits['index']:,} of shape {shape}"))
        rows.append(("elements that differ", f"{bits['differing']:,} of {elements:,}"))
    return rows


def _value(value: float | str) -> str:
    """Return a value that binary32 can tell from its neighbours; what isn't finite is a string already."""
    return value if isinstance(value, str) else f"{value:.9g}"


def _tensor(difference: Mapping[str, Any]) -> str:
    return f"step {difference['step']}, {difference['group']}/{difference['tensor']}"


def _place(result: Mapping[str, Any]) -> str:
    ranks = f", {result['ranks']} ranks" if result["ranks"] > 1 else ""
    return (
        f"{result['record']} on {result['partition']} with {result['scheduler']}{ranks}, sub-batches "
        f"{result['sub_batches']}, {result['reduction']}"
    )


def _task(task: Mapping[str, Any]) -> str:
    parts = [f"step {task['step']}"]
    parts += [
        f"{word} {task[name]}" for name, word in (("sub_batch", "sub-batch"), ("layer", "layer")) if task[name] >= 0
    ]
    worker = f"worker {task['worker']} of " if task["worker"] >= 0 else ""  # a transfer has none
    return f"{task['operation']} ({', '.join(parts)}) on {worker}rank {task['rank']}"
