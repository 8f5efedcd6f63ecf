"""Which lines and branches of the native library the validation suite runs: ``python -m tests.coverage``.

It builds native/ with gcov outside the checkout, runs the parts of the stages one after the other, and prints a table
by file. The installed package is used, with the library of that build. What has been measured with the same sources is
not run again, so an interrupted run is continued by the same command. ``--missing`` lists the lines that no stage ran,
``--page`` writes the table into docs/coverage.md. It needs gcovr (``pip install '.[coverage]'``).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from starpullm.binding.library import ENVIRONMENT_VARIABLE
from starpullm.machine import inspect_machine
from starpullm.processes.lock import machine_lock

from .report import SOURCES, Covered, read_report, table, write_page
from .stages import PYTHON, TITLES, Part, parts

CHECKOUT: Final = Path(__file__).parents[2]
PAGE: Final = CHECKOUT / "docs" / "coverage.md"


class Measurement:
    """The build with gcov and the reports of its parts, all in one folder outside the checkout."""

    def __init__(self, directory: Path) -> None:
        self._reports = directory / "reports"
        self.build = directory / "build"
        self._reports.mkdir(parents=True, exist_ok=True)

    def make(self) -> None:
        """Build the library and the ctests; the reports of other sources are removed."""
        sources = hashlib.sha256()
        for path in sorted((CHECKOUT / "native").rglob("*.[ch]")):
            sources.update(path.read_bytes())
        stored = self._reports / "sources"
        if not stored.is_file() or stored.read_text("utf-8") != sources.hexdigest():
            for report in self._reports.glob("*.json"):
                report.unlink()
            stored.write_text(sources.hexdigest(), "utf-8")
        _run(["cmake", "--preset", "coverage", "-B", str(self.build)], CHECKOUT / "native")
        _run(["cmake", "--build", str(self.build), "--parallel", str(os.cpu_count() or 1)], CHECKOUT)

    def run(self, part: Part) -> int:
        """Run a part; store its report if its tests have passed; return the exit status of its command."""
        for counters in self.build.rglob("*.gcda"):
            counters.unlink()
        # PYTHONPATH may name the checkout, which would hide the installed package.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        status = subprocess.run(part.command, cwd=self._reports, env=environment, check=False).returncode
        if status == 0:
            # Threads that count at the same time may leave numbers far too large, or below 0, which count as 0.
            lenient = "--gcov-ignore-parse-errors=all"
            unfinished = self._reports / "unfinished"
            self._gcovr(lenient, str(self.build), output=unfinished)
            unfinished.rename(self._path(part))
        return status

    def has_report(self, part: Part) -> bool:
        """Return whether a part has been measured with these sources."""
        return self._path(part).is_file()

    def report(self, measured: Sequence[Part]) -> dict[str, Covered]:
        """Return the coverage of parts together."""
        merged = self._reports / "merged"
        self._gcovr(*(argument for part in measured for argument in ("-a", str(self._path(part)))), output=merged)
        return read_report(json.loads(merged.read_text("utf-8")))

    def _path(self, part: Part) -> Path:
        return self._reports / f"{part.name}.json"

    def _gcovr(self, *arguments: str, output: Path) -> None:
        command = [
            *PYTHON,
            "-m",
            "gcovr",
            "--root",
            str(CHECKOUT),
            "--filter",
            f"{re.escape(str(CHECKOUT))}/{SOURCES}/",
        ]
        command += ["--merge-mode-functions", "separate", "--json", str(output)]
        _run([*command, *arguments], CHECKOUT)


def _run(command: Sequence[str], directory: Path) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")


def _columns(measurement: Measurement) -> dict[str, dict[str, Covered]]:
    """Return the coverage of the first stage, of the first two, and so on, by the title of what was added.

    A stage counts if all of its parts have been measured.
    """
    columns: dict[str, dict[str, Covered]] = {}
    measured: list[Part] = []
    for stage, title in TITLES.items():
        own = [part for part in parts(measurement.build) if part.stage == stage]
        if not all(map(measurement.has_report, own)):
            continue
        measured += own
        columns[f"+ {title}" if columns else title] = measurement.report(measured)
    return columns


def _missing(covered: dict[str, Covered]) -> Iterator[str]:
    for name, file in covered.items():
        text = (CHECKOUT / name).read_text("utf-8").splitlines()
        yield from (f"{name}:{number}: {text[number - 1].strip()}" for number in file.missing)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.coverage", description=__doc__)
    default = Path(tempfile.gettempdir(), f"starpullm-coverage-{os.getuid()}")
    parser.add_argument(
        "--directory", type=Path, default=default, help=f"of the build and the reports; default: {default}"
    )
    names = [part.name for part in parts(Path())]
    parser.add_argument("--stage", action="append", choices=TITLES, help="may be repeated; default: all")
    parser.add_argument("--part", action="append", metavar="NAME", choices=names, help=f"one of {', '.join(names)}")
    parser.add_argument("--again", action="store_true", help="also run what has been measured with these sources")
    parser.add_argument("--show", action="store_true", help="run nothing, use the reports that are there")
    parser.add_argument("--missing", action="store_true", help="also list the lines that no stage ran")
    parser.add_argument("--page", action="store_true", help=f"write the table into {PAGE.relative_to(CHECKOUT)}")
    if shutil.which("gcov") is None:
        parser.error("found no gcov, expected GCC's")
    return parser.parse_args()


def _measure(measurement: Measurement, options: argparse.Namespace) -> list[str]:
    """Run the parts that are asked for and that have no report; return those that failed."""
    with machine_lock():
        measurement.make()
    failed = []
    for part in parts(measurement.build):
        asked_for = part.stage in (options.stage or TITLES) and part.name in (options.part or (part.name,))
        if asked_for and (options.again or not measurement.has_report(part)):
            print(f"-- {part.name}", flush=True)
            failed += [part.name] if measurement.run(part) else []
    return failed


def main() -> int:
    """Run what the command line asks for; return the exit status."""
    options = _options()
    measurement = Measurement(options.directory.resolve())
    failed = [] if options.show else _measure(measurement, options)
    lacking = [part.name for part in parts(measurement.build) if not measurement.has_report(part)]
    if lacking:
        print(f"not measured yet: {', '.join(lacking)}", file=sys.stderr)
    columns = _columns(measurement)
    if not columns:
        print("no stage is complete, so there is no table", file=sys.stderr)
        return 1
    lines = list(table(columns))
    print("\n".join(lines))
    if options.missing:
        print("\n".join(["", *_missing(list(columns.values())[-1])]))
    if options.page:
        os.environ[ENVIRONMENT_VARIABLE] = str(measurement.build / "libstarpullm.so")
        machine = inspect_machine()
        date = datetime.now(UTC).date().isoformat()
        head = f"`python -m tests.coverage --page`, {date}, {machine.processor}, {machine.cores} cores:"
        PAGE.write_text(write_page(PAGE.read_text("utf-8"), lines, head), "utf-8")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
