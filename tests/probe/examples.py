"""Runs the probe over StarPU's own examples, and writes docs/probe-programs.md.

``python -m tests.probe.examples`` after ``tests/probe/build_examples.sh``; a part of a name chooses some of them. The
results of earlier runs are kept in a file, and the page shows all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from starpullm.binding.library import find_library
from starpullm.errors import StarpullmError
from starpullm.machine import inspect_machine
from starpullm.probe import probe_program
from starpullm.probe.program import run_program

CHECKOUT = Path(__file__).parents[2]
BUILD = CHECKOUT / ".cache" / "starpu-examples" / "build"
RESULTS = CHECKOUT / ".cache" / "starpu-examples" / "results.json"
PAGE = CHECKOUT / "docs" / "probe-programs.md"
WORKERS = 4
TIME_LIMIT = 60.0
RUNS = 5

# Smaller than their own defaults, so that all of them take minutes.
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "mandelbrot/mandelbrot": ("-width", "64", "-height", "64", "-nblocks", "8", "-spmd", "-pos", "0", "0", "1", "1"),
}


def programs(build: Path) -> Iterator[tuple[str, Path]]:
    """Yield the built examples, by folder and name."""
    root = build / "examples"
    for path in sorted(root.glob("**/.libs/*")):
        if path.is_file() and os.access(path, os.X_OK) and ".so" not in path.name:
            yield str(path.parent.parent.relative_to(root) / path.name), path


def judge(name: str, path: Path, runs: int) -> dict[str, object]:
    """Return the row of a program: tasks, verdict, the time of the bare run and of each run under the probe."""
    command = [str(path), *ARGUMENTS.get(name, ())]
    environment = {"STARPU_NCPU": str(WORKERS), "STARPU_WORKERS_NOBIND": "1"}
    if (os.cpu_count() or 1) < WORKERS:
        environment["HWLOC_SYNTHETIC"] = f"core:{WORKERS} pu:1"
    bare = run_program(command, environment, TIME_LIMIT)
    row: dict[str, object] = {"name": name, "bare": bare.seconds, "bare_ending": str(bare)}
    start = time.monotonic()
    try:
        result = probe_program(command, runs=runs, workers=WORKERS, time_limit=TIME_LIMIT)
    except StarpullmError as error:
        sentence = str(error).removeprefix(f"{path}: ")
        return row | {"verdict": "refused", "details": [sentence], "tasks": 0}
    row["seconds"] = (time.monotonic() - start) / (result.runs + 1)
    details = [str(finding) for finding in result.findings]
    return row | {
        "verdict": result.finding.partition(":")[0],
        "tasks": result.num_tasks,
        "compared": result.compared,
        "tolerated": result.tolerated,
        "details": [*details, *result.last_moments[:4]],
        "notes": [str(note) for note in result.notes],
    }


def page(rows: Mapping[str, Mapping[str, object]], starpu: str) -> str:
    """Return the page with all results."""
    lines = [
        "# The probe on StarPU's own examples",
        "",
        "<!-- made by python -m tests.probe.examples -->",
        "",
        f"StarPU {starpu}, {WORKERS} workers, {RUNS} disturbed runs, {platform.machine()} with {os.cpu_count()} cores,",
        f"{time.strftime('%Y-%m-%d')}. Times are seconds of one run: bare, and on average under the probe.",
        "",
    ]
    counts: dict[str, int] = {}
    for row in rows.values():
        counts[str(row["verdict"])] = counts.get(str(row["verdict"]), 0) + 1
    lines += ["Verdicts: " + ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())) + ".", ""]
    lines += [
        "| program | tasks | contents compared | verdict | bare | probe | what was found |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in sorted(rows.items()):
        seconds = f"{row['seconds']:.2f}" if "seconds" in row else ""
        details = row["details"]
        assert isinstance(details, list)
        text = re.sub(r"\s+", " ", str(details[0]))[:300].replace("|", "\\|") if details else ""
        if row.get("tolerated"):
            text = f"{row['tolerated']} contents tolerated {text}"
        cells = (name, row["tasks"], row.get("compared", ""), row["verdict"], f"{row['bare']:.2f}", seconds, text)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the programs whose names contain a text, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="parts of the names of programs; default: all")
    parser.add_argument("--build", type=Path, default=BUILD, help="where StarPU's examples were built")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--again", action="store_true", help="also programs whose result is there")
    options = parser.parse_args()
    machine = inspect_machine()
    assert find_library().is_file()
    os.environ["LD_LIBRARY_PATH"] = f"{machine.starpu_prefix}/lib"
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    for name, path in programs(options.build):
        if options.parts and not any(part in name for part in options.parts):
            continue
        if name in rows and not options.again:
            continue
        rows[name] = judge(name, path, options.runs)
        print(name, rows[name]["verdict"], rows[name]["tasks"], *rows[name]["details"][:3], sep=" | ", flush=True)
        RESULTS.write_text(json.dumps(rows, indent=1))
        PAGE.write_text(page(rows, machine.starpu_version))


if __name__ == "__main__":
    main()
