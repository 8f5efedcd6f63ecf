"""Compiles the programs of this directory against the StarPU of the installed package, once per session."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from starpullm.probe import ProbeResult, probe_program

SOURCES = Path(__file__).parent / "programs"

Compile = Callable[[str], Path]


def probe(command: Sequence[str], *, tolerance: str | None = None, **options: Any) -> ProbeResult:
    """Probe a program of doubles, whose runs have 60 s unless the options say something else."""
    numbers = None if tolerance is None else "double"
    return probe_program(command, **{"time_limit": 60, **options}, tolerance=tolerance, tolerance_type=numbers)


@pytest.fixture(scope="session")
def starpu_prefix() -> Path:
    doctor = subprocess.run(
        [sys.executable, "-P", "-m", "starpullm.commands", "doctor", "--json"],
        capture_output=True,
        timeout=60,
        check=True,
    )
    return Path(json.loads(doctor.stdout)["starpu_prefix"])


@pytest.fixture(scope="session")
def compiled(starpu_prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Return a function from the name of a source to the program, compiled when first asked for."""
    directory = tmp_path_factory.mktemp("programs")
    plain = os.environ.get("CC") or shutil.which("cc") or "gcc"

    @cache
    def compile_(name: str) -> Path:
        program = directory / name
        text = (SOURCES / f"{name}.c").read_text("utf-8")
        compiler, libraries = ("mpicc", ["-lstarpumpi-1.4"]) if "starpu_mpi.h" in text else (plain, [])
        libraries += ["-lOpenCL"] * ("starpu_opencl.h" in text)
        command = [compiler, "-g", "-O1", "-o", str(program), str(SOURCES / f"{name}.c")]
        command += [
            f"-I{starpu_prefix}/include/starpu/1.4",
            f"-L{starpu_prefix}/lib",
            *libraries,
            "-lstarpu-1.4",
            "-lm",
        ]
        command += [f"-Wl,-rpath,{starpu_prefix}/lib"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert run.returncode == 0, run.stderr
        return program

    return compile_


@pytest.fixture(scope="session")
def scenarios(compiled: Compile) -> Path:
    return compiled("scenarios")


@pytest.fixture(scope="session")
def ranks(compiled: Compile) -> list[str]:
    """Return the command of two ranks, without the name of what they run."""
    return ["mpirun", "--oversubscribe", "--allow-run-as-root", "-n", "2", str(compiled("ranks"))]


@pytest.fixture(autouse=True, scope="session")
def _starpu_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """StarPU writes its calibration there, once for all programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STARPU_HOME", str(tmp_path_factory.mktemp("starpu")))
        patch.setenv("STARPU_SILENT", "1")
        for variable in ("STARPU_NCPU", "STARPU_SCHED", "HWLOC_SYNTHETIC"):
            patch.delenv(variable, raising=False)
        yield
