"""The stages that a mutant goes through, and what one of them has found: which check caught it, and how."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from starpullm.checks.check import all_checks
from starpullm.golden.records import SHIPPED_RECORDS, THRESHOLD_RECORDS
from starpullm.processes.job import Completed, Job, JobEnding, TimedOut, run_job
from starpullm.processes.mpirun import mpirun_here

from ...pytest_children import UNUSED, load_plugin
from ..mutants import Builder
from ..patches import CHECKOUT

__all__ = ["STAGES", "Outcome", "Stage", "Workplace", "classify", "inspect", "limit_this_process"]

_RECORDS = re.compile(rf"[\[-]({'|'.join(SHIPPED_RECORDS)})[-\]]")


@dataclass(frozen=True)
class Program:
    """A C test: its name, and what the path of a mutant's file has to contain for it to be run.

    Parameters
    ----------
    name, part
        These two.
    arguments, environment
        With which it is run.
    in_folder
        Whether its last argument is a folder for its files.
    """

    name: str
    part: str = ""
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    in_folder: bool = True


@dataclass(frozen=True)
class Stage:
    """A part of the suite, or of the project's own tests.

    Parameters
    ----------
    name
        What the results call it.
    records
        Of the suite's tests those with one of these records; none: all of `families` or `only`.
    families
        Of checks.
    only, others
        The checks with these names, or the ones with other names.
    ranks
        How many run it.
    files
        Of the project's own tests.
    programs
        C tests.
    """

    name: str
    records: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    ranks: int = 1
    files: tuple[str, ...] = ()
    programs: tuple[Program, ...] = ()

    def selects(self, test: str) -> bool:
        """Return whether a test of the suite is part of this stage."""
        check = check_of(test)
        if check not in all_checks() or (self.only and check not in self.only) or check in self.others:
            return False
        family = all_checks()[check].family
        if not self.records:
            return bool(self.only) or family in self.families
        record = _RECORDS.search(test)
        return record is not None and record[1] in self.records and family not in _LONG and check != "perturbation"


def check_of(test: str) -> str:
    """Return the name of the check that a test of the suite runs."""
    return re.split(r"[-\]]", test.partition("[")[2], maxsplit=1)[0].replace("_", " ")


UNKNOWN_LIBM = (("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-FMA"),)
"""The environment of a libm that is not known to have the bits of the vector versions, as ctest has it."""

_LONG = ("memory", "interface", "scenario")
"""Families whose tests take long, or depend on no record."""

_PARITY = ("parity", "losses of ranks")

_OWN_TESTS = (
    "limits/test_limits.py",
    *(f"test_{name}.py" for name in ("trainer", "saving", "bad_input", "partitions", "reduction_modes")),
)

STAGES = (
    Stage("quick", records=("tiny",)),
    Stage("interface", families=("interface",)),
    Stage("scenarios", families=("scenario",)),
    Stage("parity", records=("odd", "small", "deep"), only=_PARITY),
    Stage("two ranks, parity", records=("tiny", "small"), only=_PARITY, ranks=2),
    Stage("two ranks, interface", families=("interface",), ranks=2),
    Stage("two ranks, scenarios", families=("scenario",), ranks=2),
    Stage("two ranks, transfers", only=("transfers",), ranks=2),
    Stage("memory", families=("memory",)),
    Stage("two ranks, tiny", records=("tiny",), others=_PARITY, ranks=2),
    Stage("two ranks, memory", families=("memory",), ranks=2),
    Stage("thresholds", records=THRESHOLD_RECORDS, only=_PARITY),
    Stage("odd", records=("odd",), others=_PARITY),
    Stage("delays", only=("perturbation",)),
    Stage("two ranks, small", records=("small",), others=_PARITY, ranks=2),
    Stage("two ranks, thresholds", records=THRESHOLD_RECORDS, only=_PARITY, ranks=2),
    Stage("small", records=("small",), others=_PARITY),
    Stage("deep", records=("deep",), others=_PARITY),
    Stage("kernels", families=("kernels",)),
    Stage(
        "C tests",
        programs=(
            Program("test_kernels", "kernels/", in_folder=False),
            Program("test_libm", "kernels/", in_folder=False),
            *(
                Program("test_kernels", "kernels/simd/", (operation,), UNKNOWN_LIBM, in_folder=False)
                for operation in ("softmax_forward", "attention_forward", "gelu_backward")
            ),
            Program("test_files", "io/"),
            Program("test_training_state", "io/"),
            Program("test_training"),
            Program("test_allocation"),
        ),
    ),
    Stage("project's tests", files=_OWN_TESTS),
)
"""All but the last two are the default suite, without the throughput tests that it skips, and its run on two ranks.
The last two are not the suite, which users have, but a part of the project's own tests."""

MEMORY_BYTES = 8 << 30
"""Address space of one process. The unchanged library needs less than 3 GiB of it, most of which is never touched."""

FILE_BYTES = 256 << 20

_CHECK_SECONDS = 60
"""For one check."""

_PROGRAM_SECONDS = 200.0
_STAGE_SECONDS = 1800.0


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
        The first line of its message.
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


TIMED = "handle_reuse"
"""A test that compares times. On a busy machine it can fail without a defect."""

_HOW = (
    ("memory limit", r"MemoryError|cannot allocate memory|out of memory|no memory|to get memory"),
    ("time limit", r"had not ended after|at its time limit|SIGXCPU"),
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
    builder
        The unchanged library, and the C tests.
    starpu
        A folder with StarPU's calibration of the machine, which an interrupted run leaves for the next.
    """

    def __init__(self, directory: Path, builder: Builder, starpu: Path) -> None:
        self._directory = directory
        self._builder = builder
        self._starpu = starpu
        self.package = directory / "package"
        headers = ("native/include", "native/src/kernels", "native/probe")
        for part in ("starpullm", *headers, "tests/mutation"):  # the checkout may change meanwhile
            shutil.copytree(CHECKOUT / part, self.package / part, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        for package in ("tests", "tests/native"):
            (self.package / package).mkdir(exist_ok=True)
            (self.package / package / "__init__.py").touch()
        builder.install_others(self.package / "starpullm")
        starpu.mkdir(exist_ok=True)

    def measure(self, stage: Stage, level: str | None) -> float:
        """Run a stage on the unchanged library, and keep StarPU's calibration of the machine; return the seconds.

        Raises
        ------
        RuntimeError
            If it doesn't pass.
        """
        everywhere = "native/src/kernels/simd/io/"  # a path that every C test is run for
        outcome = self.try_mutant(stage, self._builder.library, level, {}, everywhere, keep=True)
        if outcome.how:
            raise RuntimeError(f"{stage.name}: the unchanged library does not pass: {outcome}")
        return outcome.seconds

    def try_mutant(
        self,
        stage: Stage,
        library: Path,
        level: str | None,
        objects: Mapping[str, Path],
        file: str,
        *,
        keep: bool = False,
    ) -> Outcome:
        """Run a stage until a test fails; again if it may be the machine that was slow."""
        with self._folder() as folder:
            environment = self._environment(library, level, folder)
            outcome = self._run_programs(stage, environment, library, objects, file, folder)
            if not stage.programs:
                outcome = self._run_pytest(stage, environment, folder)
            if outcome.check.startswith(TIMED):
                again = self._run_pytest(stage, environment, folder)
                outcome = replace(again, seconds=round(outcome.seconds + again.seconds, 1))
            if keep:
                shutil.copytree(folder / "starpu", self._starpu, dirs_exist_ok=True)
        return outcome

    def _environment(self, library: Path, level: str | None, folder: Path) -> dict[str, str]:
        environment = {
            "STARPULLM_LIB": str(library),
            "STARPULLM_LOCK": str(self._directory / "lock"),
            "STARPU_HOME": str(folder / "starpu"),
            "HOME": str(folder),
            "HWLOC_SYNTHETIC": "numa:1 core:2 pu:1",
            "OMP_WAIT_POLICY": "passive",  # on a busy machine threads that spin wait for those that do not run
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": str(self.package),
            "PYTHONDONTWRITEBYTECODE": "1",
            "COLUMNS": "1000",  # of pytest's lines, which have the reasons
        }
        return {**environment, "STARPULLM_SIMD": level} if level else environment

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        """Provide an empty folder with StarPU's calibration; whatever a mutant leaves there is removed."""
        folder = Path(tempfile.mkdtemp(prefix="mutant-", dir=self._directory))
        try:
            shutil.copytree(self._starpu, folder / "starpu")
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _run_programs(
        self,
        stage: Stage,
        environment: Mapping[str, str],
        library: Path,
        objects: Mapping[str, Path],
        file: str,
        folder: Path,
    ) -> Outcome:
        """Run C tests, linked with the mutant's objects, until one fails."""
        seconds = 0.0
        for test in stage.programs:
            if test.part not in file:
                continue
            program = self._builder.link_program(test.name, objects, folder, library)
            arguments = [*test.arguments, *([str(folder)] if test.in_folder else [])]
            # one of them makes a large file that is mostly a hole
            command = ["prlimit", "--fsize=unlimited", "env", "-C", str(folder), str(program), *arguments]
            ending = run_job(Job(command, _PROGRAM_SECONDS, None, {**environment, **dict(test.environment)}))
            seconds += ending.seconds
            if not isinstance(ending, Completed):
                how = "time limit" if isinstance(ending, TimedOut) else classify(ending.sentence)
                how = "finding" if how == "exit" else how
                return Outcome(stage.name, how, test.name, _reason(ending), round(seconds, 1))
        return Outcome(stage.name, None, "", "", round(seconds, 1))

    def _run_pytest(self, stage: Stage, environment: Mapping[str, str], folder: Path) -> Outcome:
        """Run the stage's part of the suite, or the project's own tests, until one fails."""
        (folder / "pytest.ini").write_text("[pytest]\n")
        arguments = [*load_plugin(), *UNUSED, "-x", "-q", "-rfE", "--color=no", "-p", "no:cacheprovider"]
        if stage.files:
            files = [str(CHECKOUT / "tests" / "native" / name) for name in stage.files]
            arguments += ["--timeout=120", "--timeout-method=thread", *files]
        else:
            arguments += ["-p", "tests.mutation.generated.selected", "--stage", stage.name, "--starpullm-strict"]
            arguments += ["--starpullm-time-limit", str(_CHECK_SECONDS), "--pyargs", "starpullm.suite"]
        ranks = mpirun_here(stage.ranks, (), os.environ["PATH"]) if stage.ranks > 1 else []
        arguments += ["--starpullm-over-ranks"] if ranks else []
        command = ["env", "-C", str(folder), *ranks, sys.executable, "-P", "-m", "pytest", *arguments]
        ending = run_job(Job(command, _STAGE_SECONDS, None, environment))
        seconds = round(ending.seconds, 1)
        if isinstance(ending, Completed):
            return Outcome(stage.name, None, "", "", seconds)
        if isinstance(ending, TimedOut) or "+++ Timeout +++" in ending.stdout + ending.stderr:
            return Outcome(stage.name, "time limit", "a test's time limit", _reason(ending), seconds)
        failed = re.search(r"^(?:FAILED|ERROR) \S*?([^/:\s]+)(?: - (.*))?$", ending.stdout, re.MULTILINE)
        if failed:
            finding = failed[2] or ""
            return Outcome(stage.name, classify(finding), failed[1], finding[:80], seconds)
        return Outcome(stage.name, classify(ending.sentence), "the start of the tests", _reason(ending), seconds)


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


def _reason(ending: JobEnding) -> str:
    """Return the last line that a suite has written which could not start."""
    lines = [line for line in (ending.stdout + os.linesep + ending.stderr).splitlines() if line.strip()]
    return f"{ending.sentence}: {lines[-1].strip()[:100]}" if lines else ending.sentence
