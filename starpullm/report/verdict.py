"""What the first screen says: whether the run passed, what it compared, and what it gave no verdict on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from starpullm.report.document import Document
from starpullm.report.left_out import NOT_REACHED


class Claim(NamedTuple):
    """What a check is about: what must hold, what is wrong if it doesn't, and what the check counts."""

    holds: str
    fault: str
    unit: str


CLAIMS: Mapping[str, Claim] = {
    "parity": Claim(
        "every tensor of every step has the bits of llm.c", "tensors have other bits than llm.c's", "tensors"
    ),
    "shared buffers": Claim(
        "blocks that share buffers give the same bits", "blocks that share buffers give other bits", "tensors"
    ),
    "resumed run": Claim(
        "a resumed run has the bits of an uninterrupted one", "a resumed run has other bits", "tensors"
    ),
    "accesses": Claim(
        "tasks access what they declare and nothing else", "tasks don't access what they declare", "tasks"
    ),
    "poison": Claim("nothing is read before it is written", "memory is read before it is written", "tasks"),
    "runtime graph": Claim(
        "StarPU's graph is the one that the accesses require", "StarPU's graph lacks or adds edges", "required edges"
    ),
    "observed order": Claim(
        "tasks ran in the order that the accesses require", "tasks ran too early", "required edges"
    ),
    "handle reuse": Claim(
        "reused buffers don't lengthen the critical path", "reused buffers lengthen the critical path", "added edges"
    ),
    "perturbation": Claim("delays and schedulers change no bit", "a delay or a scheduler changes bits", "tensors"),
    "gradient error": Claim(
        "every gradient is within the error bound of its sum", "gradients are beyond their error bounds", "elements"
    ),
    "bit stability": Claim(
        "reductions have the same bits on all placements", "a reduction has other bits on another placement", "tensors"
    ),
    "losses of ranks": Claim("all ranks report the same losses", "ranks report different losses", "series"),
    "memory growth": Claim(
        "memory doesn't grow, whatever is repeated", "memory grows with what is repeated", "allocations"
    ),
    "scarce memory": Claim(
        "an allocation that fails is told and leaves nothing",
        "an allocation that fails is told wrongly, or leaves something",
        "failed allocations",
    ),
    "graph cost": Claim("the task graph is no more expensive", "the task graph is more expensive", "numbers"),
}
"""By the name of a check's result."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a run: ``kind`` is ``passed``, ``failed``, ``unfinished`` or ``nothing``."""

    kind: str
    word: str
    sentence: str
    counts: Mapping[str, int]
    """Tests by outcome: passed, failed, skipped, not reached."""


@dataclass(frozen=True)
class CheckRow:
    """A row of the table of what was checked: one check over all its runs."""

    claim: str
    name: str
    passed: int
    failed: int
    undecided: int
    compared: int
    unit: str


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
    if not document["tests"] and document["mutation"]:
        return _verdict_on_mutants(document["mutation"], counts)
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
        return Verdict("passed", "Measured", f"{len(document['throughput'])} configurations were measured.", counts)
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


def _verdict_on_mutants(rows: list[dict[str, Any]], counts: Mapping[str, int]) -> Verdict:
    mutants, caught, still_open = (sum(row[name] for row in rows) for name in ("mutants", "caught", "open"))
    sentence = f"{caught:,} of {mutants:,} mutants were caught; {still_open:,} are open."
    if still_open or not mutants:
        return Verdict("unfinished", "Open mutants" if still_open else "No mutant was tried", sentence, counts)
    return Verdict("passed", "No open mutant", sentence, counts)


_NOTHING_COLLECTED = 5  # pytest's exit status
_NOT_COMPARABLE = 3  # that of starpullm parity


def _measurements_failed(document: Document) -> str:
    failed = sum("failure" in entry for entry in document["throughput"])
    return f"{failed} of {len(document['throughput'])} measurements failed." if failed else ""


def _with_reason(sentence: str, stopped: str | None) -> str:
    return f"{sentence} The run was stopped: {stopped}." if stopped else sentence


def _tests(count: int) -> str:
    return f"{count:,} test{'' if count == 1 else 's'}"


def check_rows(document: Document) -> list[CheckRow]:
    """Return a row for each check that gave a result, in the order of the documentation."""
    results: dict[str, list[dict[str, Any]]] = {}
    for test in document["tests"]:
        for result in test["results"]:
            results.setdefault(result["name"], []).append(result)
    order = {name: number for number, name in enumerate(CLAIMS)}
    rows = []
    for name in sorted(results, key=lambda name: (order.get(name, len(order)), name)):
        claim = CLAIMS.get(name, Claim(name, name, "comparisons"))
        outcomes = Counter(result["outcome"] for result in results[name])
        rows.append(
            CheckRow(
                claim=claim.holds,
                name=name,
                passed=outcomes["passed"],
                failed=outcomes["failed"],
                undecided=sum(outcomes.values()) - outcomes["passed"] - outcomes["failed"],
                compared=sum(_compared(result) for result in results[name]),
                unit=claim.unit,
            )
        )
    return rows


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
            skipped.setdefault((f"{word} ({test['family']})", _first_line(test["message"])), []).append(test["test"])
    for (what, reason), tests in skipped.items():
        yield what, reason, tests
    for entry in document["not_checked"]:
        if entry["what"] not in runs:
            yield entry["what"], entry["reason"], entry["tests"]


def _compared(result: Mapping[str, Any]) -> int:
    found: int = result["tensors"] if result["name"] == "parity" else result.get("compared", 0)
    return found


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
