"""The failed tests: each is named by its checks and its configuration, and has a reason and its complete message."""

from __future__ import annotations

import re
from typing import NamedTuple

from starpullm.report.document import Document, grouped

MAX_FAILURES = 200
"""Of more failures only the first are shown in full; the JSON file has all."""


class FailedTest(NamedTuple):
    """A failed test."""

    anchor: str
    name: str
    reason: str
    finding: str
    """The first one of a check; it may be empty."""
    test: str
    family: str
    message: str


def failures(document: Document) -> list[FailedTest]:
    """Return the failed tests."""
    found = []
    for number, test in enumerate(document["tests"]):
        if test["outcome"] == "failed":
            failed = [result for result in test["results"] if result["outcome"] in ("failed", "no result")]
            checks = ", ".join(dict.fromkeys(result["check"] for result in failed or test["results"]))
            name = checks or test["test"].rpartition("::")[2].partition("[")[0]
            where = "" if test["configuration"] in ("", "-", "all") else f" on {test['configuration']}"
            failure = FailedTest(
                anchor=failure_anchor(number),
                name=f"{name}{where}",
                reason=next(
                    (result["sentence"] for result in failed if result["sentence"]), reason_of(test["message"])
                ),
                finding=next(
                    (line.strip() for line in test["message"].splitlines()[1:] if failed and line.strip()), ""
                ),
                test=re.sub("^[^:]*/", "", test["test"]),
                family=test["family"],
                message=test["message"].strip(),
            )
            found.append(failure)
    return found


def failure_groups(failed: list[FailedTest]) -> list[list[FailedTest]]:
    """Return the failures by name."""
    return list(grouped(failed, lambda failure: failure.name).values())


def failure_anchor(test: int) -> str:
    """Return the anchor of a failed test, by its number in the document."""
    return f"failure-{test}"


def reason_of(message: str) -> str:
    """Return the sentence of a message that says what is wrong: pytest's line of the error, or the first line.

    A traceback ends with its sentence, that of a group of exceptions in a frame.
    """
    lines = [line for line in message.splitlines() if line.strip(" |+-")] or [""]
    for line in lines:
        if line.startswith("E  "):
            return line.removeprefix("E").strip()
    return lines[-1 if "Traceback (most recent call last)" in lines[0] else 0].strip(" |")
