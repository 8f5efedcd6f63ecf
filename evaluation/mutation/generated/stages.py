"""The stages that a mutant goes through, and what one of them has found."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from starpullm.processes.endings import Completed, Job, JobEnding
from starpullm.processes.job import run_job
from starpullm.processes.mpirun import mpirun_here

from ...from_tests import UNUSED, load_plugin
from ..mutants import Builder
from ..patches import CHECKOUT


@dataclass(frozen=True)
class Stage:
    """A part of the suite, which pytest's arguments choose, on so many ranks; or the project's own tests.

    Their files and folders are given relative to tests/native, and pytest's arguments may choose among them.
    """

    name: str
    arguments: tuple[str, ...] = ()
    ranks: int = 1
    files: tuple[str, ...] = ()


_QUICK = ("-k", "tiny and not perturbation", "-m", "not starpullm_memory")
_SCENARIOS = ("-m", "starpullm_scenario")
_OWN_TESTS = (
    "limits",
    *(f"test_{name}.py" for name in ("trainer", "saving", "bad_input", "partitions", "reduction_modes", "offload")),
)

STAGES = (
    Stage("quick", _QUICK),
    Stage("interface", ("-m", "starpullm_interface")),
    Stage("scenarios", _SCENARIOS),
    Stage("kernels", ("-m", "starpullm_kernels")),
    Stage("two ranks, quick", _QUICK, ranks=2),
    Stage("two ranks, scenarios", _SCENARIOS, ranks=2),
    Stage("suite"),
    Stage("two ranks, suite", ranks=2),
    Stage("project's tests", files=_OWN_TESTS),
)
"""All but the last are the default suite, without the throughput tests that it skips, and its run on two ranks. The
last is not the suite, which users have, but a part of the project's own tests, to which a folder may add others."""

SUITE = STAGES[:-1]

OF_LIBRARY = {
    "runtime": ("test_environment.py", "test_first_start.py", "../ranks/test_cores.py"),
    "trace": ("test_trace.py",),
    "io": ("test_fuzzing.py",),
    "graph": ("test_schedules.py", "test_predict.py"),
    "data": ("test_schedules.py",),
    "codelets": ("../ranks/test_transfers.py",),
    "session": ("test_closed.py", "../ranks/test_training.py"),
}
"""By folder of the library, more of the project's own tests."""

_OF_CHECKS = ("test_thresholds.py", "test_parity.py", "test_instruments.py", "test_children.py")

OF_PACKAGE = {
    "top level, binding": ("test_trainer.py", "test_library.py", "test_bad_input.py", "test_environment.py"),
    "checks": (*_OF_CHECKS, "test_llmc.py"),
    "checks/dependencies": _OF_CHECKS,
    "checks/kernels": ("test_thresholds.py",),
    "fuzz": ("../fuzz",),
    "graph": (*_OF_CHECKS, "test_predict.py", "test_trace.py"),
    "probe": ("../probe",),
    "checks/scenario": ("test_scenarios.py",),
    "processes": ("../processes", "../ranks"),
    "files": ("test_bad_input.py", "test_saving.py", "test_cli.py", "test_transformers.py"),
    "golden": ("test_llmc.py", "test_cli_parity.py"),
    "traces": ("test_trace.py", "test_printing.py"),
    "report": ("../report/test_report.py", "../plugin/test_report.py"),
    "speed": ("test_bench.py", "test_against.py", "test_gate.py", "../gate"),
    "predict": ("test_predict.py", "../ranks/test_predict.py"),
    "commands": tuple(f"test_{name}.py" for name in "cli cli_parity cli_train bench predict trace printing".split()),
    "data, training": ("test_cli_train.py", "test_demo.py", "test_saving.py", "../ranks/test_training.py"),
    "pytest_plugin, suite": tuple(
        f"../plugin/test_{name}.py" for name in "isolation options messages lost report strangers waiting ranks".split()
    ),
}
"""By stratum of the package, the project's own tests besides the unit tests; no browser, which needs more memory."""

_OF_CHECKOUT = {f"test_{name}.py" for name in ("types", "site", "documentation", "ci_files")}
"""Unit tests that read the checkout, where no mutant is."""

_CHOSEN = "not takes_longer and not (test_ranks and test_suite) and not concern_no_test_of_a_stranger"
"""Without two tests whose time limits a busy machine exceeds, and one that the name of a job's directory disturbs."""

_MODULE_FILES = 8
"""At most; more take as long as all unit tests."""


def stages_of_package(folder: str, module: str) -> list[Stage]:
    """Return the stages of a mutant of a module; first come a few files of unit tests that name the module."""
    unit = [path for path in sorted((CHECKOUT / "tests" / "unit").glob("test_*.py")) if path.name not in _OF_CHECKOUT]
    package, _, name = module.rpartition(".")
    named = re.compile(rf"{package}(\.| import .*\b){name}\b")
    of_module = [path for path in unit if named.search(path.read_text("utf-8"))][:_MODULE_FILES]
    suite = {stage.name: stage for stage in SUITE}
    stages = [
        Stage("unit tests of the module", files=tuple(f"../unit/{path.name}" for path in of_module)),
        suite["quick"],
        Stage("unit tests", ("-n", "2"), files=tuple(f"../unit/{path.name}" for path in unit)),
        suite["two ranks, quick"],
        Stage(f"tests of {folder}", ("-k", _CHOSEN), files=OF_PACKAGE[folder]),
        suite["suite"],
        suite["two ranks, suite"],
    ]
    return stages if of_module else stages[1:]


MEMORY_BYTES = 8 << 30
"""Address space of one process. The unchanged library needs less than 3 GiB of it, most of which is never touched."""

FILE_BYTES = 4 << 30
"""The largest file; the project's tests have sparse ones of more than 2 GiB."""

_CHECK_SECONDS = 60
"""For one check."""

_STAGE_SECONDS = 1800.0
_LEAST_SECONDS = 300.0
_SLOWER = 5
"""A stage that takes so many times as long as without a mutant, and `_LEAST_SECONDS`, is ended."""

_ONLY_TEMPORARY = 'mount --bind /tmp /tmp && mount --bind "$0" "$0" && mount -o remount,bind,ro / && "$@"; exit $?'
_APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", _ONLY_TEMPORARY)
"""A mutant of the package could kill any process and remove any file. So it sees only its own processes, which end
together, and it can write only below /tmp and the directory of the run."""


class Outcome(NamedTuple):
    """A stage with a mutant: the test that failed first, or nothing, and the first line of its message."""

    stage: str
    test: str
    finding: str
    seconds: float


NO_END = "no test's end"
"""The test of an outcome where none has failed, but the stage has."""

TIMED = "handle_reuse"
"""A test that compares times. On a busy machine it can fail without a defect."""


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
    builder
        The unchanged library.
    apart
        Whether what runs is kept apart from other processes and from the machine's files, which root may do.
    """

    def __init__(self, directory: Path, builder: Builder, *, apart: bool = False) -> None:
        self._apart = apart
        self._directory = directory
        self._builder = builder
        self._starpu = directory / "starpu"
        self._limits: dict[Stage, float] = {}
        self.package = directory / "package"
        headers = ("native/include", "native/src/kernels", "native/probe")
        for part in ("starpullm", *headers):  # the checkout may change meanwhile
            shutil.copytree(CHECKOUT / part, self.package / part, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        builder.install_others(self.package / "starpullm")
        self._starpu.mkdir()

    def measure(self, stage: Stage, level: str | None) -> None:
        """Run a stage on the unchanged library, and keep StarPU's calibration of the machine.

        Raises
        ------
        RuntimeError
            If it doesn't pass.
        """
        outcome = self.try_mutant(stage, self._builder.library, level, keep=True)
        if outcome.test:
            raise RuntimeError(f"{stage.name}: the unchanged sources do not pass: {outcome}")
        limit = max(_LEAST_SECONDS, _SLOWER * outcome.seconds, self._limits.get(stage, 0))
        self._limits[stage] = min(limit, _STAGE_SECONDS)

    def try_mutant(
        self, stage: Stage, library: Path, level: str | None = None, package: Path | None = None, *, keep: bool = False
    ) -> Outcome:
        """Run a stage until a test fails; again if it may be the machine that was slow."""
        folder = Path(tempfile.mkdtemp(prefix="mutant-", dir=self._directory))
        try:
            shutil.copytree(self._starpu, folder / "starpu")
            environment = self._environment(library, level, package or self.package, folder)
            outcome = self._run_pytest(stage, environment, folder)
            of_project = (
                self._apart and stage.files and outcome.test != NO_END
            )  # some of these tests wait a second only
            if outcome.test.startswith(TIMED) or (outcome.test and of_project):
                outcome = self._run_pytest(stage, environment, folder)
            if keep:
                shutil.copytree(folder / "starpu", self._starpu, dirs_exist_ok=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # with whatever a mutant has left there
        return outcome

    def _environment(self, library: Path, level: str | None, package: Path, folder: Path) -> dict[str, str]:
        environment = {
            "STARPULLM_LIB": str(library),
            "STARPULLM_LOCK": str(self._directory / "lock"),
            "STARPU_HOME": str(folder / "starpu"),
            "HOME": str(folder),
            "OMP_WAIT_POLICY": "passive",  # on a busy machine threads that spin wait for those that do not run
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": str(package),
            "PYTHONDONTWRITEBYTECODE": "1",
            "COLUMNS": "1000",  # of pytest's lines, which have the reasons
        }
        return {**environment, "STARPULLM_SIMD": level} if level else environment

    def _run_pytest(self, stage: Stage, environment: Mapping[str, str], folder: Path) -> Outcome:
        """Run the stage's part of the suite, or the project's own tests, until one fails."""
        (folder / "pytest.ini").write_text("[pytest]\n")
        arguments = [*load_plugin(), *UNUSED, "-x", "-q", "-rfE", "--color=no", "-p", "no:cacheprovider"]
        if stage.files:
            files = [str(CHECKOUT / "tests" / "native" / name) for name in stage.files]
            arguments += ["--timeout=120", "--timeout-method=thread", *stage.arguments, *files]
        else:
            arguments += ["--starpullm-strict", "--starpullm-time-limit", str(_CHECK_SECONDS), *stage.arguments]
            arguments += ["--pyargs", "starpullm.suite"]
        ranks = mpirun_here(stage.ranks, (), os.environ["PATH"]) if stage.ranks > 1 else []
        arguments += ["--starpullm-over-ranks"] if ranks else []
        apart = [*_APART, str(self._directory)] if self._apart else []
        command = ["env", "-C", str(folder), *apart, *ranks, sys.executable, "-P", "-m", "pytest", *arguments]
        ending = run_job(Job(command, self._limits.get(stage, _STAGE_SECONDS), None, environment))
        seconds = round(ending.seconds, 1)
        if isinstance(ending, Completed):
            return Outcome(stage.name, "", "", seconds)
        failed = re.search(r"^(?:FAILED|ERROR) \S*?([^/:\s]+)(?: - (.*))?$", ending.stdout, re.MULTILINE)
        if failed:
            return Outcome(stage.name, failed[1], (failed[2] or "")[:80], seconds)
        return Outcome(stage.name, NO_END, _reason(ending), seconds)


def machine_of(library: Path, level: str | None = None) -> dict[str, Any] | None:
    """Return what ``starpullm doctor`` says of this machine; None if it does not have a level."""
    environment = {"STARPULLM_LIB": str(library), "PYTHONPATH": str(CHECKOUT)}
    if level:
        environment["STARPULLM_SIMD"] = level
    job = Job([sys.executable, "-P", "-m", "starpullm.commands", "doctor", "--json"], 60, None, environment)
    ending = run_job(job)
    if not isinstance(ending, Completed):
        return None
    found: dict[str, Any] = json.loads(ending.stdout)
    return found if level in (None, found["simd_level"]) else None


def _reason(ending: JobEnding) -> str:
    """Return the last line that a suite has written which could not start."""
    lines = [line for line in (ending.stdout + os.linesep + ending.stderr).splitlines() if line.strip()]
    return f"{ending.sentence}: {lines[-1].strip()[:100]}" if lines else ending.sentence
