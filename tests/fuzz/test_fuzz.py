"""`starpullm fuzz` with a real StarPU: right programs pass, and each kind of failure is told with a C program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from starpullm.checks.cases import Case
from starpullm.checks.random_programs import RandomPrograms
from starpullm.checks.result import Outcome
from starpullm.commands.main import main
from starpullm.errors import InvalidArgumentError, MissingDependencyError
from starpullm.fuzz.configuration import Configuration
from starpullm.fuzz.interpreter import Interpreter, built_interpreter, c_program, compile_c, starpu_flags
from starpullm.fuzz.oracle import SPARSE, Oracle
from starpullm.fuzz.search import search_seed

pytestmark = pytest.mark.timeout(240)

PLAIN = Configuration("eager", 2)
WRONG = """\
starpullm-fuzz 1 1
handle 0 1 4 1 1 1
task 0 0 0 0 0 -1 -1 0 1 0 R 0x11 0
wait_for_all
unregister 0 0 0
end
"""
RIGHT = WRONG.replace("0x11 ", "0x35e2aa2e0bad5cf ")
ENDLESS = RIGHT.replace("task 0 0", "task 0 4").replace("0x35e2aa2e0bad5cf 0", "0x35e2aa2e0bad5cf 1 9")
"""Its task waits for a tag that no task has."""


SYNCHRONISED = WRONG.replace("task 0 0 0 0 0 -1 -1 0 1 0 R 0x11 0", "synchronise 0 RW 0x11")
KEPT = WRONG.replace("task 0 0 0 0 0 -1 -1 0 1 0 R 0x11 0", "invalidate 0 1")
"""Its memory isn't StarPU's."""


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with built_interpreter() as directory:
        yield directory


def test_right_and_wrong_programs_one_after_another(directory: Path) -> None:
    with Interpreter(directory, PLAIN) as interpreter:
        assert interpreter.run(RIGHT, 60) is None
        wrong = interpreter.run(WRONG, 60)
        assert wrong is not None
        assert re.fullmatch(r"task 0 sees 035e2aa2e0bad[0-9a-f]+ in handle 0, expected 0+11", wrong.sentence)
        assert interpreter.run(RIGHT, 60) is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (SYNCHRONISED, "handle 0 isn't as expected after a synchronising task"),
        (KEPT, "handle 0: its memory is kept after it was invalidated"),
    ],
)
def test_what_the_program_itself_looks_at(directory: Path, text: str, sentence: str) -> None:
    with Interpreter(directory, PLAIN) as interpreter:
        wrong = interpreter.run(text, 60)
        assert wrong is not None
        assert wrong.sentence == sentence


def test_a_task_is_waited_for_from_before_it_is_submitted(directory: Path) -> None:
    text = RIGHT.replace("task 0 0", "task 0 17").replace("wait_for_all", "wait 0")
    with Interpreter(directory, PLAIN) as interpreter:
        assert interpreter.run(text, 60) is None
        late = interpreter.run(text.replace("task 0 17", "task 0 16"), 60)
        assert late is not None
        assert "detach = 0" in late.sentence


def test_parts_of_parts_of_sparse_data(directory: Path) -> None:
    oracle = Oracle(1)
    oracle.handle(bytes([SPARSE, 0, 1, 0]))
    for _ in range(2):
        oracle.partition(bytes(4))
    oracle.task(bytes([0, 1, 1, *bytes(12)]))
    oracle.end()
    with Interpreter(directory, PLAIN) as interpreter:
        assert interpreter.run(oracle.text(), 60) is None


def test_parallel_tasks_on_workers_of_a_set(directory: Path) -> None:
    """The first one runs on one of several workers, the second one on all of them."""
    oracle = Oracle(1)
    oracle.handle(bytes(4))
    for _ in range(2):
        oracle.task(bytes([0, 0, 1, *bytes(7), 224, 152, 0, 0, 0]))
    oracle.end()
    tasks = [line for line in oracle.text().splitlines() if line.startswith("task")]
    assert [line[:31] for line in tasks] == [f"task {number} 32 0 3 50 -1 -1 0 1 0 RW" for number in range(2)]
    with Interpreter(directory, Configuration("peager", 4)) as interpreter:
        assert interpreter.run(oracle.text(), 60) is None


def test_a_task_runs_in_its_context(directory: Path) -> None:
    text = RIGHT.replace("task 0 ", "context 1 2 2 0\ncontext_task 1 0 ").replace("all\n", "all\ndelete_context 1\n")
    outside = text.replace("context_task 1 0 0 0 0 0", "context_task 1 0 0 0 1 0")  # StarPU obeys EXECUTE_ON_WORKER
    with Interpreter(directory, Configuration("prio", 4)) as interpreter:
        assert interpreter.run(text, 60) is None
        failure = interpreter.run(outside, 60)
    assert failure is not None
    assert failure.sentence == "task 0 runs on worker 0, which isn't in its context"


def test_tasks_of_parallel_workers(directory: Path) -> None:
    oracle = Oracle(1)
    oracle.handle(bytes([1, 0, 0, 240]))  # without order, so that tasks could run at once
    oracle.parallel_workers(b"\1")
    oracle.context(b"\1")
    for _ in range(8):
        oracle.task(bytes([0, 0, 0, *bytes(7), 224, 152, *bytes(3)]))
    oracle.end()
    lines = [line.split() for line in oracle.text().splitlines()]
    assert [line[4] for line in lines if line[0] == "task"] == ["0"] * 8  # any worker
    names = [line[0] for line in lines[2:]]
    assert names == [
        *("wait_for_all", "parallel_workers", *["task"] * 8),
        *("wait_for_all", "wait_for_all") * 2,
        *("parallel_workers", "unregister", "end"),
    ]
    with Interpreter(directory, Configuration("prio", 4)) as interpreter:
        assert interpreter.run(oracle.text(), 60) is None


def test_a_hang_has_the_stacks_of_its_workers(directory: Path) -> None:
    with Interpreter(directory, PLAIN) as interpreter:
        failure = interpreter.run(ENDLESS, 1)
        assert failure is not None
        assert failure.is_hang
        assert "wait" in failure.details
        assert interpreter.run(RIGHT, 60) is None


def test_a_program_that_waits_for_a_processor_has_not_hung(directory: Path) -> None:
    delayed = RIGHT.replace("-1 -1 0 1 0 R", "-1 -1 20000 1 0 R")
    with ExitStack() as stack, Interpreter(directory, PLAIN) as interpreter:
        assert interpreter.run(RIGHT, 60) is None
        process = interpreter._process
        assert process is not None
        for thread in Path(f"/proc/{process.pid}/task").iterdir():
            os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))
        for _ in os.sched_getaffinity(0):
            busy = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(busy.kill)
        start = time.monotonic()
        assert interpreter.run(delayed, 0.05) is None
        assert time.monotonic() - start > 0.05


def test_a_program_of_another_version_is_refused(directory: Path) -> None:
    with Interpreter(directory, PLAIN) as interpreter:
        failure = interpreter.run(RIGHT.replace("fuzz 1", "fuzz 2"), 60)
    assert failure is not None
    assert failure.sentence == "a program of version 2, expected 1"


def test_a_c_program_fails_alone_as_the_program_does(directory: Path, tmp_path: Path) -> None:
    for name, text, status in (("wrong", WRONG, 1), ("right", RIGHT, 0)):
        compile_c(c_program(text, name), tmp_path / name, ["-Wall", "-Werror", *starpu_flags()])
        run = subprocess.run(
            [tmp_path / name], env=PLAIN.environment(directory), capture_output=True, timeout=100, check=False
        )
        assert (run.returncode, run.stdout != b"ok\n") == (status, bool(status))


def test_unmodified_starpu_passes(directory: Path) -> None:
    finding, ran = search_seed(directory, 3, "scheduler=lws,workers=3,nodes=1,disk=0,perturb=0", float("inf"), 20)
    assert finding is None
    assert ran == 20


def test_a_scheduler_that_starpu_does_not_have(directory: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="configuration scheduler=nothing"):
        search_seed(directory, 1, "scheduler=nothing,nodes=1,disk=0", float("inf"), 1)


def test_a_starpu_that_pkg_config_does_not_find(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PKG_CONFIG_LIBDIR", str(tmp_path))
    monkeypatch.delenv("PKG_CONFIG_PATH", raising=False)
    monkeypatch.delenv("STARPU_PREFIX", raising=False)
    with pytest.raises(MissingDependencyError, match=r"starpu-1\.4"):
        starpu_flags()


def test_the_suites_programs_pass_on_one_worker() -> None:
    assert RandomPrograms().run(None, Case(what="eager-1")).outcome is Outcome.PASSED


def test_the_suite_names_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-compiler")
    result = RandomPrograms().run(None, Case(what="eager-1"))
    assert result.outcome is Outcome.NOT_COMPARABLE
    assert "there is no C compiler" in result.sentence


@pytest.mark.parametrize("seed", ["-1", "one", str(1 << 62)])
def test_a_seed_that_is_none(seed: str) -> None:
    result = CliRunner().invoke(main, ["fuzz", f"--seed={seed}"])
    assert result.exit_code == 2
    assert f'--seed: found "{seed}"' in result.output


def test_a_failure_is_shrunk(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A StarPU that copies nothing: what is left has the copy, and what reads it."""
    compile_c("int starpu_data_cpy(void) { return 0; }", tmp_path / "planted.so", ["-shared", "-fPIC"])
    monkeypatch.setenv("LD_PRELOAD", str(tmp_path / "planted.so"))
    finding, _ = search_seed(directory, 1, "scheduler=eager,workers=2,perturb=0", float("inf"), 200)
    assert finding is not None
    assert finding.failed == finding.tried == 20
    words = [line.split()[0] for line in finding.program.text.splitlines()]
    assert words.count("copy") == 1
    assert finding.program.tasks <= 4
    assert len(words) <= 14
