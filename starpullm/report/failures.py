"""The failed tests: each is named by its checks and its configuration, and has a reason and its complete message."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from starpullm.report.document import Document, grouped

MAX_FAILURES = 200
"""Of more failures only the first are shown in full; the JSON file has all."""


class Failure(NamedTuple):
    """A failed test; ``run`` is the name of its run, in a report of several."""

    anchor: str
    name: str
    reason: str
    test: str
    family: str
    run: str
    message: str


def failures(document: Document) -> list[Failure]:
    """Return the failed tests."""
    return [
        Failure(
            anchor=failure_anchor(number),
            name=_name(test),
            reason=_reason(test),
            test=re.sub("^[^:]*/", "", test["test"]),
            family=test["family"],
            run=test.get("run", ""),
            message=test["message"].strip(),
        )
        for number, test in enumerate(document["tests"])
        if test["outcome"] == "failed"
    ]


def failure_groups(failed: list[Failure]) -> list[list[Failure]]:
    """Return the failures by name."""
    return list(grouped(failed, lambda failure: failure.name).values())


def failure_anchor(test: int) -> str:
    """Return the anchor of a failed test, by its number in the document."""
    return f"failure-{test}"


def _name(test: Mapping[str, Any]) -> str:
    """Return the checks that failed, or the test if no check has a result, and the configuration."""
    checks = dict.fromkeys(result["check"] for result in test["results"] if result["outcome"] == "failed")
    name = ", ".join(checks) or test["test"].rpartition("::")[2].partition("[")[0]
    return name if test["configuration"] in ("", "-", "all") else f"{name} on {test['configuration']}"


def _reason(test: Mapping[str, Any]) -> str:
    """Return why a test failed: the sentence of the check that failed, or the message's."""
    sentences = (result["sentence"] for result in test["results"] if result["outcome"] == "failed")
    return next(sentences, "") or reason_of(test["message"])


def reason_of(message: str) -> str:
    """Return the sentence of a message that says what is wrong: pytest's line of the error, or the first line.

    A traceback ends with its sentence.
    """
    lines = message.strip().splitlines() or [""]
    for line in lines:
        if line.startswith("E  "):
            return line.removeprefix("E").strip()
    return lines[-1 if lines[0].startswith("Traceback (") else 0]
