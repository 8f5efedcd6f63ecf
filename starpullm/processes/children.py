"""Child processes that answer requests: the parent's side of the connection; service.py has the child's.

A child is one process, or the ranks of one job. It is stopped (SIGSTOP) whenever it has no request to answer, because
idle StarPU workers poll and would take the cores from other children. It ends when the parent closes the connection.
"""

from __future__ import annotations

import io
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import FunctionType
from typing import Any, Self, TypeAlias

from starpullm.errors import InvalidArgumentError, RuntimeFailureError, StateError
from starpullm.options import MAX_SECONDS, RuntimeConfiguration
from starpullm.processes.endings import Completed, Crashed, Job, JobEnding, Stopped
from starpullm.processes.job import run_job
from starpullm.processes.lock import machine_lock
from starpullm.processes.progress import report_phase
from starpullm.processes.reaper import start_of
from starpullm.processes.service import Answered, Failed, Raised, Service, find_function, main
from starpullm.processes.time_limit import TimeLimit

START_SECONDS = 120.0
"""For a child to get ready: Python, and StarPU's calibration of a machine that it sees for the first time."""

_END_SECONDS = 30.0
_POLL_SECONDS = 0.1
_CLOSED_SECONDS = 30.0  # for a job to end after its connection has closed: a rank fails, mpirun ends the others
_STOP_SECONDS = 60.0  # for a job to be killed, with the stacks of its ranks before that


@dataclass(frozen=True)
class Lost(Failed):
    """The child has crashed or exited, or could not be started."""

    ending: JobEnding | Exception
    """How the job ended, or the exception that kept it from starting."""


@dataclass(frozen=True)
class Hung(Lost):
    """The child had not answered within the time limit, and was killed; the text has the stacks of its threads."""


Reply: TypeAlias = Answered | Raised | Lost


def location_of(function: Callable[..., object]) -> dict[str, str]:
    """Return where `find_function` finds a function in another process."""
    module = sys.modules[function.__module__]
    if "." in function.__qualname__ or module.__file__ is None:
        raise InvalidArgumentError(f"function: found {function.__qualname__}, expected one of a module's own")
    return {"module": module.__name__, "file": module.__file__, "function": function.__name__}


class _Pickler(pickle.Pickler):
    """Lets the child import a function of another package from its file."""

    def reducer_override(self, value: object) -> Any:
        """Return how the child gets such a function; pickle knows how it gets other values."""
        if isinstance(value, FunctionType) and value.__module__.partition(".")[0] != __package__.partition(".")[0]:
            return find_function, (location_of(value),)
        return NotImplemented


def _pickled(value: object) -> bytes:
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


class Child:
    """A child process, or a job of several ranks; a context manager that starts nothing by itself and ends the child.

    The service is a function at the top level of a module. The child calls it with a communicator (None on one rank)
    and the arguments. The environment is in addition to this process's.
    """

    def __init__(
        self,
        name: str,
        service: Callable[..., Service],
        arguments: Mapping[str, object],
        *,
        ranks: int = 1,
        environment: Mapping[str, str] | None = None,
        request_name: str = "the request",
    ) -> None:
        self.name = name
        self.pids: tuple[int, ...] = ()
        """By rank."""
        self._service = _pickled(partial(service, **arguments))
        self._ranks = ranks
        self._environment = environment or {}
        self._request_name = request_name
        self._processes: dict[int, str | None] = {}
        """When each was started, by its number: that may be another process's later."""
        self._connection: Connection | None = None
        self._has_closed = False
        self._is_over = False
        self._ending: JobEnding | Exception | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._oom_kills = _oom_kills()

    @property
    def has_ended(self) -> bool:
        """Whether no process of the child is left."""
        return self._thread is None or not self._thread.is_alive()

    def start(self, time_limit: float = START_SECONDS) -> Reply:
        """Start the child, wait until its service is ready, and return the value that the service has yielded."""
        limit = TimeLimit(time_limit)
        # A socket's path has up to 107 bytes on Linux. Below TMPDIR, which mpirun sets in its ranks, it may be longer.
        private = tempfile.TemporaryDirectory(prefix="starpullm-", dir="/tmp")
        with private as directory, socket.socket(socket.AF_UNIX) as listener:
            address = str(Path(directory, "s"))
            listener.bind(address)
            listener.listen(1)
            # -P: the current directory may have a starpullm without a shared library.
            command = [sys.executable, "-P", "-c", f"from {main.__module__} import main; main()"]
            command += [self.name, address, str(self._ranks)]
            ranks = self._ranks if self._ranks > 1 else None
            job = Job(command, MAX_SECONDS, ranks=ranks, environment=self._environment)
            self._thread = threading.Thread(target=self._run, args=(job,), name=f"child {self.name}", daemon=True)
            self._thread.start()
            listener.settimeout(_POLL_SECONDS)
            while self._connection is None and not self.has_ended and limit.left() > 0:
                with suppress(TimeoutError):
                    self._connection = Connection(listener.accept()[0].detach())
            self.pids = tuple(self._read(limit) or ())
            self._processes = {pid: start_of(pid) for pid in self.pids}
            self._send(self._service)
            # The address is there until here: a child that finds none would end before it is reported as hung.
            return self._reply("the start", limit)

    def ask(self, request: object, time_limit: float) -> Reply:
        """Let the child run until it has replied to a request, at most this many seconds.

        They don't count the time for which a thread of the child has waited for a processor, up to nine times as much.
        After a `Lost` reply the child has ended.
        """
        message = _pickled(request)
        limit = TimeLimit(time_limit, self.pids)
        self._signal(signal.SIGCONT)
        self._send(message)
        return self._reply(self._request_name, limit)

    def end(self) -> Lost | None:
        """Let the child end, or kill it; may be called twice. Return how it has failed, unless a reply has said so."""
        self._signal(signal.SIGCONT)
        if self._connection is not None:
            self._connection.close()
        if self._thread is None or self._is_over:
            return None
        if self._connection is not None:
            self._thread.join(_END_SECONDS)
        lost = self._lost("the end", TimeLimit(_END_SECONDS))
        return None if isinstance(lost.ending, Completed) or self._connection is None else lost

    def kill(self) -> None:
        """End the child at once, whatever it does."""
        self._is_over = True
        self._signal(signal.SIGKILL)  # nobody reads the stacks that `run_job` would ask for
        if self._connection is not None:
            self._connection.close()
        if self._thread is not None:
            self._kill()
        phase = self._ending.reports[0].phase if isinstance(self._ending, JobEnding) else None
        if phase is not None:  # what an interrupted parent says of itself
            report_phase(phase.phase, phase.step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, Exception):
            self.end()
        else:  # KeyboardInterrupt, SystemExit: nobody waits until the child has answered
            self.kill()

    def _run(self, job: Job) -> None:
        try:
            self._ending = run_job(job, self._stop)
        except Exception as error:
            self._ending = error

    def _reply(self, what: str, limit: TimeLimit) -> Reply:
        message = self._read(limit)
        if message is None:
            return self._lost(what, limit)
        self._signal(signal.SIGSTOP)
        reply: Answered | Raised = message
        return reply

    def _send(self, message: bytes) -> None:
        if self._connection is not None:
            with suppress(OSError):  # the child has crashed since its last reply: reading notices that too
                self._connection.send_bytes(message)

    def _read(self, limit: TimeLimit) -> Any:
        """Return the next message; None if it doesn't come within the limit, or the child has ended."""
        if self._connection is None:
            return None
        has_come = threading.Event()
        threading.Thread(target=self._watch, args=(has_come, limit), daemon=True).start()
        try:
            message = self._connection.recv_bytes()
        except (EOFError, OSError):  # a connection that has broken
            self._has_closed = True
            return None
        finally:
            has_come.set()
        return None if self._stop.is_set() else pickle.loads(message)  # it came when the job was already being killed

    def _watch(self, has_come: threading.Event, limit: TimeLimit) -> None:
        """End the job when the limit is over, also in the middle of a message."""
        while left := limit.left():
            if has_come.wait(left):
                return
        self._stop.set()

    def _lost(self, what: str, limit: TimeLimit) -> Lost:
        """Return how the child ended; kill it if it hasn't."""
        assert self._thread is not None
        self._is_over = True
        if self._has_closed:
            self._thread.join(_CLOSED_SECONDS)
        self._kill()
        assert self._ending is not None
        if isinstance(self._ending, Stopped):  # no rank had failed
            sentence = f"{self.name}: {what} had not ended after {limit.seconds:g} s, so its process was ended:"
            waited = f"{limit.waited:.0f} s more in which it waited for a processor\n" if limit.waited else ""
            return Hung(f"{sentence}\n{waited}{self._ending}", self._ending)
        if isinstance(self._ending, Completed):
            reports = "; ".join(map(str, self._ending.reports.values()))
            return Lost(f"{self.name}: ended before {what} had ended: {reports}\n{self._ending}", self._ending)
        text = f"{self.name}: {self._ending}"
        if isinstance(self._ending, Crashed) and self._ending.signal == signal.SIGKILL:
            killed = _oom_kills() - self._oom_kills
            if killed:
                text += f"\nmeanwhile the kernel has killed {killed} of this machine's processes to get memory"
        return Lost(text, self._ending)

    def _kill(self) -> None:
        assert self._thread is not None
        self._stop.set()
        self._thread.join(_STOP_SECONDS)
        if self._thread.is_alive():
            raise RuntimeFailureError(f"child {self.name}: processes {self.pids} can't be ended")

    def _signal(self, number: int) -> None:
        for pid, began in self._processes.items():
            if began and start_of(pid) == began:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)


class Pool:
    """Children of one service, one for each configuration of the runtime, which is kept between its requests.

    A context manager. Of all pools of this user on this machine, only one child runs at a time. The service is called
    with a communicator (None on one rank), a directory of the pool, and the configuration. The environment is in
    addition to this process's. Unless the pool is sticky, every request gets a new child. ``hold`` gives a context in
    which this process holds the machine's lock.
    """

    def __init__(
        self,
        service: Callable[..., Service],
        environment: Mapping[str, str] | None = None,
        *,
        sticky: bool = True,
        hold: Callable[[], AbstractContextManager[None]] | None = None,
    ) -> None:
        self._service = service
        self._hold = hold or machine_lock
        self._directory = tempfile.TemporaryDirectory(prefix="starpullm-checks-")
        self._children: dict[RuntimeConfiguration, Child] = {}
        self._sticky = sticky
        self._environment = {"STARPU_HOME": self._directory.name} if "STARPU_HOME" not in os.environ else {}
        self._environment.update(environment or {})
        self.costs: Counter[str] = Counter()
        """The ``processes`` that were started, and the requests that they have ``served``."""
        self.failures: list[str] = []
        """How children have failed at their end, when all requests had been answered."""

    def ask(
        self,
        configuration: RuntimeConfiguration | None,
        request: partial[Any],
        *,
        ranks: int = 1,
        time_limit: float = 60.0,
        environment: Mapping[str, str] | None = None,
    ) -> Reply:
        """Let the child of a configuration answer a request, and end it if it hasn't after so many seconds.

        With an environment in addition to that of the others, the request gets a child of its own; and without a
        configuration, which is one of so many ranks.

        `InvalidArgumentError` is raised for a function that the child couldn't find, `StateError` if another process
        uses the machine for too long.
        """
        with self._hold():
            is_kept = self._sticky and not environment and configuration is not None
            child = self._children.pop(configuration, None) if configuration else None
            if child is not None and not is_kept:
                self._note(child.end())
                child = None
            is_running = child is not None
            child = child or Child(
                str(configuration or request.func.__name__),
                self._service,
                {"directory": self._directory.name, "configuration": configuration},
                ranks=configuration.ranks if configuration else ranks,
                environment={**self._environment, **(environment or {})},
                request_name="the check",
            )
            try:
                started = Answered(None) if is_running else child.start()
                if not isinstance(started, Answered):
                    child.end()
                    return started
                self.costs.update(processes=not is_running, served=1)
                reply = child.ask(request, time_limit)
            except BaseException:  # Ctrl-C, or another plugin's time limit: the next must not get this reply
                child.kill()
                raise
            if is_kept and configuration and not isinstance(reply, Lost):
                self._children[configuration] = child
                return reply
            return child.end() or reply

    def close(self) -> None:
        """End all children; may be called twice."""
        while self._children:
            _, child = self._children.popitem()
            try:
                with self._hold():
                    self._note(child.end())
            except StateError as error:  # its end would need the machine
                child.kill()
                self.failures.append(str(error))
        self._directory.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _note(self, lost: Lost | None) -> None:
        if lost is not None:
            self.failures.append(lost.text)


def _oom_kills() -> int:
    """Return how many processes the kernel has killed for their memory since it was started; 0 if it doesn't say."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text("ascii").splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0
