"""Runs Python commands as forks of one process that has imported what they import, which takes longer than most work.

The process opens no native library, so each fork opens its own and starts its own StarPU. As a program this file is the
process that is forked, ``python forks.py FD``, or calls one function, ``python forks.py CALL``.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from starpullm.processes.children import find_function

# With faulthandler, a crash prints where it was.
PYTHON = (sys.executable, "-W", "error", "-X", "faulthandler")
"""How the commands begin."""

_IMPORTED = ("pytest", "starpullm.commands", "starpullm.checks.training")

# What may differ from the environment of the process: nothing reads these while a module is imported.
_READ_LATE = (
    "HWLOC_",
    "OMP_",
    "STARPU_",
    "PYTEST_CURRENT_TEST",
    "STARPULLM_L2_CACHE",
    "STARPULLM_LIB",
    "STARPULLM_SIMD",
)

_MESSAGE_BYTES = 1 << 20


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit status, or minus the number of a signal; its output; whether its time was over."""

    returncode: int
    stdout: bytes
    stderr: bytes
    was_killed: bool


class Server:
    """The process that is forked, as pytest sees it; it starts when it is needed, and ends when pytest ends.

    Parameters
    ----------
    environment
        Its environment. That of a fork may differ only in what is read late.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self._close)

    def can_run(self, command: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Return whether a fork does what a new process would: Python with these options, and the same environment."""
        return tuple(command[: len(PYTHON)]) == PYTHON and _lasting(environment) == _lasting(self._environment)

    def run(self, command: Sequence[str], environment: Mapping[str, str], cwd: Path | None, timeout: float) -> Ended:
        """Run what `can_run` accepts; after `timeout` seconds it is killed with its process group."""
        request = json.dumps([list(command[len(PYTHON) :]), dict(environment), str(cwd or Path.cwd())]).encode()
        with self._lock, _memory("stdout") as stdout, _memory("stderr") as stderr:
            if self._process is None:
                self._start()
            try:
                socket.send_fds(self._socket, [request], [stdout.fileno(), stderr.fileno()])
                status, was_killed = self._wait(int(self._answer()), timeout)
            except BaseException:  # as by Ctrl-C, or by the time limit of a test: an answer may be left
                self._close()
                raise
            return Ended(status, _content(stdout), _content(stderr), was_killed)

    def _start(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [*PYTHON, __file__, str(other.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=self._environment,
                pass_fds=[other.fileno()],
                start_new_session=True,
            )

    def _close(self) -> None:
        """End the process, which ends its fork."""
        if self._process is not None:
            self._socket.close()
            self._process.wait()
            self._process = None

    def _wait(self, pid: int, timeout: float) -> tuple[int, bool]:
        """Return a fork's status, and whether it was killed because its time was over."""
        self._socket.settimeout(timeout)
        try:
            return int(self._answer()), False
        except TimeoutError:
            # Until the process that is forked has answered, the number belongs to nobody else.
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            self._socket.settimeout(None)
            return int(self._answer()), True
        finally:
            self._socket.settimeout(None)

    def _answer(self) -> bytes:
        answer = self._socket.recv(_MESSAGE_BYTES)
        assert answer, "the process that is forked has ended; standard error has its reason"
        return answer


def _lasting(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(_READ_LATE)}


def _memory(name: str) -> BinaryIO:
    return os.fdopen(os.memfd_create(name), "w+b")


def _content(file: BinaryIO) -> bytes:
    file.seek(0)
    return file.read()


# ---- The process that is forked ----


def _serve(requests: socket.socket) -> list[str]:
    """Fork for each request and answer with the number and the status of the fork; return in a fork only."""
    while True:
        request, files, _, _ = socket.recv_fds(requests, _MESSAGE_BYTES, 2)
        if not request:
            requests.close()
            sys.exit()
        with warnings.catch_warnings():
            # NumPy's threads wait for work, and are started anew in a fork that needs them.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            requests.close()
            arguments, environment, cwd = json.loads(request)
            _become(environment, cwd, files)
            return list(arguments)
        for file in files:
            os.close(file)
        requests.send(b"%d" % pid)
        requests.send(b"%d" % _wait(pid, requests))


def _become(environment: dict[str, str], cwd: str, files: list[int]) -> None:
    os.setsid()
    for number, file in enumerate(files, start=1):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)


def _wait(pid: int, requests: socket.socket) -> int:
    """Wait for a fork; kill its process group if pytest ends first."""
    ended = os.pidfd_open(pid)
    ready, _, _ = select.select([ended, requests.fileno()], [], [])
    os.close(ended)
    if requests.fileno() in ready:  # pytest asks for one thing at a time, so this is its end
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _run(arguments: list[str]) -> None:
    """Do what ``python ARGUMENTS`` does: ``-c CODE``, ``-m MODULE`` or a file's name, and what follows."""
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    elif arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


# ---- What run_function() calls, in a fork or in a new process ----


def _main() -> None:
    if sys.argv[1].startswith("["):
        location, arguments = json.loads(sys.argv[1])
        print(json.dumps(find_function(location)(*arguments)))
        return
    for name in _IMPORTED:
        importlib.import_module(name)
    _run(_serve(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    _main()
