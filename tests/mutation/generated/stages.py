"""Runs the suite on a library, the quick part first, and says which check caught it, and how."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import resource
import shutil
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from starpullm.golden.records import THRESHOLD_RECORDS
from starpullm.processes.job import Completed, Job, JobEnding, TimedOut, run_job

from ..patches import CHECKOUT

__all__ = ["STAGES", "Baseline", "Outcome", "Stage", "Workplace", "classify", "inspect", "limit_this_process"]

_MODULES = tuple(f"starpullm.suite.test_{name}" for name in ("parity", "reduction", "lifetimes", "dependencies"))
_PROJECT_TESTS = ("trainer", "saving", "bad_input", "partitions", "reduction_modes")


@dataclass(frozen=True)
class Stage:
    """A part of the suite.

    Parameters
    ----------
    name
        What the results call it.
    arguments
        Of pytest.
    ranks
        How many run it; None: one process without mpirun.
    """

    name: str
    arguments: tuple[str, ...]
    ranks: int | None = None


STAGES = (
    Stage("quick", ("--starpullm-records", "tiny", *_MODULES)),
    Stage("odd", ("--starpullm-records", "odd", *_MODULES)),
    Stage("delays and memory", ("starpullm.suite.test_perturbation", "starpullm.suite.test_memory")),
    Stage("small", ("--starpullm-records", "small", *_MODULES)),
    Stage("deep", ("--starpullm-records", "deep", *_MODULES)),
    Stage("thresholds", ("--starpullm-records", ",".join(THRESHOLD_RECORDS), "starpullm.suite.test_parity")),
    Stage("two ranks", ("--with-mpi", "starpullm.suite"), 2),
    Stage(
        "project's tests",
        (
            "--timeout=60",
            "--timeout-method=thread",
            *(str(CHECKOUT / "tests" / "native" / f"test_{name}.py") for name in _PROJECT_TESTS),
        ),
    ),
)
"""All but the last two are the default suite, without the throughput tests that it skips; "two ranks" is its run on
ranks. The last one is not the suite, which users have, but a part of the project's own tests."""

MEMORY_BYTES = 8 << 30
"""Address space of one process. The unchanged library needs less than 3 GiB of it, most of which is never touched."""

FILE_BYTES = 256 << 20

_LIMIT_FACTOR = 4.0
_LIMIT_MARGIN = 30.0
_CHECK_FACTOR = 10.0
_CHECK_SECONDS = 30.0


@dataclass(frozen=True)
class Baseline:
    """A stage on the unchanged library.

    Parameters
    ----------
    stage, level
        What was run, at which level of vector instructions (None: the best one).
    seconds
        The whole stage.
    longest
        Its longest test.
    skipped
        How many tests were skipped.
    """

    stage: str
    level: str | None
    seconds: float
    longest: float
    skipped: int = 0

    @property
    def time_limit(self) -> float:
        """Seconds that the stage may take with a mutant: a multiple, because the machine may be busy."""
        return _LIMIT_FACTOR * self.seconds + _LIMIT_MARGIN

    @property
    def check_limit(self) -> float:
        """Seconds that one check may take."""
        return max(_CHECK_FACTOR * self.longest, _CHECK_SECONDS)


@dataclass(frozen=True)
class Outcome:
    """A stage with a mutant.

    Parameters
    ----------
    stage
        Its name.
    how
        What ended it: "finding" (a check compared and found a difference), "error" (the library or the package
        refused), "crash", "exit", "memory limit" or "time limit"; None: the mutant passed.
    check
        The test that failed first.
    finding
        The first line of its message; of a mutant that passed, how many more tests were skipped than without it.
    seconds
        How long the stage took.
    """

    stage: str
    how: str | None
    check: str
    finding: str
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


TIMED = "test_reuse_adds_nothing_to_the_critical_path"
"""A test that compares times. On a busy machine it can fail without a defect."""

_ATTEMPTS = 3

_HOW = (
    ("memory limit", r"MemoryError|cannot allocate memory|out of memory|no memory|to get memory"),
    ("time limit", r"had not ended after|at its time limit"),
    ("crash", r"ended by SIG"),
    ("exit", r"ended with exit status"),
    ("error", r"\b\w+Error\b"),
)


def classify(message: str) -> str:
    """Return how a check failed, by the first lines of its message."""
    head = "\n".join(message.splitlines()[:2])
    return next((how for how, pattern in _HOW if re.search(pattern, head, re.IGNORECASE)), "finding")


def limit_this_process() -> None:
    """Limit memory and the size of files for this process and all that it starts, so that a mutant harms nobody."""
    for kind, limit in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


class Workplace:
    """Where stages run: each in an empty folder of its own, which is also the home of its processes.

    Parameters
    ----------
    directory
        For these folders.
    starpu
        A folder with StarPU's calibration of the machine, which an interrupted run leaves for the next.
    """

    def __init__(self, directory: Path, starpu: Path) -> None:
        self._directory = directory
        self._starpu = starpu
        self._package = directory / "package"  # the checkout's may change meanwhile
        for part in ("starpullm", "native/include"):  # the binding reads the header
            shutil.copytree(CHECKOUT / part, self._package / part, ignore=shutil.ignore_patterns("__pycache__"))
        starpu.mkdir(exist_ok=True)

    def measure(self, stage: Stage, library: Path, level: str | None) -> Baseline:
        """Run a stage on the unchanged library, and keep StarPU's calibration of the machine.

        Raises
        ------
        RuntimeError
            If a test fails or none passes.
        """
        folder = self._directory / "baseline"
        limits = Baseline(stage.name, level, 300, 60)
        for _ in range(_ATTEMPTS):
            ending, tests = self._run(stage, library, level, limits, folder)
            if isinstance(ending, Completed) and _count(ending, "passed"):
                break
        else:
            raise RuntimeError(f"{stage.name}: the unchanged library does not pass\n{ending}")
        shutil.copytree(folder / "starpu", self._starpu, dirs_exist_ok=True)
        shutil.rmtree(folder)
        longest = max((test["seconds"] for test in tests if test["outcome"] == "passed"), default=0)
        skipped = _count(ending, "skipped")
        return Baseline(stage.name, level, round(ending.seconds, 1), round(longest, 2), skipped)

    def try_mutant(self, stage: Stage, library: Path, baseline: Baseline) -> Outcome:
        """Run a stage on a mutant until a test fails; again if it may be the machine that was slow."""
        outcome = self._try_once(stage, library, baseline)
        if outcome.how == "time limit" or outcome.check.startswith(TIMED):
            again = self._try_once(stage, library, baseline)
            return replace(again, seconds=round(outcome.seconds + again.seconds, 1))
        return outcome

    def _try_once(self, stage: Stage, library: Path, baseline: Baseline) -> Outcome:
        folder = self._directory / "mutant"
        ending, tests = self._run(stage, library, baseline.level, baseline, folder)
        shutil.rmtree(folder, ignore_errors=True)
        seconds = round(ending.seconds, 1)
        for test in tests:
            if test["outcome"] == "failed":
                name = test["test"].rpartition("::")[2]
                return Outcome(stage.name, classify(test["message"]), name, _first_line(test["message"]), seconds)
        if isinstance(ending, TimedOut):
            return Outcome(stage.name, "time limit", "the whole stage", ending.sentence, seconds)
        failed = re.search(r"^(?:FAILED|ERROR) \S*?([^/:\s]+)(?: - (.*))?$", ending.stdout, re.MULTILINE)
        if failed:  # a test that does not use the plugin, which the report leaves out
            finding = failed[2] or ""
            return Outcome(stage.name, classify(finding), failed[1], finding[:200], seconds)
        if "+++ Timeout +++" in ending.stdout + ending.stderr:  # pytest-timeout has ended pytest
            return Outcome(stage.name, "time limit", "a test's time limit", _reason(ending), seconds)
        if not isinstance(ending, Completed):  # pytest ended before a test did
            return Outcome(stage.name, classify(ending.sentence), "the start of the suite", _reason(ending), seconds)
        if not _count(ending, "passed"):
            return Outcome(stage.name, "finding", "the suite itself", "no test passed, none failed", seconds)
        skipped = _count(ending, "skipped") - baseline.skipped
        return Outcome(stage.name, None, "", f"{skipped} more tests were skipped" if skipped else "", seconds)

    def _run(
        self, stage: Stage, library: Path, level: str | None, limits: Baseline, folder: Path
    ) -> tuple[JobEnding, list[dict[str, Any]]]:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        shutil.copytree(self._starpu, folder / "starpu")
        report = folder / "report.json"
        plugin = [] if _plugin_is_installed() else ["-p", "starpullm.pytest_plugin"]
        arguments = [
            "-x",
            "-q",
            "-rfE",
            "--color=no",
            "--pyargs",
            "-p",
            "no:cacheprovider",
            *plugin,
            "--starpullm-report",
            str(report),
        ]
        arguments += ["--starpullm-timeout", f"{limits.check_limit:g}", *stage.arguments]
        environment = {
            "STARPULLM_LIB": str(library),
            "STARPULLM_LOCK": str(self._directory / "lock"),
            "STARPU_HOME": str(folder / "starpu"),
            "HOME": str(folder),
            "HWLOC_SYNTHETIC": "numa:1 core:2 pu:1",
            "OMP_WAIT_POLICY": "passive",  # on a busy machine threads that spin wait for those that do not run
            "PYTHONPATH": str(self._package),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if level:
            environment["STARPULLM_SIMD"] = level
        command = ["env", "-C", str(folder), sys.executable, "-P", "-m", "pytest", *arguments]
        ending = run_job(Job(command, limits.time_limit, stage.ranks, environment))
        tests = json.loads(report.read_text("utf-8"))["tests"] if report.is_file() else []
        return ending, tests


def inspect(library: Path, level: str | None = None) -> dict[str, Any] | None:
    """Return what ``starpullm doctor`` says of this machine; None if it does not have a level."""
    environment = {"STARPULLM_LIB": str(library), "PYTHONPATH": str(CHECKOUT)}
    if level:
        environment["STARPULLM_SIMD"] = level
    job = Job([sys.executable, "-P", "-m", "starpullm.commands", "doctor", "--json"], 60, None, environment)
    ending = run_job(job)
    if not isinstance(ending, Completed):
        return None
    found: dict[str, Any] = json.loads(ending.stdout)
    return found


def _plugin_is_installed() -> bool:
    return any(e.value == "starpullm.pytest_plugin" for e in importlib.metadata.entry_points(group="pytest11"))


def _count(ending: JobEnding, outcome: str) -> int:
    """Return how many tests passed, or were skipped, as pytest's last line says."""
    last = [line for line in ending.stdout.splitlines() if re.search(r" in \d+\.\d+s", line)][-1:]
    found = re.findall(rf"\b(\d+) {outcome}\b", "".join(last))
    return int(found[0]) if found else 0


def _first_line(message: str) -> str:
    return next((line.strip() for line in message.splitlines() if line.strip()), "")[:200]


def _reason(ending: JobEnding) -> str:
    """Return the last line that a suite has written which could not start."""
    lines = [line for line in (ending.stdout + os.linesep + ending.stderr).splitlines() if line.strip()]
    return f"{ending.sentence}: {lines[-1].strip()[:160]}" if lines else ending.sentence
