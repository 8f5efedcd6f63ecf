"""Which lines and branches of the native library the validation suite runs: ``python -m tests.coverage``.

It builds native/ with gcov outside the checkout, runs the parts of the stages one after the other, and prints a table
by file. The installed package is used, with the library of that build. What has been measured with the same sources is
not run again, so an interrupted run is continued by the same command. ``--missing`` lists what the suite doesn't run,
alone and on two ranks. It needs gcovr (``pip install '.[coverage]'``).

A line that is compiled once for each SIMD level counts as run if it ran at one of them. Lines of another processor are
neither compiled nor counted. Threads count without locking, so single numbers may be wrong.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from starpullm.processes.lock import machine_lock

from .measurement import CHECKOUT, Measurement
from .report import Covered, missing, table
from .stages import TITLES, Part, parts


def _columns(measurement: Measurement) -> dict[str, dict[str, Covered]]:
    """Return by stage the coverage of the first stage, of the first two, and so on.

    A stage counts if all of its parts have been measured.
    """
    columns: dict[str, dict[str, Covered]] = {}
    measured: list[Part] = []
    for stage in TITLES:
        own = [part for part in parts(measurement.build) if part.stage == stage]
        if not all(map(measurement.has_report, own)):
            continue
        measured += own
        columns[stage] = measurement.report(measured)
    return columns


def _titled(columns: Mapping[str, dict[str, Covered]]) -> dict[str, dict[str, Covered]]:
    """Return the columns by what the table calls them."""
    first = next(iter(columns))
    return {("" if stage == first else "+ ") + TITLES[stage]: files for stage, files in columns.items()}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.coverage", description=__doc__)
    default = CHECKOUT / ".cache" / "coverage"
    parser.add_argument(
        "--directory", type=Path, default=default, help=f"of the build and the reports; default: {default}"
    )
    parser.add_argument("--stage", action="append", choices=TITLES, help="may be repeated; default: all")
    parser.add_argument("--again", action="store_true", help="also run what has been measured with these sources")
    parser.add_argument("--show", action="store_true", help="run nothing, use the reports that are there")
    parser.add_argument("--missing", action="store_true", help="also list what the suite doesn't run")
    if shutil.which("gcov") is None:
        parser.error("found no gcov, expected GCC's")
    return parser.parse_args()


def _measure(measurement: Measurement, options: argparse.Namespace) -> list[str]:
    """Run the parts that are asked for and that have no report; return those that failed."""
    with machine_lock():
        measurement.make()
    failed = []
    for part in parts(measurement.build):
        if part.stage not in (options.stage or TITLES) or (measurement.has_report(part) and not options.again):
            continue
        print(f"-- {part.name}", flush=True)
        failed += [part.name] if measurement.run(part) else []
    return failed


def _show(options: argparse.Namespace, columns: Mapping[str, dict[str, Covered]]) -> None:
    print("\n".join(table(_titled(columns))))
    if options.missing:
        print("\n".join(["", *missing(columns.get("ranks", next(iter(columns.values()))), CHECKOUT)]))


def main() -> int:
    """Run what the command line asks for; return the exit status."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # ends the part that is running
    measurement = Measurement(options.directory.resolve())
    failed = [] if options.show else _measure(measurement, options)
    lacking = [part.name for part in parts(measurement.build) if not measurement.has_report(part)]
    if lacking:
        print(f"not measured yet: {', '.join(lacking)}", file=sys.stderr)
    columns = _columns(measurement)
    if columns:
        _show(options, columns)
    else:
        print("no stage is complete, so there is no table", file=sys.stderr)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed or not columns else 0


if __name__ == "__main__":
    sys.exit(main())
