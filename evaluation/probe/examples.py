"""Runs the probe over StarPU's own examples, or with ``--tests`` over its own tests.

``python -m evaluation.probe.examples`` after ``evaluation/probe/build_examples.sh``; a part of a name chooses some of
them. Each program is probed several times, with other seeds each time. What is known is kept in a file after each time,
so an interrupted call goes on where it was, and says at its end how many programs have which verdict. Tests that fail
without the probe, or take long, aren't probed; the others are in the order of their times.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from starpullm.errors import StarpullmError
from starpullm.probe import probe_program
from starpullm.probe.probe_schedules import machine_variables
from starpullm.probe.program import run_program

from .built import EXAMPLES, Example, examples, lock_results, prepare_environment

RESULTS = EXAMPLES / "results.json"
RESULTS_OF_TESTS = EXAMPLES / "tests.json"
WORKERS = 4
TIME_LIMIT = 60.0
MOST_SECONDS = 20.0
"""Of a test without the probe."""
RUNS = 3
"""In perturbed schedules, the first time that a program is probed; in one schedule the other times."""
TIMES = 10

Row = dict[str, Any]


def judge(example: Example, seed: int, runs: int) -> Row:
    """Probe a program once, and return what was found."""
    start = time.monotonic()
    try:
        result = probe_program(example.command(), runs=runs, seed=seed, workers=WORKERS, time_limit=TIME_LIMIT)
    except StarpullmError as error:
        return {"verdict": "refused", "details": [str(error).partition(": ")[2]]}
    return {
        "verdict": result.sentence.partition(":")[0],
        "seconds": (time.monotonic() - start) / (result.runs + 1),
        "tasks": result.num_tasks,
        "compared": result.compared,
        "tolerated": result.tolerated,
        "unseen": list(result.unseen),
        "details": [*map(str, result.findings), *result.last_moments[:12]],
        "notes": list(map(str, result.notes)),
    }


def bare_run(example: Example) -> Row:
    """Return the time of a run without the probe, and how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        ending = run_program(example.command(), machine_variables(WORKERS), TIME_LIMIT, Path(folder, "logs"))
    return {"bare": ending.seconds, "bare_status": ending.status, "bare_ending": str(ending), "times": {}}


def is_refused(row: Row) -> bool:
    """Return whether the probe has no verdict on a program."""
    return any(time_["verdict"] == "refused" for time_ in row["times"].values())


def summary(rows: Mapping[str, Row]) -> str:
    """Return in a sentence how many programs have which verdict."""
    judged = [row for row in rows.values() if row["times"] and not is_refused(row)]
    same = sum(all(one["verdict"] == "same" for one in row["times"].values()) for row in judged)
    often = Counter(len(row["times"]) for row in judged)
    times = ", ".join(f"{count} of them {number} times" for number, count in sorted(often.items(), reverse=True))
    refused = sum(map(is_refused, rows.values()))
    verdicts = Counter(one["verdict"] for row in judged for one in row["times"].values())
    found = f"{len(judged)} programs have a verdict ({times}), {same} are same each time; {refused} are refused."
    return f"{found} All verdicts: {dict(verdicts)}"


def probe_again(example: Example, row: Row, times: int) -> Iterator[tuple[str, Row]]:
    """Probe a program until it has been probed so often; a refusal isn't repeated. Yield each seed and result."""
    for number in range(times):
        seed = str(1 + number * RUNS)
        if seed not in row["times"] and not is_refused(row):
            yield seed, judge(example, int(seed), RUNS if number == 0 else 1)


class Results:
    """What is known of all programs, in a file."""

    def __init__(self, path: Path, programs: Sequence[Example]) -> None:
        known = json.loads(path.read_text()) if path.exists() else {}
        self.rows: dict[str, Row] = {one.name: known[one.name] for one in programs if one.name in known}
        self._path = path
        self._lock = threading.Lock()

    def short_tests(self, tests: Sequence[Example], end: float) -> list[Example]:
        """Run each test without the probe; return those that pass and aren't slow, the shortest first."""
        for test in tests:
            if test.name not in self.rows and time.monotonic() < end:
                self.rows[test.name] = bare_run(test)
                _write(self._path, json.dumps(self.rows, indent=1))
        rows = {test.name: self.rows.get(test.name, {"bare_status": None}) for test in tests}
        passed = [one for one in tests if rows[one.name]["bare_status"] == 0 and rows[one.name]["bare"] < MOST_SECONDS]
        endings = Counter(row["bare_ending"] for row in rows.values() if "bare_ending" in row)
        print(f"{len(tests)} tests: {dict(endings)}; {len(passed)} are short enough")
        return sorted(passed, key=lambda one: float(rows[one.name]["bare"]))

    def add(self, example: Example, times: int, end: float) -> None:
        """Probe a program until it has been probed so often, unless it is too late to start."""
        if time.monotonic() > end:
            return
        row = self.rows.get(example.name) or bare_run(example)
        for seed, found in probe_again(example, row, times):
            said = (found["verdict"], found.get("tasks", 0), *found["details"][:3])
            print(example.name, *said, sep=" | ", flush=True)
            with self._lock:
                row["times"][seed] = found
                self.rows[example.name] = row
                _write(self._path, json.dumps(self.rows, indent=1))


def main() -> None:
    """Probe the programs whose names contain a text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="parts of the names of programs; default: all")
    parser.add_argument("--times", type=int, default=TIMES, help="how often each program is probed")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start nothing after so many minutes")
    parser.add_argument("--jobs", type=int, default=1, help="programs that are probed at the same time")
    parser.add_argument("--again", action="store_true", help="forget what is known of these programs")
    parser.add_argument("--tests", action="store_true", help="StarPU's tests instead of its examples")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    prepare_environment()
    lock_results()
    programs = list(examples("tests" if options.tests else "examples"))
    results = Results(RESULTS_OF_TESTS if options.tests else RESULTS, programs)
    chosen = [one for one in programs if not options.parts or any(part in one.name for part in options.parts)]
    if options.again:
        for example in chosen:
            results.rows.pop(example.name, None)
    if options.tests:
        chosen = results.short_tests(chosen, end)
    with ThreadPoolExecutor(options.jobs) as pool:
        for times in range(1, options.times + 1):  # one more time for all of them, so that all are judged soon
            waiting = [pool.submit(results.add, example, times, end) for example in chosen]
            for future in waiting:
                future.result()
    print(summary(results.rows))


def _write(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text)
    unfinished.rename(path)


if __name__ == "__main__":
    main()
