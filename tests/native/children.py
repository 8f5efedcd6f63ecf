"""Runs functions, code and the command line in child processes, which are killed with their group after a time limit.

No test here starts StarPU in pytest's own process: a process has only one StarPU, and a native hang can't be
interrupted from inside.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self, TypedDict, TypeVar

import psutil

from starpullm.processes.children import Child, Hung, Lost, location_of
from starpullm.processes.time_limit import TimeLimit

from . import forks

TWO_CORES = {"HWLOC_SYNTHETIC": "numa:1 core:2 pu:1"}
"""An environment with partitions of up to 2x1 on any machine."""

R = TypeVar("R")

# Variables that change the behaviour of StarPU, hwloc, OpenMP or the terminal output.
_DROPPED = ("HWLOC_", "STARPU_", "OMP_", "GOMP_")
_DROPPED_NAMES = ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "PYTHONWARNINGS")


@dataclass(frozen=True)
class Finished:
    """A child that has ended by itself; its text has the child's complete output."""

    command: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str

    def check(self, returncode: int = 0) -> Self:
        """Fail with the child's complete output unless it ended with this status."""
        assert self.returncode == returncode, f"expected exit status {returncode} of {self}"
        return self

    def __str__(self) -> str:
        return _report(self.command, f"exit status {self.returncode}", self.stdout, self.stderr)


def run_function(
    function: Callable[..., R],
    *args: object,
    timeout: float = 60,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    prefix: Sequence[str] = (),
) -> R:
    """Call a module-level function of a test file in a child, which imports that file, and return its result.

    Arguments and result are passed as JSON: a path arrives as a text, a tuple as a list. The child may print nothing
    but the result, so a library that prints fails the test; standard error is free, and is shown if the test fails.

    Parameters
    ----------
    function, args
        The function and its arguments.
    timeout
        Seconds.
    environment
        Variables in addition to the child's.
    cwd
        The child's current directory.
    prefix
        Command that runs the child, for example ``("unshare", "-m")``.
    """
    call = json.dumps([location_of(function), args], default=str)
    command = [*prefix, *forks.PYTHON, forks.__file__, call]
    done = run_command(command, timeout=timeout, environment=environment, cwd=cwd).check()
    try:
        result: R = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise AssertionError(f"expected nothing but a result on standard output ({error}): {done}") from None
    return result


def run_python(
    code: str,
    *args: object,
    timeout: float = 60,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Finished:
    """Run Python code in a child, with `args` as its ``sys.argv[1:]``; fail unless its exit status is 0."""
    command = [*forks.PYTHON, "-c", code, *map(str, args)]
    return run_command(command, timeout=timeout, environment=environment, cwd=cwd).check()


def run_cli(
    *args: object,
    timeout: float = 60,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    prefix: Sequence[str] = (),
) -> Finished:
    """Run ``starpullm ARGS``, whatever its exit status."""
    return run_command([*prefix, *cli_command(*args)], timeout=timeout, environment=environment, cwd=cwd)


def cli_command(*args: object) -> list[str]:
    """Return the command that is ``starpullm ARGS``."""
    return [*forks.PYTHON, "-m", "starpullm.commands", *map(str, args)]


def run_command(
    command: Sequence[str],
    *,
    timeout: float = 60,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Finished:
    """Run a command to its end; after `timeout` seconds it is killed and the test fails."""
    cleaned = _clean_environment(environment or {})
    if forks.can_fork(command, cleaned, _clean_environment({})):
        return _FORKS.run(command, cleaned, cwd, timeout)
    with started(command, timeout=timeout, environment=environment, cwd=cwd) as process:
        return finish(process)


class Process(subprocess.Popen[bytes]):
    """A process that is the leader of a process group, which is killed as a whole."""

    killed_after: float | None = None
    """The time limit in seconds, if the process was killed by it."""

    def kill_group(self) -> None:
        # The number of a process isn't used again before it has been waited for.
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def end_of_time(self, timeout: float) -> None:
        if self.returncode is None:
            self.killed_after = timeout
            self.kill_group()


@contextmanager
def started(
    command: Sequence[str],
    *,
    timeout: float = 60,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Iterator[Process]:
    """Start a command with pipes in a process group of its own, which is killed at a `TimeLimit` of `timeout` seconds.

    So every read of a pipe ends. Processes of the group that run when the block is left are killed too.
    """
    process = Process(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_clean_environment(environment or {}),
        cwd=cwd,
        start_new_session=True,
    )
    has_ended, limit = threading.Event(), TimeLimit(timeout, [process.pid])

    def watch() -> None:
        while left := limit.left():
            if has_ended.wait(left):
                return
        process.end_of_time(timeout)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield process
    finally:
        has_ended.set()
        watching.join()
        process.kill_group()
        process.communicate()


def finish(process: Process) -> Finished:
    """Wait for a child of `started` and return its output that wasn't read before; fail if the time limit killed it."""
    stdout, stderr = process.communicate()
    assert isinstance(process.args, Sequence)
    return _finished(tuple(map(str, process.args)), process.returncode, stdout, stderr, process.killed_after)


@contextmanager
def only_ranks_on_their_cores() -> Iterator[None]:
    """Wait until no other test is in such a block: one of ranks that poll without a pause, as each has a core.

    Two such jobs have stood still for minutes on two cores. Each check of the suite holds the lock of the machine, for
    which a test could wait for long.
    """
    directory = os.open(Path(__file__).parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def check_sigterm(
    command: Sequence[str], folder: Path, is_at_work: Callable[[psutil.Process], bool], environment: Mapping[str, str]
) -> Finished:
    """End a command by SIGTERM when it is at work, or a process of its own; fail if one is left, or a file."""

    def works(child: psutil.Process) -> bool:
        with suppress(psutil.Error):  # it has ended
            return is_at_work(child)
        return False

    with started(command, environment={**environment, "TMPDIR": str(folder)}) as process:
        command_itself, deadline = psutil.Process(process.pid), time.monotonic() + 30
        while not any(map(works, [command_itself, *(children := command_itself.children(recursive=True))])):
            assert time.monotonic() < deadline, "no process is at work"
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        finished = finish(process)
        _, left = psutil.wait_procs(children, timeout=5)
    assert left == []
    assert list(folder.iterdir()) == []
    return finished.check(128 + signal.SIGTERM)


def simd_levels() -> list[str]:
    """Return the SIMD levels of this machine, the plain kernels' first."""
    told = run_python("from starpullm.binding.prototypes import names\nprint(*names('simd_level_name'))")
    return told.stdout.split()


class Reply(TypedDict):
    """How a call in a child ended.

    The exception's class name, sentence and error number; or None, the result's repr and None.
    """

    raised: str | None
    text: str
    errno: int | None


def attempt(action: Callable[..., object], *args: object) -> Reply:
    """Call a function and return how the call ended; for use in a child."""
    try:
        result = action(*args)
    except Exception as error:
        return {
            "raised": type(error).__name__,
            "text": str(error),
            "errno": error.errno if isinstance(error, OSError) else None,
        }
    return {"raised": None, "text": repr(result), "errno": None}


def assert_refused(reply: Reply, kind: type[Exception], *parts: str) -> None:
    """Fail unless a call raised an exception of a kind, with these parts in its one line."""
    assert reply["raised"] == kind.__name__, reply
    assert [part for part in parts if part not in reply["text"]] == [], reply
    assert "\n" not in reply["text"]


def names_in(directory: Path) -> list[str]:
    """Return the names of the files in a directory, sorted."""
    return sorted(path.name for path in directory.iterdir())


# ---- How it works ----


def _finished(
    command: Sequence[str], returncode: int, output: bytes, errors: bytes, killed_after: float | None
) -> Finished:
    stdout, stderr = output.decode(errors="replace"), errors.decode(errors="replace")
    if killed_after is not None:
        ending = f"killed, because it had not ended after {killed_after} s"
        raise AssertionError(_report(command, ending, stdout, stderr))
    return Finished(tuple(command), returncode, stdout, stderr)


def _clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_DROPPED) and name not in _DROPPED_NAMES
    }
    # PYTHONSAFEPATH: a starpullm in the current directory must not hide the installed package.
    # OMP_WAIT_POLICY: other tests run beside this one, and threads that spin take the cores from those they wait for.
    fixed = {"STARPU_HOME": _starpu_home(), "PYTHONSAFEPATH": "1", "OMP_WAIT_POLICY": "passive"}
    return {**kept, **fixed, **extra}


class _Forks:
    """The child that is forked; it starts when it is needed, and ends when pytest ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: Child | None = None
        atexit.register(self._end)

    def run(self, command: Sequence[str], environment: Mapping[str, str], cwd: Path | None, timeout: float) -> Finished:
        """Run a command; after `timeout` seconds it is killed, with all that it has started, and the test fails."""
        with self._lock, tempfile.TemporaryDirectory() as directory:
            outputs = [Path(directory, name) for name in ("stdout", "stderr")]
            for output in outputs:
                output.touch()
            request = {"arguments": command[len(forks.PYTHON) :], "environment": environment}
            request |= {"cwd": str(cwd or Path.cwd()), "outputs": list(map(str, outputs))}
            if self._child is None:
                self._child = Child("forks", forks.serve_forks, {}, environment=forks.LIKE_PYTHON)
                self._child.start().result()
            try:
                reply = self._child.ask(request, timeout)
            except BaseException:  # as by Ctrl-C: the next command must not get this reply
                self._child.kill()
                self._child = None
                raise
            if isinstance(reply, Lost):
                self._child = None
            killed_after = timeout if isinstance(reply, Hung) else None
            status = reply.result() if killed_after is None else -signal.SIGKILL
            stdout, stderr = (output.read_bytes() for output in outputs)
            return _finished(command, status, stdout, stderr, killed_after)

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()


_FORKS = _Forks()


@cache
def _starpu_home() -> str:
    directory = tempfile.mkdtemp(prefix="starpullm-tests-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _report(command: Sequence[str], ending: str, stdout: str, stderr: str) -> str:
    return (
        f"child: {ending}\ncommand: {' '.join(command)}\n---- standard output\n{stdout}\n---- standard error\n{stderr}"
    )


def assert_command_refused(run: Finished, *parts: str, returncode: int = 2) -> None:
    """There is one sentence on standard error, after the usage if the options were wrong, and nothing else."""
    run.check(returncode)
    *usage, sentence = run.stderr.splitlines()
    assert sentence.startswith("Error: "), run
    assert not usage or usage[0].startswith("Usage: "), run
    assert [part for part in parts if part not in sentence] == [], run
    assert "Traceback" not in run.stdout + run.stderr
    assert run.stdout == "", run
