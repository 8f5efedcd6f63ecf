"""What the first screen says: whether the run passed, and what it gave no verdict on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from starpullm.report.document import KINDS, Document, counted, ending_of, grouped
from starpullm.report.failures import reason_of


class RunVerdict(NamedTuple):
    """The verdict on a run: ``kind`` is ``passed``, ``failed``, ``unfinished`` or ``nothing``."""

    kind: str
    word: str
    sentence: str


def verdict_of(document: Document) -> RunVerdict:
    """Return the verdict; only a run that has ended, has passed tests and no failed ones is called passed."""
    outcomes = Counter(test["outcome"] for test in document["tests"])
    passed, failed, skipped = (outcomes[name] for name in ("passed", "failed", "skipped"))
    counts = f"Tests: {', '.join(counted(document['tests'])) or 'none'}."
    stopped = f" The run was stopped: {document['stopped']}." if document["stopped"] else ""
    if document["state"] == "running":
        sentence = f"The run had not ended when this page was written: it goes on, or it was killed. {counts}"
        return RunVerdict("unfinished", "Not finished", sentence)
    if failed:
        return RunVerdict("failed", "Failed", counts + stopped)
    if stopped or outcomes["unfinished"]:
        return RunVerdict("unfinished", "Stopped early", counts + stopped)
    if document["failed"]:
        sentence = f"No test failed, but the exit status is {document['exit_status']}; the notes may say why."
        return RunVerdict("failed", "Failed", sentence)
    if not passed:
        return RunVerdict("nothing", "Nothing was checked", counts)
    return RunVerdict("passed", "Passed, as far as it was checked" if skipped else "Passed", counts)


def not_checked(document: Document) -> Iterator[tuple[str, str, list[str]]]:
    """Yield what was not checked, why, and the tests that this is about; first come those without a verdict."""
    without: dict[tuple[str, str], list[str]] = {}
    default = "the run ended before" if document["state"] == "ended" else "so it was when this was written"
    for test in document["tests"]:
        if test["outcome"] in ("skipped", "unfinished"):
            what = f"{test['ending']} ({test['family']})"
            without.setdefault((what, reason_of(test["message"]) or default), []).append(test["test"])
    yield from ((what, reason, tests) for (what, reason), tests in without.items())
    yield from ((entry["what"], entry["reason"], entry["tests"]) for entry in document["not_checked"])


def claim_rows(document: Document) -> list[dict[str, Any]]:
    """Return a row for each check; a user's own has no other claim than its name.

    ``compared`` says how much of what, such as "570 tensors", and ``endings`` how its runs have ended. ``kind`` is
    *passed* only if all of them have passed.
    """
    every: list[tuple[Mapping[str, Any], Document]] = []
    for tests in grouped(document["tests"], lambda test: str(test["test"]).partition("[")[0]).values():
        # A test that has not come to its checks would have made those of the other tests of its function.
        checks = {result["check"]: result | _NO_RESULT for test in tests for result in test["results"]}
        for test in tests:
            missing = () if test["outcome"] == "passed" else checks.values()
            every += [(result, test) for result in test["results"] or missing]
    # A command's report has only the tests that have ended.
    is_whole = document["command"] == "pytest" or (document["state"] == "ended" and not document["stopped"])
    rows = []
    for check, runs in grouped(every, lambda run: run[0]["check"]).items():
        kinds, words = zip(*(ending_of(*run) for run in runs), strict=True)
        endings = {"passed": 0, "failed": 0, **Counter(words)}
        compared: Counter[str] = Counter()
        for result, _ in runs:
            compared[result["unit"]] += result["compared"]
        row = {"check": check, "claim": next((result["claim"] for result, _ in runs if result["claim"]), check)}
        row["kind"] = max(*kinds, "passed" if is_whole else "undecided", key=KINDS.index)
        row["compared"] = ", ".join(f"{count:,} {unit}" for unit, count in compared.items() if count) or "nothing"
        row["endings"] = ", ".join(f"{count} {ending}" for ending, count in endings.items())
        rows.append(row)
    return rows


_NO_RESULT = {"outcome": "no result", "compared": 0}
