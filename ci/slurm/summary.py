"""One summary of the jobs of a results folder: what ran, what it found, and what did not run to its end.

Usage: summary.py RESULTS. It writes RESULTS/summary.json (version 1) and prints the same as text. It uses nothing but
Python's standard library, and the records that job.sh and submit.sh have written.

Exit status: 0 everything ran and passed; 1 a check failed; 2 bad usage, or nothing was compared; 3 not comparable, as
with a BLAS; 4 a job did not run to its end.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

VERSION = 1
PASSED, FAILED, NOTHING, NOT_COMPARABLE, NOT_ENDED = range(5)
_WORDS = ("passed", "failed", "nothing compared", "not comparable", "did not run to its end")
_WORST_FIRST = (FAILED, NOT_ENDED, NOTHING, NOT_COMPARABLE, PASSED)
# Exit statuses of pytest and of starpullm; all others, and signals (128 and more), mean that a program has crashed.
_PYTEST = {0: PASSED, 1: FAILED, 4: NOTHING, 5: NOTHING}
_PARITY = {0: PASSED, 1: FAILED, 2: NOTHING, 3: NOT_COMPARABLE}
_SLURM_SECONDS = 30
# What job.sh writes as the status of a part that it has ended at the time limit; and of parts without a status.
_LIMIT, _MISSING, _NOT_BEGUN = "limit", "missing", "not begun"
_TAIL_LINES = 8
_MOST_FAILURES = 20


def main(folder: Path) -> int:
    """Summarise a results folder and return the exit status."""
    try:
        expected = [line.split() for line in (folder / "jobs").read_text("utf-8").splitlines()]
    except OSError as error:
        print(f"summary: {folder}: expected the results folder of submit.sh: {error.strerror}", file=sys.stderr)
        return NOTHING
    jobs = [job_summary(folder, name, number) for name, number in expected]
    worst = next(outcome for outcome in _WORST_FIRST if outcome in [PASSED, *(job["outcome"] for job in jobs)])
    if not jobs:
        worst = NOTHING
    summary = {"version": VERSION, "status": worst, "meaning": _WORDS[worst], "jobs": jobs}
    temporary = folder / ".summary.tmp"
    temporary.write_text(json.dumps(summary, indent=1), "utf-8")
    temporary.rename(folder / "summary.json")
    print(f"{_WORDS[worst]} ({len(jobs)} jobs)")
    for job in jobs:
        print(*job_lines(job), sep="\n")
    return worst


def job_summary(folder: Path, name: str, number: str) -> dict[str, Any]:
    """Return what a job did; `outcome` is an exit status."""
    own = folder / name
    record = text_of(own / "job").split()
    names = [*text_of(own / "parts").split(), *(path.stem for path in sorted(own.glob("*.log")))]
    state, reason = slurm_state(number)
    ended = (own / "status").is_file()
    parts = [part_summary(own, part) for part in dict.fromkeys(names)]
    outcomes = [part["outcome"] for part in parts]
    if not ended or not parts:
        outcomes.append(NOT_ENDED)
    job = {
        "name": name,
        "id": number,
        "nodes": record[2] if len(record) == 3 else "",
        "restarts": int(record[1]) if len(record) == 3 else 0,
        "slurm_state": state,
        "slurm_reason": reason,
        "queue": next((line for line in text_of(folder / "queue").splitlines() if line.startswith(f"{name} ")), ""),
        "outcome": next(outcome for outcome in _WORST_FIRST if outcome in outcomes),
        "parts": parts,
    }
    job["meaning"] = job_meaning(job, started=bool(record), ended=ended)
    for part in parts:
        part["ending"] = part_ending(part["status"], state)
    return job


def job_meaning(job: dict[str, Any], *, started: bool, ended: bool) -> str:
    """Return a sentence about how a job ended."""
    state = f"Slurm: {job['slurm_state']}" + (f", {job['slurm_reason']}" if job["slurm_reason"] else "")
    if ended:
        return _WORDS[job["outcome"]]
    if not started:
        return f"never started: {job['queue'].removeprefix(job['name'] + ' ') or state}"
    if any(part["status"] == _LIMIT for part in job["parts"]):
        return f"ended at its time limit ({state})"
    return f"{_WORDS[NOT_ENDED]} ({state})"


def part_ending(status: str, state: str) -> str:
    """Return how a command of a job ended."""
    words = {
        _LIMIT: "ended at the time limit",
        _NOT_BEGUN: "not begun, because the job had ended",
        _MISSING: f"no exit status (Slurm: {state})",
    }
    return words.get(status, f"exit status {status}")


def part_summary(own: Path, name: str) -> dict[str, Any]:
    """Return what a command of a job did: its exit status, and the tests that it has reported."""
    begun = (own / f"{name}.log").exists()
    status = text_of(own / f"{name}.status").strip() or (_MISSING if begun else _NOT_BEGUN)
    meanings = _PARITY if name.startswith("ranks-") else _PYTEST
    outcome = meanings.get(int(status), NOT_ENDED) if status.isdigit() else NOT_ENDED
    part: dict[str, Any] = {"name": name, "status": status, "outcome": outcome}
    report = None
    folder = own / f"{name}.report"
    with suppress(OSError, ValueError):
        report = json.loads((folder / "report.json").read_text("utf-8"))
    if folder.is_dir():
        part["report"] = f"{own.name}/{folder.name}"
    if report is not None:
        tests = report.get("tests", [])
        counts = Counter(test["outcome"] for test in tests)
        part["tests"] = {kind: counts[kind] for kind in ("passed", "failed", "skipped", "unfinished")}
        part["endings"] = Counter(ending for test in tests if (ending := test.get("ending", "")) not in ("", *counts))
        part["failures"] = [failure_text(test) for test in tests if test["outcome"] == "failed"][:_MOST_FAILURES]
        if outcome == PASSED and (counts["unfinished"] or not counts["passed"]):
            part["outcome"] = NOT_ENDED if counts["unfinished"] else NOTHING
    elif outcome == PASSED:
        part["outcome"] = NOTHING  # what has passed has a report
    if part["outcome"] != PASSED:
        part["log_end"] = text_of(own / f"{name}.log").splitlines()[-_TAIL_LINES:]
    else:
        part["last_line"] = next(iter(text_of(own / f"{name}.log").splitlines()[-1:]), "")
    return part


def job_lines(job: dict[str, Any]) -> list[str]:
    """Return the text about a job."""
    where = f" on {job['nodes']}" if job["nodes"] else ""
    again = f", run again {job['restarts']} times" if job["restarts"] else ""
    lines = ["", f"{job['name']} (job {job['id']}{where}{again}): {job['meaning']}"]
    for part in job["parts"]:
        lines.append(f"  {part['name']}: {_WORDS[part['outcome']]}, {part['ending']}")
        if "tests" in part:
            endings = ", ".join(f"{count} {ending}" for ending, count in part["endings"].items())
            counts = ", ".join(f"{count} {kind}" for kind, count in part["tests"].items())
            lines.append(f"    tests: {counts}" + (f" ({endings})" if endings else ""))
        lines += [f"    {line}" for line in (*part.get("failures", ()), *part.get("log_end", ()))]
        if part.get("last_line"):
            lines.append(f"    {part['last_line']}")
        if "report" in part:
            lines.append(f"    report: {part['report']}")
    return lines


def slurm_state(number: str) -> tuple[str, str]:
    """Return a job's state and its reason: from the controller, which forgets a job in minutes, or from accounting."""
    shown = slurm_output("scontrol", "show", "job", "--oneliner", number)
    state, reason = (re.search(rf"\b{name}=(\S+)", shown) for name in ("JobState", "Reason"))
    if state:
        return state[1], "" if reason is None or reason[1] == "None" else reason[1]
    lines = slurm_output("sacct", "-n", "-P", "-X", "-j", number, "-o", "State").split("\n")
    return lines[0] or "unknown", ""


def slurm_output(*command: str) -> str:
    """Return what a command of Slurm's prints; nothing if it fails or isn't there."""
    if shutil.which(command[0]) is None:
        return ""
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SLURM_SECONDS, check=False)
        return done.stdout if done.returncode == 0 else ""
    return ""


def text_of(path: Path) -> str:
    """Return a file's text, empty if there is none."""
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""


def failure_text(test: dict[str, Any]) -> str:
    """Return a failed test's checks, configuration and reason; a test without a check has its own name."""
    every = test.get("results", [])
    results = [result for result in every if result["outcome"] in ("failed", "no result")]
    if results and results[0]["sentence"]:
        return str(results[0]["lines"][0])
    checks = ", ".join(dict.fromkeys(result["check"] for result in results or every))
    name = f"{checks} on {test['configuration']}" if checks else test["test"]
    lines = [line for line in test.get("message", "").splitlines() if line.strip(" |+-")] or [""]
    errors = [line.removeprefix("E").strip() for line in lines if line.startswith("E  ")]
    reason = lines[-1 if "Traceback (most recent call last)" in lines[0] else 0].strip(" |")
    return f"{name}: {errors[0] if errors else reason}"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print("usage: summary.py RESULTS", file=sys.stderr)
        sys.exit(NOTHING)
    sys.exit(main(Path(sys.argv[1])))
