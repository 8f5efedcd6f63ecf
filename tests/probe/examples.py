"""Runs the probe over StarPU's own examples, and writes a page.

``python -m tests.probe.examples`` after ``tests/probe/build_examples.sh``; a part of a name chooses some of them. Each
program is probed several times, with other seeds each time. What is known is kept in a file after each time, so an
interrupted call goes on where it was, and the page shows all of it.
"""

from __future__ import annotations

import argparse
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from starpullm.errors import StarpullmError
from starpullm.probe import probe_program
from starpullm.probe.program import run_program
from starpullm.probe.schedules import machine_variables

from .built import EXAMPLES, Example, examples, lock_results, place, prepare_environment
from .looked_into import REFUSALS, SEEN

RESULTS = EXAMPLES / "results.json"
PAGE = EXAMPLES / "programs.md"
WORKERS = 4
TIME_LIMIT = 60.0
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
        "unseen": result.unseen,
        "details": [*map(str, result.findings), *result.last_moments[:12]],
        "notes": list(map(str, result.notes)),
    }


def bare_run(example: Example) -> Row:
    """Return the time of a run without the probe, and how it ended."""
    ending = run_program(example.command(), machine_variables(WORKERS), TIME_LIMIT)
    return {"bare": ending.seconds, "bare_ending": str(ending), "times": {}}


def is_refused(row: Row) -> bool:
    """Return whether the probe has no verdict on a program."""
    return any(time_["verdict"] == "refused" for time_ in row["times"].values())


def text_of(detail: str) -> str:
    """Return the beginning of a sentence, as a cell of a table, without the folder of the source package."""
    return re.sub(r"\s+", " ", re.sub(r"/\S*/source/", "", detail))[:300].replace("|", "\\|")


def judged_lines(rows: Mapping[str, Row]) -> Iterator[str]:
    """Yield the table of programs with a verdict."""
    yield "| program | tasks | contents compared | verdict | times, alarms | bare | probe | what was found |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, row in sorted(rows.items()):
        times = list(row["times"].values())
        if not times or is_refused(row):
            continue
        alarms = [one for one in times if one["verdict"] != "same"]
        shown = (alarms or times)[0]
        text = text_of(shown["details"][0]) if shown["details"] else ""
        tolerated = sum(one["tolerated"] for one in times)
        if tolerated:
            text = f"{tolerated} contents differ because of accesses whose order is free. {text}"
        seconds = sum(one["seconds"] for one in times) / len(times)
        compared = sum(one["compared"] for one in times)
        cells = (name, shown["tasks"], compared, shown["verdict"], f"{len(times)}, {len(alarms)}")
        yield "| " + " | ".join(map(str, (*cells, f"{row['bare']:.2f}", f"{seconds:.2f}", text))) + " |"


def refused_lines(rows: Mapping[str, Row]) -> Iterator[str]:
    """Yield the table of refused programs, and whether that is right."""
    yield "| program | what the probe says | is that right? |"
    yield "|---|---|---|"
    for name, row in sorted(rows.items()):
        if is_refused(row):
            said = next(one for one in row["times"].values() if one["verdict"] == "refused")
            reason = next((why for part, why in REFUSALS.items() if re.search(part, name)), "not looked into")
            yield f"| {name} | {text_of(said['details'][0])} | {reason} |"


def page(rows: Mapping[str, Row], where: str) -> str:
    """Return the page with all results."""
    judged = {name: row for name, row in rows.items() if row["times"] and not is_refused(row)}
    same = sum(all(one["verdict"] == "same" for one in row["times"].values()) for row in judged.values())
    times = Counter(len(row["times"]) for row in judged.values())
    probed = ", ".join(f"{count} of them {often} times" for often, count in sorted(times.items(), reverse=True))
    lines = [
        "# The probe on StarPU's own examples",
        "",
        "<!-- made by python -m tests.probe.examples -->",
        "",
        f"{where}, {WORKERS} workers,",
        f"{time.strftime('%Y-%m-%d')}. Each time that a program is probed it runs twice in the reference schedule, "
        f"once with poison and in perturbed schedules: {RUNS} the first time, then one each. Programs below",
        "`mpi/` and `stencil/` run as 2 ranks under mpirun, some as 4. Contents compared are those of all times",
        "together. Times are seconds of one run: bare, and on average under the probe. The machine was shared, so they",
        "show only the order of magnitude. *Times, alarms*: how often it was probed, how often it wasn't *same*.",
        "",
        f"{len(judged)} programs have a verdict ({probed}): {same} are *same* each time, {len(judged) - same} aren't.",
        f"{sum(map(is_refused, rows.values()))} programs are refused.",
        "",
        *judged_lines(rows),
        "",
        "What a look by hand has shown of the alarms:",
        "",
        *(f"- `{name}`: {text}" for name, text in SEEN.items() if name in rows),
        "",
        "## Refused",
        "",
        *refused_lines(rows),
    ]
    return "\n".join(lines) + "\n"


def probe_again(example: Example, row: Row, times: int) -> Iterator[tuple[str, Row]]:
    """Probe a program until it has been probed so often; a refusal isn't repeated. Yield each seed and result."""
    for number in range(times):
        seed = str(1 + number * RUNS)
        if seed not in row["times"] and not is_refused(row):
            yield seed, judge(example, int(seed), RUNS if number == 0 else 1)


class Results:
    """What is known of all programs, in a file."""

    def __init__(self) -> None:
        known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        self.rows: dict[str, Row] = {one.name: known[one.name] for one in examples() if one.name in known}
        self._lock = threading.Lock()

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
                _write(RESULTS, json.dumps(self.rows, indent=1))


def main() -> None:
    """Probe the programs whose names contain a text, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="parts of the names of programs; default: all")
    parser.add_argument("--times", type=int, default=TIMES, help="how often each program is probed")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start nothing after so many minutes")
    parser.add_argument("--jobs", type=int, default=1, help="programs that are probed at the same time")
    parser.add_argument("--again", action="store_true", help="forget what is known of these programs")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    prepare_environment()
    lock_results()
    results = Results()
    chosen = [one for one in examples() if not options.parts or any(part in one.name for part in options.parts)]
    if options.again:
        for example in chosen:
            results.rows.pop(example.name, None)
    with ThreadPoolExecutor(options.jobs) as pool:
        for times in range(1, options.times + 1):  # one more time for all of them, so that all are judged soon
            waiting = [pool.submit(results.add, example, times, end) for example in chosen]
            for future in waiting:
                future.result()
    _write(PAGE, page(results.rows, place()))


def _write(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text)
    unfinished.rename(path)


if __name__ == "__main__":
    main()
