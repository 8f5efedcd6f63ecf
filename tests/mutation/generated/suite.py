"""The suite on one library after the other: the laboratory's end of `server`, and which tests make up a stage."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ..patches import CHECKOUT

__all__ = ["ORDER", "Suite", "SuiteRun", "Test", "check_of", "copy_package", "plugin_is_installed"]

ORDER = (
    "parity",
    "losses of ranks",
    "resumed run",
    "shared buffers",
    "observed order",
    "poison",
    "gradient bounds",
    "accesses",
    "runtime graph",
)
"""Checks by the number of mutants that they have caught in a second, the others after these."""

_END_SECONDS = 20.0


@dataclass(frozen=True)
class Test:
    """How a test of the suite ended; ``cpu``: seconds of processor time of its checks' process."""

    name: str
    outcome: str
    message: str
    cpu: float


@dataclass(frozen=True)
class SuiteRun:
    """Tests in the order in which they ran, until one failed; ``ending`` says why the rest did not run, if that was
    not a test's failure."""

    tests: tuple[Test, ...]
    ending: str
    seconds: float

    @property
    def failed(self) -> Test | None:
        """The test that failed."""
        return next((test for test in self.tests if test.outcome == "failed"), None)

    def count(self, outcome: str) -> int:
        """Return how many tests ended so."""
        return sum(test.outcome == outcome for test in self.tests)


def copy_package(directory: Path) -> Path:
    """Copy what the server imports, because the checkout may change meanwhile; return what PYTHONPATH has to name."""
    target = directory / "package"
    for part in ("starpullm", "native/include", "tests/mutation"):  # the binding reads the header
        shutil.copytree(CHECKOUT / part, target / part, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return target


class Suite:
    """A server that has collected the suite; a context manager.

    Parameters
    ----------
    package
        Where it imports starpullm from.
    folder
        For its own files.
    library
        The unchanged library.
    environment
        In addition to this process's.
    ranks
        How many the checks run on.
    """

    def __init__(
        self, package: Path, folder: Path, library: Path, environment: Mapping[str, str], ranks: int = 1
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # Without settings of its own pytest would look for them in the directories above.
        (folder / "pytest.ini").write_text("[pytest]\n")
        ours, its = socket.socketpair()
        arguments = ["-q", "--import-mode=importlib", "--capture=no", "-p", "no:cacheprovider", "-p", "no:timeout"]
        arguments += ["-o", "tmp_path_retention_policy=none", "--rootdir", str(folder), "--basetemp", f"{folder}/tmp"]
        arguments += ["-p", "starpullm.pytest_plugin"] if not plugin_is_installed() else []
        arguments += ["--starpullm-time-limit", "300", "--pyargs", "starpullm.suite"]
        command = [
            sys.executable,
            "-P",
            "-m",
            "tests.mutation.generated.server",
            str(its.fileno()),
            str(ranks),
            *arguments,
        ]
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["env", "-C", str(folder), *command],
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "STARPULLM_LIB": str(library), "PYTHONPATH": str(package), **environment},
            )
        its.close()
        self._stream = ours.makefile("rw", encoding="utf-8", newline="\n")
        ours.close()
        try:
            collected = self._read()["tests"]
        except BaseException:
            self.__exit__()
            raise
        self.tests: tuple[str, ...] = tuple(sorted(collected, key=_order))
        """Names of the suite's tests, those first that catch most in a second."""

    def run(
        self,
        tests: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        *,
        limit: float = 60,
        seconds: float = 1800,
    ) -> SuiteRun:
        """Run tests until one fails.

        Parameters
        ----------
        tests
            Their names.
        folder
            Where they run; it is made.
        environment
            With STARPULLM_LIB.
        limit
            Seconds of processor time of each check.
        seconds
            After which everything is ended.
        """
        folder.mkdir(parents=True)
        start = time.monotonic()
        request = {
            "tests": tests,
            "folder": str(folder),
            "environment": dict(environment),
            "limit": round(limit),
            "seconds": seconds,
        }
        self._stream.write(json.dumps(request) + "\n")
        self._stream.flush()
        done: list[Test] = []
        while "ending" not in (message := self._read()):
            done.append(Test(message["test"], message["outcome"], message["message"], message["cpu"]))
        return SuiteRun(tuple(done), message["ending"], time.monotonic() - start)

    def _read(self) -> Any:
        line = self._stream.readline()
        if not line:
            raise RuntimeError(f"the server of the suite has ended:\n{self._log.read_text('utf-8', 'replace')}")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def check_of(test: str) -> str:
    """Return the name of the check that a test of the suite runs."""
    return re.split(r"[-\]]", test.partition("[")[2], maxsplit=1)[0].replace("_", " ")


def _order(name: str) -> tuple[int, str]:
    check = check_of(name)
    return (ORDER.index(check) if check in ORDER else len(ORDER)), ""


def plugin_is_installed() -> bool:
    """Return whether pytest finds the plugin by itself."""
    return any(e.value == "starpullm.pytest_plugin" for e in importlib.metadata.entry_points(group="pytest11"))
