"""What the first screen says: whether the run passed, and what it gave no verdict on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from starpullm.report.document import Document
from starpullm.report.failures import reason_of
from starpullm.report.left_out import NOT_REACHED
from starpullm.report.throughput import speeds_of


@dataclass(frozen=True)
class Verdict:
    """The verdict on a run: ``kind`` is ``passed``, ``failed``, ``unfinished`` or ``nothing``."""

    kind: str
    word: str
    sentence: str
    counts: Mapping[str, int]
    """Tests by outcome: passed, failed, skipped, not reached."""


def verdict_of(document: Document) -> Verdict:
    """Return the verdict; only a run that has ended, has passed tests and no failed ones is called passed."""
    outcomes = Counter(test["outcome"] for test in document["tests"])
    passed, failed, skipped = (outcomes[name] for name in ("passed", "failed", "skipped"))
    not_reached = sum(len(entry["tests"]) for entry in document["not_checked"] if entry["what"] == NOT_REACHED)
    counts = {"passed": passed, "failed": failed, "skipped": skipped, "not reached": not_reached}
    of_all = f"{failed} of {_tests(len(document['tests']))} failed"
    so_far = f"So far {_tests(passed)} passed and {failed} failed."
    if document["runs"] and (verdict := _verdict_on_runs(document, counts, so_far)):
        return verdict
    if document["state"] == "running":
        return Verdict(
            "unfinished",
            "Not finished",
            f"The run had not ended when this page was written: it goes on, or it was killed. {so_far}",
            counts,
        )
    stopped = document["stopped"]
    if failed or _measurements_failed(document):
        more = f" {_measurements_failed(document)}" if _measurements_failed(document) else ""
        sentence = f"{of_all}.{more}" if document["tests"] else more.strip()
        return Verdict("failed", "Failed", _with_reason(sentence, stopped), counts)
    if stopped:
        return Verdict("unfinished", "Stopped early", _with_reason(so_far, stopped), counts)
    if document["exit_status"] not in (0, None, _NOTHING_COLLECTED, _NOT_COMPARABLE):
        sentence = f"No test failed, but the exit status is {document['exit_status']}; the notes may say why."
        return Verdict("failed", "Failed", sentence, counts)
    if not passed and not any("failure" not in entry for entry in document["throughput"]):
        sentence = f"{_tests(skipped)} gave no verdict." if skipped else "No test ran."
        return Verdict("nothing", "Nothing was checked", sentence, counts)
    if skipped:
        return Verdict(
            "passed",
            "Passed, as far as it was checked",
            f"{_tests(passed)} passed, none failed; {skipped} gave no verdict.",
            counts,
        )
    if not passed:
        return _verdict_on_speeds(document, counts)
    return Verdict("passed", "Passed", f"All {_tests(passed)} passed.", counts)


def _verdict_on_runs(document: Document, counts: Mapping[str, int], so_far: str) -> Verdict | None:
    """Return the verdict on several runs if one of them failed or has no result; None if all have one."""
    outcomes = Counter(run["outcome"] for run in document["runs"])
    total = len(document["runs"])
    words = {"failed": "failed", "did not end": "did not end", "nothing compared": "compared nothing"}
    said = [f"{outcomes[name]} of {total} runs {text}." for name, text in words.items() if outcomes[name]]
    if outcomes["failed"] or counts["failed"] or _measurements_failed(document):
        tests = [f"{counts['failed']} of {_tests(len(document['tests']))} failed."] if counts["failed"] else []
        measurements = [_measurements_failed(document)] if _measurements_failed(document) else []
        return Verdict("failed", "Failed", " ".join([*tests, *measurements, *said]), counts)
    return Verdict("unfinished", "Incomplete", " ".join([*said, so_far]), counts) if said else None


def _verdict_on_speeds(document: Document, counts: Mapping[str, int]) -> Verdict:
    speeds = speeds_of(document)
    noisy = sum(bool(speed.noise) for speed in speeds)
    many = f"{len(speeds)} configuration{'s were' if len(speeds) > 1 else ' was'} measured"
    if noisy:
        which = f"{noisy} of them " if len(speeds) > 1 else ""
        busy = f"{which}while the machine was busy with something else"
        sentence = f"{many}, {busy}; the table says how much the figures vary."
        return Verdict("unfinished", "Measured within noise", sentence, counts)
    return Verdict("passed", "Measured", f"{many}.", counts)


_NOTHING_COLLECTED = 5  # pytest's exit status
_NOT_COMPARABLE = 3  # that of starpullm parity


def _measurements_failed(document: Document) -> str:
    failed = sum("failure" in entry for entry in document["throughput"])
    return f"{failed} of {len(document['throughput'])} measurements failed." if failed else ""


def _with_reason(sentence: str, stopped: str | None) -> str:
    return f"{sentence} The run was stopped: {stopped}." if stopped else sentence


def _tests(count: int) -> str:
    return f"{count:,} test{'' if count == 1 else 's'}"


def not_checked(document: Document) -> Iterator[tuple[str, str, list[str]]]:
    """Yield what was not checked, why, and the tests that this is about.

    First come runs without a complete result, then tests that were skipped.
    """
    runs = {run["name"] for run in document["runs"]}
    for entry in document["not_checked"]:
        if entry["what"] in runs:
            yield entry["what"], entry["reason"], entry["tests"]
    skipped: dict[tuple[str, str], list[str]] = {}
    for test in document["tests"]:
        if test["outcome"] == "skipped":
            words = {result["outcome"] for result in test["results"]} & {"not comparable", "inconclusive"}
            word = ", ".join(sorted(words)) or "skipped"
            skipped.setdefault((f"{word} ({test['family']})", reason_of(test["message"])), []).append(test["test"])
    for (what, reason), tests in skipped.items():
        yield what, reason, tests
    for entry in document["not_checked"]:
        if entry["what"] not in runs:
            yield entry["what"], entry["reason"], entry["tests"]


@dataclass(frozen=True)
class ClaimRow:
    """A check over all its runs; ``compared`` says how much of what, such as "570 tensors"."""

    check: str
    claim: str
    passed: int
    failed: int
    undecided: int
    compared: str


def claim_rows(document: Document) -> list[ClaimRow]:
    """Return a row for each check that gave a result; a user's own has no other claim than its name."""
    checks: dict[str, list[dict[str, Any]]] = {}
    for test in document["tests"]:
        for result in test["results"]:
            checks.setdefault(result["check"], []).append(result)
    rows = []
    for check, results in checks.items():
        outcomes = Counter(result["outcome"] for result in results)
        passed, failed = outcomes["passed"], outcomes["failed"]
        compared: Counter[str] = Counter()
        for result in results:
            compared[result["unit"]] += result["compared"]
        text = ", ".join(f"{count:,} {unit}" for unit, count in compared.items())
        claim = results[0]["claim"] or check
        rows.append(ClaimRow(check, claim, passed, failed, len(results) - passed - failed, text))
    return rows
