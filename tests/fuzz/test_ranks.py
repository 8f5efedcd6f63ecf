"""`starpullm fuzz` over ranks with a real StarPU-MPI: right programs pass, and failures of a rank are told."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from starpullm.fuzz.configuration import Configuration
from starpullm.fuzz.draw import random_program
from starpullm.fuzz.interpreter import Interpreter, built_interpreter, c_program, compile_c, starpu_flags
from starpullm.fuzz.oracle import Oracle
from starpullm.processes.mpirun import mpirun_here

pytestmark = pytest.mark.timeout(240)

TWO = Configuration("eager", 2, ranks=2, perturb=3)
WRONG = """\
starpullm-fuzz 1 1
0 handle 0 1 4 1 1 1
1 handle 0 1 4 1 0 1
owner 0 0
mpi_task 1 1 0 0 0 0 0 -1 -1 0 1 0 R 0x11 0
mpi_wait_for_all
unregister 0 0 0
end
"""
"""Its task runs on rank 1, and rank 0 owns the data."""
RIGHT = WRONG.replace("0x11 ", "0x35e2aa2e0bad5cf ")
PROGRAMS, OPERATIONS = 20, 60
STALE_COPIES = """
void starpu_mpi_cached_receive_clear(void *handle) { (void)handle; }
void starpu_mpi_cached_send_clear(void *handle) { (void)handle; }
"""
"""Without this, a rank goes on with its copy of data that another rank has changed."""
OTHER_OWNER = (
    "void starpu_mpi_data_migrate(void *comm, void *handle, int rank) { (void)comm, (void)handle, (void)rank; }"
)


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with built_interpreter(2) as directory:
        yield directory


def test_right_and_wrong_programs_one_after_another(directory: Path) -> None:
    with Interpreter(directory, TWO) as interpreter:
        assert interpreter.run(RIGHT, 60) is None
        wrong = interpreter.run(WRONG, 60)
        assert wrong is not None
        assert wrong.sentence.startswith("task 0 sees 035e2aa2e0bad5cf in handle 0, expected")
        assert interpreter.run(RIGHT, 60) is None


def test_a_task_on_another_rank_than_expected(directory: Path) -> None:
    with Interpreter(directory, TWO) as interpreter:
        failure = interpreter.run(RIGHT.replace("mpi_task 1 1", "mpi_task 1 0"), 60)
    assert failure is None  # the rank is given
    with Interpreter(directory, TWO) as interpreter:
        failure = interpreter.run(RIGHT.replace("mpi_task 1 1", "mpi_task 0 1"), 60)
    assert failure is not None
    assert failure.sentence in ("task 0 has run 1 times, expected 0", "task 0 has run 0 times, expected 1")


def test_a_crash_and_a_hang_of_one_rank(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (100.0, 0.0, 0.0))  # mpirun waits for 10 s before it ends
    with Interpreter(directory, TWO) as interpreter:
        crash = interpreter.run(RIGHT.replace("unregister", "1 release 7\nunregister"), 5)
        # Rank 1 drops its copy and waits for another, which rank 0 doesn't send.
        hang = interpreter.run(RIGHT.replace("mpi_wait_for_all", "1 flush 0\n1 get 0 1"), 2)
        assert interpreter.run(RIGHT, 60) is None
    assert crash is not None
    assert crash.sentence.startswith("rank 1 was ended by SIG")
    assert hang is not None
    assert hang.is_hang
    assert "op_get" in hang.details


def test_unmodified_starpu_passes(directory: Path) -> None:
    with Interpreter(directory, TWO) as interpreter:
        for seed in range(PROGRAMS):
            assert interpreter.run(random_program(seed, OPERATIONS, 2).text, 100) is None


@pytest.mark.parametrize("planted", [STALE_COPIES, OTHER_OWNER])
def test_a_planted_mistake_is_found(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    compile_c(planted, tmp_path / "planted.so", ["-shared", "-fPIC"])
    monkeypatch.setenv("LD_PRELOAD", str(tmp_path / "planted.so"))
    with Interpreter(directory, replace(TWO, workers=1, perturb=0)) as interpreter:
        programs = [random_program(seed, OPERATIONS, 2).text for seed in range(PROGRAMS)]
        assert any(interpreter.run(program, 10) for program in programs)


def test_a_c_program_fails_alone_as_the_program_does(directory: Path, tmp_path: Path) -> None:
    environment = {**os.environ, **TWO.environment(directory)}
    oracle = Oracle(1, 2)
    oracle.handle(bytes(4))
    oracle.task(bytes([0, 0, 1, *bytes(10), 99, 0]))
    for _ in range(3):
        oracle.acquire(bytes([0, 1, 1, 0]))
    oracle.end()
    for name, text, status in (("wrong", WRONG, 1), ("right", RIGHT, 0), ("callbacks", oracle.text(), 0)):
        compile_c(c_program(text, name, 2), tmp_path / name, ["-Wall", "-Werror", *starpu_flags(2)], 2)
        command = [*mpirun_here(2, [], environment.get("PATH")), str(tmp_path / name)]
        run = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, timeout=100, check=False)
        assert (run.returncode, run.stdout.count(b"ok\n")) == (status, 2 - status)
