"""Child processes that answer requests: both ends of the connection between a parent and its children.

A child is one process, or the ranks of one job. It is stopped (SIGSTOP) whenever it has no request to answer, because
idle StarPU workers poll and would take the cores from other children.

A child runs a *service*: a context manager that prepares what the answers need, and yields a value for the parent and
a function from a request to its reply. All of these are JSON values, which are sent as messages on a Unix socket: the
process numbers of the child's ranks, then the value, then a reply for each request. The child ends when the parent
closes the connection.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, SourceFileLoader
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any, NoReturn, Self, TypeAlias

from starpullm.errors import InvalidArgumentError, RuntimeFailureError, StarpullmError
from starpullm.options import MAX_SECONDS
from starpullm.processes import Comm
from starpullm.processes.endings import Completed, Crashed, Job, JobEnding, Stopped
from starpullm.processes.job import run_job
from starpullm.processes.progress import report_phase
from starpullm.processes.ranks import guarded, meet, world
from starpullm.processes.reaper import start_of

Service: TypeAlias = AbstractContextManager[tuple[Any, Callable[[Any], Any]]]
"""What a child runs: yields a value for the parent, and the function that answers a request.

With several ranks, every rank enters the context and calls the function on every request; rank 0's values are sent.
"""

START_SECONDS = 120.0
"""For a child to get ready: Python, and StarPU's calibration of a machine that it sees for the first time."""

_END_SECONDS = 30.0
_POLL_SECONDS = 0.1
_CLOSED_SECONDS = 30.0  # for a job to end after its connection has closed: a rank fails, mpirun ends the others
_STOP_SECONDS = 60.0  # for a job to be killed, with the stacks of its ranks before that


@dataclass(frozen=True)
class Answered:
    """The child has answered."""

    value: Any

    def result(self) -> Any:
        """Return the value."""
        return self.value


@dataclass(frozen=True)
class _Failed:
    """There is no answer; ``text`` is a sentence that begins with the child's name, then all that helps to find why."""

    text: str

    def result(self) -> NoReturn:
        """Raise a `RuntimeFailureError` with the text."""
        raise RuntimeFailureError(self.text)


@dataclass(frozen=True)
class Raised(_Failed):
    """The service raised an exception. The child answers further requests, unless this was its start.

    An exception in a child of several ranks ends the child instead, so it is `Lost`.
    """

    child: str
    kind: str
    """Name of the exception's class."""
    sentence: str


@dataclass(frozen=True)
class Lost(_Failed):
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


def find_function(
    location: Mapping[str, str], loader: Callable[[str, str], Loader] = SourceFileLoader
) -> Callable[..., Any]:
    """Return a function by its location; imports a module of this package by name, any other one from its file.

    A module of another package may import its neighbours: the packages that it is in are imported from their folders.
    """
    name, file = location["module"], location["file"]
    if name.partition(".")[0] != __package__.partition(".")[0]:
        names = name.split(".")[:-1]
        folders = list(Path(file).parents)[: len(names)][::-1]
        if [folder.name for folder in folders] == names:
            for depth, folder in enumerate(folders, 1):  # the outermost package first
                package, init = ".".join(names[:depth]), folder / "__init__.py"
                own = SourceFileLoader(package, str(init)) if init.is_file() else None
                _import(ModuleSpec(package, own, origin=str(init), is_package=True), folder)
        _import(ModuleSpec(name, loader(name, file), origin=file))
    function: Callable[..., Any] = getattr(importlib.import_module(name), location["function"])
    return function


def _import(spec: ModuleSpec, folder: Path | None = None) -> None:
    """Import a module, or a package from a folder, unless it is there."""
    if spec.name in sys.modules:
        return
    spec.has_location = spec.loader is not None
    if folder is not None:
        spec.submodule_search_locations = [str(folder)]
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        if spec.loader:
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]  # as `import` does: otherwise a later call would find a module without its functions
        raise


# ---- In the parent ----


class Child:
    """A child process, or a job of several ranks; a context manager that starts nothing by itself and ends the child.

    The service is a function at the top level of a module. The child calls it with a communicator (None on one rank)
    and the arguments, which are JSON values. The environment is in addition to this process's.
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
        self._specification = {**location_of(service), "arguments": arguments, "ranks": ranks}
        self._ranks = ranks if ranks > 1 else None
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
        deadline = time.monotonic() + time_limit
        # A socket's path has up to 107 bytes on Linux. Below TMPDIR, which mpirun sets in its ranks, it may be longer.
        private = tempfile.TemporaryDirectory(prefix="starpullm-", dir="/tmp")
        with private as directory, socket.socket(socket.AF_UNIX) as listener:
            address = str(Path(directory, "s"))
            listener.bind(address)
            listener.listen(1)
            # -P: the current directory may have a starpullm without a shared library.
            command = [sys.executable, "-P", "-m", __name__, json.dumps({**self._specification, "address": address})]
            job = Job(command, MAX_SECONDS, ranks=self._ranks, environment=self._environment)
            self._thread = threading.Thread(target=self._run, args=(job,), name=f"child {self.name}", daemon=True)
            self._thread.start()
            listener.settimeout(_POLL_SECONDS)
            while self._connection is None and not self.has_ended and time.monotonic() < deadline:
                with suppress(TimeoutError):
                    self._connection = Connection(listener.accept()[0].detach())
            self.pids = tuple(self._read(deadline) or ())
            self._processes = {pid: start_of(pid) for pid in self.pids}
            # The address is there until here: a child that finds none would end before it is reported as hung.
            return self._reply("the start", time_limit, deadline)

    def ask(self, request: object, time_limit: float) -> Reply:
        """Let the child run until it has replied to a request, at most this many seconds.

        After a `Lost` reply the child has ended.
        """
        assert self._connection is not None
        deadline = time.monotonic() + time_limit
        self._signal(signal.SIGCONT)
        with suppress(OSError):  # the child has crashed since its last reply: reading notices that too
            self._connection.send_bytes(json.dumps(request).encode())
        return self._reply(self._request_name, time_limit, deadline)

    def end(self) -> Lost | None:
        """Let the child end, or kill it; may be called twice. Return how it has failed, unless a reply has said so."""
        self._signal(signal.SIGCONT)
        if self._connection is not None:
            self._connection.close()
        if self._thread is None or self._is_over:
            return None
        if self._connection is not None:
            self._thread.join(_END_SECONDS)
        lost = self._lost("the end", _END_SECONDS)
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

    def _reply(self, what: str, time_limit: float, deadline: float) -> Reply:
        message = self._read(deadline)
        if message is None:
            return self._lost(what, time_limit)
        self._signal(signal.SIGSTOP)
        if "value" in message:
            return Answered(message["value"])
        return Raised(f"{self.name}: {message['text']}", self.name, message["kind"], message["sentence"])

    def _read(self, deadline: float) -> Any:
        """Return the next message; None if it doesn't come before the deadline, or the child has ended."""
        if self._connection is None:
            return None
        # Ends the job at the deadline, also in the middle of a message.
        limit = threading.Timer(max(deadline - time.monotonic(), 0), self._stop.set)
        limit.start()
        try:
            message = self._connection.recv_bytes()
        except (EOFError, OSError):  # a connection that has broken
            self._has_closed = True
            return None
        finally:
            limit.cancel()
        return None if self._stop.is_set() else json.loads(message)  # it came when the job was already being killed

    def _lost(self, what: str, time_limit: float) -> Lost:
        """Return how the child ended; kill it if it hasn't."""
        assert self._thread is not None
        self._is_over = True
        if self._has_closed:
            self._thread.join(_CLOSED_SECONDS)
        self._kill()
        assert self._ending is not None
        if isinstance(self._ending, Stopped):  # no rank had failed
            sentence = f"{self.name}: {what} had not ended after {time_limit:g} s, so its process was ended:"
            return Hung(f"{sentence}\n{self._ending}", self._ending)
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


def _oom_kills() -> int:
    """Return how many processes the kernel has killed for their memory since it was started; 0 if it doesn't say."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text("ascii").splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


# ---- In the child ----


def _serve(service: Service, address: str, comm: Comm | None) -> None:
    """Answer requests until the parent closes the connection, which only rank 0 has."""
    pids = comm.gather(os.getpid()) if comm is not None else [os.getpid()]
    with ExitStack() as stack:
        stream = stack.enter_context(Client(address)) if pids else None

        def send(message: object) -> None:
            if stream is not None:
                stream.send_bytes(json.dumps(message).encode())

        send(pids)
        report_phase("starting")
        started = _attempt(comm, stack.enter_context, service)
        if "value" not in started:
            send(started)
            return
        value, answer = started["value"]
        reply = {"value": value}
        while True:
            report_phase("waiting for a request")  # before the reply, after which this process is stopped
            send(reply)
            request = b""
            if stream is not None:
                with suppress(EOFError):
                    request = stream.recv_bytes()
            if comm is not None:
                meet(comm)  # the other ranks sleep until rank 0 has a request
                request = comm.bcast(request)
            if not request:
                return
            reply = _attempt(comm, answer, json.loads(request))


def _attempt(comm: Comm | None, function: Callable[[Any], Any], argument: object) -> dict[str, Any]:
    """Return a function's result as a message, or an exception; a rank that raises ends all ranks."""
    try:
        return {"value": function(argument)}
    except Exception as error:
        if comm is not None:
            raise
        kind = type(error).__name__
        stack = "" if isinstance(error, StarpullmError) else f"\n{traceback.format_exc()}"
        return {"kind": kind, "sentence": str(error), "text": f"{kind}: {error}".rstrip(": ") + stack}


def _main(specification: Mapping[str, Any]) -> None:
    comm = world() if specification["ranks"] > 1 else None
    with guarded(comm):
        service = find_function(specification)
        _serve(service(comm, **specification["arguments"]), specification["address"], comm)


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
