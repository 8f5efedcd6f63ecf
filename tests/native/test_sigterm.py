"""Commands that a signal ends leave nothing behind, neither files nor processes, also in a call that never returns."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from starpullm.processes import service

from .children import TWO_CORES, Process, check_sigterm, cli_command, finish, run_python, started

pytestmark = pytest.mark.usefixtures("own_lock")

BENCH = ("bench", "--model", "tiny", "--iterations", 100000)
BLAS = ("--against", "blas", "--blas-library", "scipy-openblas32")


@pytest.mark.parametrize(
    ("arguments", "made"),
    [
        (BENCH, "starpullm-model-*/model.bin"),
        ((*BENCH, *BLAS), "starpullm-model-*/model.bin"),
        (("scenario", "--minutes", 5), "starpullm-scenario-*/progress"),
        (("scenario", "--minutes", 5, "--ranks", 2), "starpullm-scenario-*/progress"),
        (("parity", *100 * ("tiny",)), "starpullm-parity-*/*"),
    ],
    ids=["bench", "bench against", "scenario", "scenario over ranks", "parity"],
)
def test_sigterm_leaves_nothing_behind(tmp_path: Path, arguments: tuple[object, ...], made: str) -> None:
    def is_at_work(process: psutil.Process) -> bool:
        has_begun = arguments[0] == "parity" or any(service.__name__ in word for word in process.cmdline())
        return has_begun and any(tmp_path.glob(made))

    finished = check_sigterm(cli_command(*arguments), tmp_path, is_at_work, TWO_CORES)
    assert finished.stderr == ""


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Return an environment in which StarPU runs no task."""
    code = "from starpullm.machine import inspect_machine; print(inspect_machine()['starpu_prefix'], end='')"
    include = Path(run_python(code).stdout, "include", "starpu", "1.4")
    library = tmp_path_factory.mktemp("libraries") / "idle_policy.so"
    source = Path(__file__).with_name("idle_policy.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", f"-I{include}", source, "-o", library], check=True, timeout=60)
    return {**TWO_CORES, "STARPU_SCHED_LIB": str(library), "STARPU_SCHED": "idle"}


def wait_for_native_call(process: Process) -> None:
    """Wait until the main thread sleeps, and has slept for a while, in a process of a command that has workers."""
    deadline, slept = time.monotonic() + 30, 0
    while slept < 5:
        assert process.poll() is None, finish(process)
        assert time.monotonic() < deadline, "no call that doesn't return"
        command = psutil.Process(process.pid)
        slept = slept + 1 if any(map(_sleeps, [command, *command.children(recursive=True)])) else 0
        time.sleep(0.1)


def _sleeps(process: psutil.Process) -> bool:
    with suppress(psutil.Error, OSError):  # it has ended
        names = [path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/comm")]
        return "CPU 0\n" in names and process.status() == psutil.STATUS_SLEEPING
    return False


def test_a_signal_ends_a_command_that_hangs_in_the_library(
    tmp_path: Path, idle: Mapping[str, str], tiny_checkpoint: Path, tiny_tokens: Path, byte_checkpoint: Path
) -> None:
    """It ends within seconds, says where it was, and leaves neither temporary files nor a part of a result."""
    saved = tmp_path / "saved.bin"
    saved.write_bytes(b"old")
    files = ("--checkpoint", tiny_checkpoint, "--tokens", tiny_tokens, "--seq-len", 8, "--save", saved)
    states = tmp_path / "states"
    commands = {
        ("parity", "tiny"): signal.SIGTERM,
        ("train", *files, "--save-every", 1, "--state-dir", states): signal.SIGINT,
        ("demo", "--output", tmp_path / "demo"): signal.SIGINT,
        ("generate", "--checkpoint", byte_checkpoint, "--num-tokens", 4): signal.SIGTERM,
        ("parity", "odd"): signal.SIGINT,  # whose standard error nobody reads any more
    }
    limited = ("parity", "tiny", "--time-limit", 3)  # ends by itself
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with ExitStack() as stack:
        processes = {
            command: stack.enter_context(
                # Background jobs of a shell ignore Ctrl-C, and child processes inherit that.
                started(
                    ["env", "--default-signal=INT", *cli_command(*command)],
                    environment={**idle, "TMPDIR": str(temporary)},
                )
            )
            for command in (limited, *commands)
        }
        for command in commands:
            wait_for_native_call(processes[command])
        unread = processes["parity", "odd"].stderr
        assert unread is not None
        unread.close()
        for command, number in commands.items():
            processes[command].send_signal(number)
        for command, number in {limited: signal.SIGTERM, **commands}.items():
            run = finish(processes[command]).check(128 + number)
            if command == ("parity", "odd"):
                continue
            said = "starpullm: no progress for 3 s (--time-limit) (before the first step, phase "
            assert command != limited or said in run.stderr
            assert f"starpullm: ended by {number.name} (before the first step, phase " in run.stderr
            assert "prototypes.py" in run.stderr
            assert "futex" in run.stderr
            if command[0] == "train":
                assert run.stderr.endswith(f"; no complete state in {states} yet)\n")
    assert list(temporary.iterdir()) == []
    assert saved.read_bytes() == b"old"


def test_an_interrupted_command_says_where_its_process_was(tmp_path: Path, idle: Mapping[str, str]) -> None:
    command = ["env", "--default-signal=INT", *cli_command("bench", "--model", "tiny")]
    with started(command, environment={**idle, "TMPDIR": str(tmp_path)}) as process:
        wait_for_native_call(process)
        process.send_signal(signal.SIGINT)
        run = finish(process).check(128 + signal.SIGINT)
    assert run.stderr == "Interrupted (before the first step, phase after submitting step 2).\n"
    assert list(tmp_path.iterdir()) == []
