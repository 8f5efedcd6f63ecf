"""What the first screen says: whether the run passed, and what it gave no verdict on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from starpullm.report.document import Document, grouped
from starpullm.report.failures import reason_of

_NOTHING_COLLECTED = 5  # pytest's exit status
_NOT_COMPARABLE = 3  # that of starpullm parity


class Verdict(NamedTuple):
    """The verdict on a run: ``kind`` is ``passed``, ``failed``, ``unfinished`` or ``nothing``."""

    kind: str
    word: str
    sentence: str


def verdict_of(document: Document) -> Verdict:
    """Return the verdict; only a run that has ended, has passed tests and no failed ones is called passed."""
    outcomes = Counter(test["outcome"] for test in document["tests"])
    passed, failed, skipped = (outcomes[name] for name in ("passed", "failed", "skipped"))
    so_far = f"So far {_tests(passed)} passed and {failed} failed."
    stopped = [f"The run was stopped: {document['stopped']}."] if document["stopped"] else []
    if document["state"] == "running":
        sentence = f"The run had not ended when this page was written: it goes on, or it was killed. {so_far}"
        return Verdict("unfinished", "Not finished", sentence)
    if failed:
        return Verdict("failed", "Failed", " ".join([f"{failed} of {_tests(outcomes.total())} failed.", *stopped]))
    if stopped:
        return Verdict("unfinished", "Stopped early", " ".join([so_far, *stopped]))
    if document["exit_status"] not in (0, None, _NOTHING_COLLECTED, _NOT_COMPARABLE):
        sentence = f"No test failed, but the exit status is {document['exit_status']}; the notes may say why."
        return Verdict("failed", "Failed", sentence)
    if not passed:
        sentence = f"{_tests(skipped)} gave no verdict." if skipped else "No test ran."
        return Verdict("nothing", "Nothing was checked", sentence)
    if skipped:
        sentence = f"{_tests(passed)} passed, none failed; {skipped} gave no verdict."
        return Verdict("passed", "Passed, as far as it was checked", sentence)
    return Verdict("passed", "Passed", f"All {_tests(passed)} passed.")


def _tests(count: int) -> str:
    return f"{count:,} test{'' if count == 1 else 's'}"


def not_checked(document: Document) -> Iterator[tuple[str, str, list[str]]]:
    """Yield what was not checked, why, and the tests that this is about; first come tests that were skipped."""
    skipped: dict[tuple[str, str], list[str]] = {}
    for test in document["tests"]:
        if test["outcome"] == "skipped":
            words = {result["outcome"] for result in test["results"]} & {"not comparable", "inconclusive"}
            word = ", ".join(sorted(words)) or "skipped"
            skipped.setdefault((f"{word} ({test['family']})", reason_of(test["message"])), []).append(test["test"])
    yield from ((what, reason, tests) for (what, reason), tests in skipped.items())
    yield from ((entry["what"], entry["reason"], entry["tests"]) for entry in document["not_checked"])


def claim_rows(document: Document) -> list[dict[str, Any]]:
    """Return a row for each check that gave a result; a user's own has no other claim than its name.

    ``compared`` says how much of what, such as "570 tensors".
    """
    every = [result for test in document["tests"] for result in test["results"]]
    rows = []
    for check, results in grouped(every, lambda result: result["check"]).items():
        outcomes = Counter(result["outcome"] for result in results)
        passed, failed = outcomes["passed"], outcomes["failed"]
        compared: Counter[str] = Counter()
        for result in results:
            compared[result["unit"]] += result["compared"]
        row = {"check": check, "claim": results[0]["claim"] or check, "passed": passed, "failed": failed}
        row["undecided"] = len(results) - passed - failed
        rows.append({**row, "compared": ", ".join(f"{count:,} {unit}" for unit, count in compared.items())})
    return rows
