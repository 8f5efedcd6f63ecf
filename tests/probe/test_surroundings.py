"""What a program takes from its surroundings: each run gets the same, or the answer names what is the reason."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from starpullm.checks.result import Outcome
from starpullm.errors import InvalidArgumentError
from starpullm.probe.diagnose_missing_log import launcher_of, program_of
from starpullm.probe.findings import Fault
from starpullm.probe.program import without_random_addresses

from .conftest import Compile, probe

TIME_LIMIT = 100


@pytest.fixture(scope="module")
def program(compiled: Compile) -> str:
    return str(compiled("surroundings"))


def probe_with_input(program: str, name: str, given: int | None, *options: str) -> str:
    """Return what the command prints; it has a file descriptor as its standard input."""
    command = [sys.executable, "-P", "-m", "starpullm.commands", "probe", "--runs", "1", *options, "--", program, name]
    run = subprocess.run(command, stdin=given, capture_output=True, text=True, timeout=TIME_LIMIT, check=False)
    assert run.returncode == 0, run.stderr + run.stdout
    return run.stdout


def refusal(*command: str, keep: Path | None = None) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        probe(command, runs=1, keep=keep)
    return str(caught.value)


# ---- Input ----


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_each_run_gets_the_same_input(program: str, tmp_path: Path, kind: str) -> None:
    """Of a file what follows the place where it is, of a pipe what the first run reads, though it is never closed."""
    (tmp_path / "input").write_text("9\n7\n")
    source = (tmp_path / "input").open("rb", 0)
    source.seek(2)
    given, sink = os.pipe() if kind == "pipe" else (source.fileno(), None)
    if sink is not None:
        os.write(sink, b"7\n")
    said = probe_with_input(program, "reads", given, "--keep", str(tmp_path / "logs"))
    outputs = [path.read_text() for path in (tmp_path / "logs").glob("*/stdout")]
    assert outputs == ["7\n"] * 6
    assert "run: 7 tasks" in said
    source.close()
    if sink is not None:
        os.close(given)
        os.close(sink)


def test_a_terminal_is_no_input_and_that_is_said(program: str) -> None:
    master, terminal = pty.openpty()
    try:
        said = probe_with_input(program, "plain", terminal)
    finally:
        os.close(master)
        os.close(terminal)
    assert "standard input is a terminal, from which no run reads: < FILE gives" in said


def test_what_one_run_alone_could_read_is_refused(program: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for argument in (f"--in={tmp_path}/fifo", "/dev/fd/7", "/proc/self/fd/63"):
        assert f"{argument}: is a pipe or an open file" in refusal(program, "plain", argument)
    assert probe([program, "plain", "/dev/fd/0", "x" * 5000], runs=1).outcome is Outcome.PASSED


def test_addresses_of_variables_are_the_same_in_each_run(program: str) -> None:
    """Other variables of the probe lie above the stack in each run."""
    with without_random_addresses():
        maps = [subprocess.check_output(["cat", "/proc/self/maps"], timeout=60) for _ in range(2)]
    if maps[0] != maps[1]:
        pytest.skip("this container forbids addresses that aren't random")
    result = probe([program, "keeps_an_address"], runs=3)
    assert result.outcome is Outcome.PASSED, result.lines()
    assert result.different == 0


# ---- Files ----


def test_what_earlier_runs_have_left_is_named(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").touch()
    words = f"runs have changed {{}} in {tmp_path}, so that each run finds what the last one has left: remove"
    for name in ("continues", "ends_with_file"):
        result = probe([program, name], runs=1)
        assert result.outcome is (Outcome.PASSED if name == "continues" else Outcome.NOT_COMPARABLE), result.lines()
        assert bool(result.unseen) is (name == "continues")  # a few tasks are left out
        assert words.format("out") in "\n".join(result.lines())
        (tmp_path / "out").unlink()
    sentence = refusal(program, "starts_with_file")
    assert words.format("out") in sentence
    assert "it said: out: File exists; " in sentence
    (tmp_path / "out").unlink()
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    logs = tmp_path / "folder" / "logs"
    assert f"runs have changed {tmp_path}/out in " in refusal(program, "starts_with_file", f"{tmp_path}/out", keep=logs)
    again = ["sh", "-c", f"rm -f out; exec {program} starts_with_file"]
    assert probe(again, runs=1).outcome is Outcome.PASSED


# ---- Variables of StarPU ----


def test_a_scheduler_that_the_program_sets(program: str, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\nexport STARPU_SCHED=lws\nexec {program} plain\n")
    script.chmod(0o755)
    for command, name in (([program, "sets_scheduler"], "dmda"), ([str(script)], "lws")):
        result = probe(command, runs=1)
        assert (result.outcome, result.num_tasks, result.num_workers) == (Outcome.PASSED, 12, 4), result.lines()
        assert result.surroundings == (f"changed by the program or a script: STARPU_SCHED={name}",)


def test_a_program_that_keeps_the_probe_out(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "it started StarPU with another scheduling policy, expected STARPU_SCHED_LIB as the probe sets it"
    assert words in refusal(program, "sets_library")
    words = (
        "it ended before it started StarPU, as a program may if STARPU_SCHED is set, or started it without the probe"
    )
    assert f"ended with exit status 77; {words}" in refusal(program, "wants_no_scheduler")
    assert words in refusal("env", "-i", program, "plain")
    monkeypatch.setenv("STARPU_NTHREADS_PER_CORE", "2")
    monkeypatch.setenv("STARPU_PREFIX", "/opt/starpu")  # bootstrap.sh reads it
    sentence = refusal(program, "plain")
    assert "was ended by SIGABRT" in sentence
    assert "; the environment has " in sentence
    assert "STARPU_NTHREADS_PER_CORE=2" in sentence
    assert "STARPU_PREFIX" not in sentence


def test_the_users_variables_take_no_worker_away(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """StarPU's warning is heard, also where the user has silenced it."""
    for name in ("RESERVE_NCPU", "MAIN_THREAD_BIND", "DISABLE_KERNELS", "NCPUS", "NCPU", "SILENT"):
        monkeypatch.setenv(f"STARPU_{name}", "1")
    monkeypatch.setenv("STARPU_SCHED", "eager")
    monkeypatch.setenv("HWLOC_SYNTHETIC", "core:1 pu:1")
    result = probe([program, "plain"], runs=1)
    assert (result.outcome, result.num_workers) == (Outcome.PASSED, 4), result.lines()
    assert result.surroundings == ("StarPU: Warning: the current CPU binding set contains only one CPU.",)
    assert not any(note.kind is Fault.NEVER_CHANGED for note in result.notes)


# ---- Workers, and whose StarPU ----


def test_what_ran_on_one_worker_is_not_the_same(program: str) -> None:
    for name, workers in (("asks_for_one_worker", 4), ("plain", 1)):
        result = probe([program, name], runs=1, workers=workers)
        assert (result.outcome, result.num_workers) == (Outcome.NOT_COMPARABLE, 1), result.lines()
        assert result.sentence.startswith("not comparable: StarPU had one worker")
        assert "run: 12 tasks on 1 worker, " in result.lines()[1]
        changed = "changed by the program or a script: STARPU_NCPU=1"
        assert (changed in result.surroundings) == (workers == 4)


def test_fewer_workers_than_asked_for_are_said(program: str) -> None:
    result = probe([program, "takes_two"], runs=1)
    assert result.outcome is Outcome.PASSED
    assert "run: 12 tasks on 2 workers, " in result.lines()[1]
    assert result.surroundings == ("StarPU's workers: 2, where --workers asks for 4",)
    assert any(name.startswith("seed 1, 2 workers, ") for name in result.seconds)


def test_another_starpu_is_named_beside_the_probes(
    program: str, starpu_prefix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (library,) = (of for of in starpu_prefix.glob("lib*/libstarpu-1.4.so.*") if of.name.count(".") == 3)  # its SONAME
    other = Path(shutil.copy(library, tmp_path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    (line,) = probe([program, "plain"], runs=1).surroundings
    assert f": {other}; the probe was compiled for 1.4." in line
    assert line.endswith(f" in {starpu_prefix}")


def test_a_starpu_with_other_limits_is_refused(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has structs of other sizes, in which the probe would read elsewhere; here a library before it has."""
    source, library = tmp_path / "limits.c", tmp_path / "limits.so"
    source.write_text("char starpu_codelet_nop[16];\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    sentence = refusal(program, "plain")
    assert "found StarPU 1.4." in sentence
    assert "libstarpu-1.4.so" in sentence
    assert sentence.endswith(", or one with its configuration")


# ---- Launchers ----


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("mpirun -n 2 --map-by ls {}", "{}"),
        ("mpirun --oversubscribe -n 2 -x A=B --mca plm ls {} ls", "{}"),
        ("srun -N 1 {}", "{}"),
        ("env A=B mpirun.openmpi -n 2 taskset -c 0 {}", "{}"),
        ("taskset -c 0 {}", "{}"),
        ("mpirun -n 2 --map-by ls cat x", "cat"),
        ("mpirun --mca plm ls cat x", "cat"),
        ("mpirun --oversubscribe cat x", "cat"),
        ("mpirun --output-filename /no/file -n 2 ./missing", "./missing"),
        ("cat {}", "{}"),
        ("cat ls", "cat"),
    ],
)
def test_the_value_of_a_launchers_option_is_not_the_program(program: str, command: str, expected: str) -> None:
    words = command.format(program).split()
    assert program_of(words) == expected.format(program)
    assert Path(launcher_of(words)).name.partition(".")[0] == next(
        (word.partition(".")[0] for word in words if word.startswith(("mpirun", "srun"))), ""
    )


def test_what_a_launcher_refuses_is_told_as_its_own(ranks: list[str]) -> None:
    sentence = refusal(ranks[0], "--no-such-option", *ranks[1:], "commute")
    assert sentence.startswith(f"mpirun: ended with exit status 1, and no {ranks[-1]} had started StarPU; it said: ")
    assert "no-such-option" in sentence
