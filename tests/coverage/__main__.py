"""Which lines and branches of the native library the validation suite runs: ``python -m tests.coverage``.

It builds native/ with gcov outside the checkout, runs the stages one after the other, and prints a table by file. The
installed package is used, with the library of that build. ``--stage`` runs one stage and keeps what the others found,
``--missing`` lists the lines that no stage ran, ``--page`` writes the table into docs/coverage.md. It needs gcovr
(``pip install '.[coverage]'``).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from starpullm.binding.library import ENVIRONMENT_VARIABLE
from starpullm.machine import inspect_machine
from starpullm.processes.lock import machine_lock

from .report import SOURCES, Covered, read_report, table, write_page

CHECKOUT: Final = Path(__file__).parents[2]
PAGE: Final = CHECKOUT / "docs" / "coverage.md"

_SUITE: Final = ("-m", "pytest", "-q", "--pyargs", "starpullm.suite", "-p", "no:cacheprovider")
_PYTHON: Final = (sys.executable, "-P")
_SLOW_SECONDS: Final = 600
"""Time limit of a check: the kernels are compiled with little optimisation, and count their branches."""


@dataclass(frozen=True)
class Stage:
    """One run of tests, with the counters of the library at zero before it."""

    name: str
    title: str
    command: tuple[str, ...]


def stages(build: Path) -> tuple[Stage, ...]:
    """Return the stages, which use the library in the folder ``build``."""
    suite = (*_SUITE, "--starpullm-lib", str(build / "libstarpullm.so"), "--starpullm-timeout", str(_SLOW_SECONDS))
    ranks = ("mpirun", "-n", "2", "--oversubscribe", *_PYTHON, *suite, "--with-mpi")
    return (
        Stage("suite", "suite", (*_PYTHON, *suite)),
        Stage("ranks", "2 ranks", ranks),
        Stage("ctest", "ctests", ("ctest", "--test-dir", str(build), "--output-on-failure", "--timeout", "1500")),
    )


class Measurement:
    """The build with gcov and the reports of its stages, all in one folder outside the checkout."""

    def __init__(self, directory: Path) -> None:
        self._reports = directory / "reports"
        self.build = directory / "build"
        self._reports.mkdir(parents=True, exist_ok=True)

    def make(self) -> None:
        """Build the library and the ctests."""
        _run(["cmake", "--preset", "coverage", "-B", str(self.build)], CHECKOUT / "native")
        _run(["cmake", "--build", str(self.build), "--parallel", str(os.cpu_count() or 1)], CHECKOUT)

    def run(self, stage: Stage) -> int:
        """Run a stage, store its report and return the exit status of its command."""
        for counters in self.build.rglob("*.gcda"):
            counters.unlink()
        # PYTHONPATH may name the checkout, which would hide the installed package.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        status = subprocess.run(stage.command, cwd=self._reports, env=environment, check=False).returncode
        self._gcovr(str(self.build), output=self._path(stage.name))
        return status

    def report(self, names: Sequence[str]) -> dict[str, Covered] | None:
        """Return the coverage of stages together; None if one of them has not been run."""
        paths = [self._path(name) for name in names]
        if not all(path.is_file() for path in paths):
            return None
        merged = self._reports / "merged.json"
        self._gcovr(*(argument for path in paths for argument in ("-a", str(path))), output=merged)
        return read_report(json.loads(merged.read_text("utf-8")))

    def _path(self, name: str) -> Path:
        return self._reports / f"{name}.json"

    def _gcovr(self, *arguments: str, output: Path) -> None:
        command = [
            *_PYTHON,
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
    """Return the coverage of the first stage, of the first two, and so on, by the title of what was added."""
    columns: dict[str, dict[str, Covered]] = {}
    names: list[str] = []
    for stage in stages(measurement.build):
        found = measurement.report([*names, stage.name])
        if found is None:
            continue
        names.append(stage.name)
        columns[stage.title if len(names) == 1 else f"+ {stage.title}"] = found
    return columns


def _missing(covered: dict[str, Covered]) -> Iterator[str]:
    for name, file in covered.items():
        text = (CHECKOUT / name).read_text("utf-8").splitlines()
        yield from (f"{name}:{number}: {text[number - 1].strip()}" for number in file.missing)


def main() -> int:
    """Run what the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.coverage", description=__doc__)
    names = [stage.name for stage in stages(Path())]
    default = Path(tempfile.gettempdir(), f"starpullm-coverage-{os.getuid()}")
    parser.add_argument(
        "--directory", type=Path, default=default, help=f"of the build and the reports; default: {default}"
    )
    parser.add_argument("--stage", action="append", choices=names, help="may be repeated; default: all")
    parser.add_argument("--show", action="store_true", help="run nothing, use the reports that are there")
    parser.add_argument("--missing", action="store_true", help="also list the lines that no stage ran")
    parser.add_argument("--page", action="store_true", help=f"write the table into {PAGE.relative_to(CHECKOUT)}")
    options = parser.parse_args()
    if shutil.which("gcov") is None:
        parser.error("found no gcov, expected GCC's")
    measurement = Measurement(options.directory.resolve())
    failed = []
    if not options.show:
        with machine_lock():
            measurement.make()
        for stage in stages(measurement.build):
            if options.stage is None or stage.name in options.stage:
                failed += [stage.name] if measurement.run(stage) else []
    columns = _columns(measurement)
    if not columns:
        parser.error("no stage has been run, so there is nothing to show")
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
