"""The build with gcov, and what each part of the stages has counted, which is kept in a folder outside the checkout."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .report import SOURCES, Covered, read_report
from .stages import PYTHON, Part, library_in

CHECKOUT: Final = Path(__file__).parents[2]

_SECONDS_TO_END: Final = 10


class Measurement:
    """The build with gcov and the reports of its parts, all in one folder outside the checkout."""

    def __init__(self, directory: Path) -> None:
        self._reports = directory / "reports"
        self.build = directory / "build"
        self._preloaded = directory / "counted_exit.so"
        self._reports.mkdir(parents=True, exist_ok=True)

    def make(self) -> None:
        """Build the library and the ctests; the reports of other sources are removed."""
        sources = hashlib.sha256()
        for path in sorted((CHECKOUT / "native").rglob("*")):
            if path.is_file() and not path.is_relative_to(CHECKOUT / "native" / "tests"):
                sources.update(path.read_bytes())
        stored = self._reports / "sources"
        if not stored.is_file() or stored.read_text("utf-8") != sources.hexdigest():
            for report in self._reports.glob("*.json"):
                report.unlink()
            stored.write_text(sources.hexdigest(), "utf-8")
        _run(["cmake", "--preset", "coverage", "-B", str(self.build)], CHECKOUT / "native")
        _run(["cmake", "--build", str(self.build), "--parallel", str(os.cpu_count() or 1)], CHECKOUT)
        source = str(Path(__file__).with_name("counted_exit.c"))
        _run(["cc", "-Wall", "-Werror", "-fPIC", "-shared", source, "-o", str(self._preloaded), "-ldl"], CHECKOUT)

    def run(self, part: Part) -> int:
        """Run a part; store its report if its tests have passed; return the exit status of its command."""
        for counters in self.build.rglob("*.gcda"):
            counters.unlink()
        # PYTHONPATH may name the checkout, which would hide the installed package.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment["LD_PRELOAD"] = str(self._preloaded)
        environment["STARPULLM_COUNTED_LIB"] = str(library_in(self.build))
        status = _wait_for(subprocess.Popen(part.command, cwd=self._reports, env=environment))
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
        sources = f"{re.escape(str(CHECKOUT))}/{SOURCES}/"
        command = [*PYTHON, "-m", "gcovr", "--root", str(CHECKOUT), "--filter", sources]
        command += ["--merge-mode-functions", "separate", "--json", str(output)]
        _run([*command, *arguments], CHECKOUT)


def _run(command: Sequence[str], directory: Path) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")


def _wait_for(process: subprocess.Popen[bytes]) -> int:
    """Return the exit status of a process, which is ended if this one is interrupted."""
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS_TO_END)
            process.kill()
            process.wait()
