"""Runs checks in child processes, one per runtime configuration, that keep their runtime from check to check.

The pytest plugin calls it. A child that crashes, gives up or hangs is an answer that says so, and the next check of
its configuration gets a fresh one. A child that isn't asked anything is stopped: idle StarPU workers poll. One of
several ranks is a job of mpirun's, in which every rank runs the check.

What passes between checks is the runtime alone. Every check makes a trainer of its own from the record's model, whose
hash is compared before each use; so every check begins at the initial state.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TextIO

import psutil

from starpullm.checks.result import CheckResult, Outcome
from starpullm.checks.runs import Place
from starpullm.errors import InvalidArgumentError, RuntimeFailureError, StarpullmError
from starpullm.machine import inspect_machine
from starpullm.processes.job import Crashed, Job, run_job
from starpullm.processes.job import Outcome as Ending
from starpullm.processes.lock import machine_lock
from starpullm.processes.progress import report_phase
from starpullm.processes.ranks import guarded, meet, rank_list, world
from starpullm.processes.stacks import native_stacks
from starpullm.runtime import Runtime

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

__all__ = ["Answer", "CheckReport", "Child", "Configuration", "Costs", "Pool", "machine_in_child"]

DEFAULT_TIME_LIMIT = 60.0
"""Seconds for one check."""

_START_SECONDS = 60.0  # Python, StarPU's calibration of a new machine included
_END_SECONDS = 10.0
_STACK_SECONDS = 10.0
_POLL_SECONDS = 0.1
_SESSION_SECONDS = 7 * 24 * 3600.0  # the limit that run_job asks for; each check has its own
_MACHINE_SECONDS = 60.0


class Configuration(NamedTuple):
    """What a runtime is started with."""

    partition: str
    scheduler: str
    ranks: int = 1

    @property
    def id(self) -> str:
        """As part of a test's name."""
        return str(self).replace(" ", "-")

    def __str__(self) -> str:
        return f"{self.partition} {self.scheduler}" + (f" {self.ranks} ranks" if self.ranks > 1 else "")


@dataclass(frozen=True)
class CheckReport:
    """A check's result after its way from the child: what it said about itself, its fields as JSON, and as lines."""

    name: str
    outcome: Outcome
    finding: str
    lines: tuple[str, ...]
    details: Mapping[str, Any]

    @classmethod
    def of(cls, result: CheckResult) -> CheckReport:
        """Return the report of a result."""
        return cls(result.name, result.outcome, result.finding, tuple(result.describe()), result.as_json())


@dataclass(frozen=True)
class Answer:
    """What became of one call.

    Parameters
    ----------
    configuration
        Where it ran.
    ending
        ``"answered"``; ``"raised"``: the function raised an exception; ``"lost"``: the child crashed, hung or didn't
        start.
    reports
        Of the check, if the function returned one.
    failure
        If not answered, why: a sentence, then everything that helps to find the reason.
    seconds
        From the call to the answer.
    """

    configuration: Configuration
    ending: Literal["answered", "raised", "lost"]
    reports: tuple[CheckReport, ...]
    failure: str
    seconds: float


@dataclass
class Costs:
    """What the children of a pool cost: seconds of each start and of each end, and how many calls they served."""

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    served: int = 0

    @property
    def per_process(self) -> float:
        """Seconds that a process costs before and after its checks: the medians of those that were started."""
        return sum(statistics.median(seconds) for seconds in (self.starts, self.ends) if seconds)

    @property
    def saved(self) -> float:
        """Seconds that one process for each call would have cost in addition."""
        return max(self.served - len(self.starts), 0) * self.per_process

    def __add__(self, other: Costs) -> Costs:
        return Costs(self.starts + other.starts, self.ends + other.ends, self.served + other.served)

    def __str__(self) -> str:
        return (
            f"{len(self.starts)} processes served {self.served} checks; starting and ending one takes "
            f"{self.per_process:.2f} s, a fresh one per check would have taken {self.saved:.1f} s more"
        )


class Pool:
    """The children; a context manager. One of them runs at a time, of all pools of this user on this machine.

    Parameters
    ----------
    environment
        Added to that of the children.
    sticky
        False: a fresh child for every call.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, *, sticky: bool = True) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="starpullm-checks-")
        self._children: dict[Configuration, Child] = {}
        self._sticky = sticky
        self._environment = {"STARPU_HOME": self._directory.name} if "STARPU_HOME" not in os.environ else {}
        self._environment.update(environment or {})
        self.costs = Costs()

    def call(
        self,
        configuration: Configuration,
        function: Callable[..., CheckResult | None],
        *,
        time_limit: float = DEFAULT_TIME_LIMIT,
        fresh: bool = False,
        **arguments: object,
    ) -> Answer:
        """Call a module-level function in the child of a configuration.

        Parameters
        ----------
        configuration
            The child's runtime.
        function
            Gets a ``Place`` and the arguments; the child imports its module, by name if it is one of this package, else
            from its file.
        time_limit
            Seconds. After them the child is ended.
        fresh
            In a child that has served nothing yet.
        arguments
            Keyword arguments that JSON can write.

        Raises
        ------
        InvalidArgumentError
            If the time limit isn't positive, or the child couldn't find the function.
        FileError
            If the machine can't be locked.
        RuntimeFailureError
            If the child can't be ended.
        """
        if time_limit <= 0:
            raise InvalidArgumentError(f"time_limit: found {time_limit:g}, expected a positive number of seconds")
        request = json.dumps({**_place_of(function), "arguments": arguments}) + "\n"
        with machine_lock():
            return self._call(configuration, request, time_limit, fresh=fresh)

    def close(self) -> None:
        """End all children; may be called twice."""
        for configuration in list(self._children):
            with machine_lock():
                self._end(configuration)
        self._directory.cleanup()

    def pids(self) -> dict[Configuration, int]:
        """Return the processes of the children that are there: their rank 0."""
        return {configuration: child.pids[0] for configuration, child in self._children.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, configuration: Configuration, request: str, time_limit: float, *, fresh: bool) -> Answer:
        start = time.monotonic()
        if fresh and configuration in self._children:
            self._end(configuration)
        child = self._children.get(configuration)
        if child is None:
            child = Child(
                str(configuration),
                [*_COMMAND, "serve", self._directory.name, *map(str, configuration)],
                Path(self._directory.name),
                self._environment,
                ranks=configuration.ranks if configuration.ranks > 1 else None,
            )
            self._children[configuration] = child
            hello = child.wait_started()
            if isinstance(hello, str):
                self._end(configuration)
                return Answer(configuration, "lost", (), hello, time.monotonic() - start)
            self.costs.starts.append(time.monotonic() - start)
        self.costs.served += 1
        reply = child.ask(request, time_limit)
        seconds = time.monotonic() - start
        if isinstance(reply, str):
            self._end(configuration)
            return Answer(configuration, "lost", (), reply, seconds)
        if not self._sticky:
            self._end(configuration)
        if "raised" in reply:
            return Answer(configuration, "raised", (), reply["raised"], seconds)
        reports = tuple(
            CheckReport(**{**report, "outcome": Outcome(report["outcome"]), "lines": tuple(report["lines"])})
            for report in reply["reports"]
        )
        return Answer(configuration, "answered", reports, "", seconds)

    def _end(self, configuration: Configuration) -> None:
        child = self._children.pop(configuration)
        was_running = not child.has_ended
        start = time.monotonic()
        child.end()
        if was_running:
            self.costs.ends.append(time.monotonic() - start)


def machine_in_child(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return ``Machine.as_json()`` from a child, so that this process needn't open the native library.

    Raises
    ------
    RuntimeFailureError
        If the child doesn't answer, with its reason.
    """
    outcome = run_job(Job([*_COMMAND, "machine"], _MACHINE_SECONDS, environment=environment or {}))
    report: dict[str, Any] = json.loads(outcome.completed().stdout)
    return report


# ---- In the parent ----

# -P: the current directory may have a starpullm without a shared library.
_COMMAND = (sys.executable, "-P", "-m", "starpullm.checks.isolation")


def _place_of(function: Callable[..., object]) -> dict[str, str]:
    """Return where a child finds a function."""
    module = sys.modules[function.__module__]
    if "." in function.__qualname__ or module.__file__ is None:
        raise InvalidArgumentError(f"function: found {function.__qualname__}, expected one of a module's own")
    return {"module": module.__name__, "file": module.__file__, "function": function.__name__}


class Child:
    """A job that answers lines of JSON with lines of JSON, and is stopped while it isn't asked anything.

    It gets the address of a socket as its last argument, connects to it, and says ``{"pids": [...]}``, a process for
    each of its ranks; then, when it is ready, what `wait_started` returns. It ends when the connection is closed.

    Parameters
    ----------
    name
        What messages call it.
    command
        Without the address.
    directory
        For the socket.
    environment
        Added to that of this process.
    ranks
        As of a ``Job``.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        ranks: int | None = None,
    ) -> None:
        self.name = name
        self.pids: tuple[int, ...] = ()
        self._processes: list[psutil.Process] = []
        self._connection: socket.socket | None = None
        self._received = b""
        self._ending: Ending | Exception | None = None
        self._oom_kills = _oom_kills()
        with tempfile.TemporaryDirectory(prefix="c", dir=directory) as place:
            address = str(Path(place) / "s")
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(address)
                listener.listen(1)
                job = Job([*command, address], _SESSION_SECONDS, ranks=ranks, environment=environment)
                self._thread = threading.Thread(target=self._run, args=(job,), name=f"child {name}")
                self._thread.daemon = True
                self._thread.start()
                self._accept(listener)

    @property
    def has_ended(self) -> bool:
        """Whether it is gone, by itself or not."""
        return not self._thread.is_alive()

    def wait_started(self, time_limit: float = _START_SECONDS) -> dict[str, Any] | str:
        """Wait until it is ready; what it says then, or in words why it isn't."""
        hello = self._read(time.monotonic() + time_limit) if self._connection else None
        if hello is None:
            return self._give_up("the start", time_limit)
        if "raised" in hello:
            return f"{self.name}: {hello['raised']}"
        self._signal(signal.SIGSTOP)
        return hello

    def ask(self, request: str, time_limit: float) -> dict[str, Any] | str:
        """Return what it replies, or in words how it was lost."""
        assert self._connection is not None
        self._signal(signal.SIGCONT)
        with suppress(OSError):  # it has crashed meanwhile: reading says so
            self._connection.sendall(request.encode())
        reply = self._read(time.monotonic() + time_limit)
        if reply is None:
            return self._give_up("the check", time_limit)
        self._signal(signal.SIGSTOP)
        return reply

    def end(self) -> None:
        """Let it end, or end it."""
        self._signal(signal.SIGCONT)
        if self._connection is not None:
            self._connection.close()
        self._thread.join(_END_SECONDS)
        self._kill()
        self._thread.join(_END_SECONDS)
        if self._thread.is_alive():
            raise RuntimeFailureError(f"child {self.name}: processes {self.pids} can't be ended")

    def _run(self, job: Job) -> None:
        try:
            self._ending = run_job(job)
        except (StarpullmError, OSError) as error:
            self._ending = error

    def _accept(self, listener: socket.socket) -> None:
        listener.settimeout(_POLL_SECONDS)
        deadline = time.monotonic() + _START_SECONDS
        while self._connection is None and self._thread.is_alive() and time.monotonic() < deadline:
            with suppress(TimeoutError):
                self._connection, _ = listener.accept()
        if self._connection is not None:
            first = self._read(deadline)
            if first is not None:
                self.pids = tuple(first["pids"])
                for pid in self.pids:
                    with suppress(psutil.Error):
                        self._processes.append(psutil.Process(pid))

    def _read(self, deadline: float) -> dict[str, Any] | None:
        """Return the next line; None if it doesn't come before the deadline, or the child has ended."""
        assert self._connection is not None
        while b"\n" not in self._received:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._connection.settimeout(left)
            try:
                part = self._connection.recv(1 << 16)
            except OSError:  # the time is over, or the connection
                return None
            if not part:
                return None
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _give_up(self, what: str, seconds: float) -> str:
        """End a child that has crashed, or whose time is over, and return everything that is known of it."""
        self._thread.join(_POLL_SECONDS * 5)
        stacks: list[str] = []
        timed_out = self._thread.is_alive()
        if timed_out:
            deadline = time.monotonic() + _STACK_SECONDS
            for rank, pid in enumerate(self.pids):
                of_rank = f" of rank {rank}" if len(self.pids) > 1 else ""
                text = native_stacks(pid, max(deadline - time.monotonic(), 0))
                stacks += [f"---- native stacks{of_rank}", text] if text else []
            self._signal(signal.SIGABRT)  # Python's faulthandler then writes where every thread is
            self._thread.join(_END_SECONDS)
            self._kill()
            self._thread.join(_END_SECONDS)
        lines = [f"{self.name}: {self._ending}"]
        if isinstance(self._ending, Crashed) and self._ending.signal == signal.SIGKILL:
            killed = _oom_kills() - self._oom_kills
            if killed:
                lines.append(f"meanwhile the kernel has killed {killed} of this machine's processes to get memory")
        if timed_out:
            ended = f"{what} had not ended after {seconds:g} s, so its process was ended:"
            lines = [f"{self.name}: {ended}", str(self._ending)]
        return "\n".join([*lines, *stacks])

    def _kill(self) -> None:
        if self._thread.is_alive():
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for process in self._processes:
            with suppress(psutil.Error):  # which also knows whether the number is another process's by now
                process.send_signal(number)


def _oom_kills() -> int:
    """Return how many processes the kernel has killed for their memory since it was started; 0 if it doesn't say."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text("ascii").splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


# ---- In the child ----


def _serve(directory: str, partition: str, scheduler: str, ranks: str, address: str) -> None:
    """Be a child: say the processes' numbers, start the runtime, answer a line with a line until there are no more.

    Rank 0 talks with the parent.
    """
    comm = world() if int(ranks) > 1 else None
    rank = comm.Get_rank() if comm else 0
    with ExitStack() as stack:
        stream = stack.enter_context(_connected(address)) if rank == 0 else None

        def send(reply: Mapping[str, Any]) -> None:
            if stream is not None:
                stream.write(json.dumps(reply) + "\n")
                stream.flush()

        send({"pids": (comm.gather(os.getpid()) if comm else None) or [os.getpid()]})
        report_phase("starting the runtime")
        try:
            runtime = Runtime(partition, scheduler, comm)
        except StarpullmError as error:
            send({"raised": f"{type(error).__name__}: {error}"})
            return
        with runtime:
            send({})
            place = Place(runtime, Path(directory, str(rank)) if comm else Path(directory))
            place.directory.mkdir(exist_ok=True)
            for line in _requests(stream, comm):
                request = json.loads(line)
                report_phase(f"running {request['function']}")
                reply = _answer_of_ranks(comm, place, request) if comm else _answer(place, request)
                report_phase("waiting for a check")  # first: with the reply sent this process is stopped
                send(reply)


@contextmanager
def _connected(address: str) -> Iterator[TextIO]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        with connection.makefile("rw", encoding="utf-8", newline="\n") as stream:
            yield stream


def _requests(stream: TextIO | None, comm: Comm | None) -> Iterator[str]:
    """Yield what the parent asks, on every rank."""
    while True:
        line = stream.readline() if stream is not None else ""
        if comm is not None:
            meet(comm)  # the others sleep until there is something
            line = comm.bcast(line)
        if not line:
            return
        yield line


def _answer(place: Place, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        result = _function(request)(place, **request["arguments"])
        return {"reports": [_as_json(report) for report in _reports(result)]}
    except StarpullmError as error:
        return {"raised": f"{type(error).__name__}: {error}"}
    except Exception:
        return {"raised": traceback.format_exc()}


def _answer_of_ranks(comm: Comm, place: Place, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return rank 0's answer, or if another rank's is worse, that; a rank that raises ends them all and is named."""
    with guarded(comm):
        result = _function(request)(place, **request["arguments"])
        reports = comm.allgather([_as_json(report) for report in _reports(result)])
    return {"reports": [_worst(of_ranks) for of_ranks in zip(*reports, strict=True)]}


_OUTCOMES = [Outcome.FAILED, Outcome.INCONCLUSIVE, Outcome.NOT_COMPARABLE, Outcome.PASSED]


def _worst(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the worst of the ranks' reports of one check, the first of them; it says which ranks have the same."""
    worst = min(reports, key=lambda report: _OUTCOMES.index(Outcome(report["outcome"])))
    same = [rank for rank, report in enumerate(reports) if report["lines"] == worst["lines"]]
    told = [] if len(same) == len(reports) else [f"on {rank_list(same)} of {len(reports)}:"]
    return {**worst, "lines": [*told, *worst["lines"]], "details": {**worst["details"], "of_ranks": same}}


def _function(request: Mapping[str, Any]) -> Callable[..., CheckResult | None]:
    name = request["module"]
    if name not in sys.modules and name.partition(".")[0] != __package__.partition(".")[0]:
        spec = importlib.util.spec_from_file_location(name, request["file"])
        if spec is None or spec.loader is None:
            raise InvalidArgumentError(f"{request['file']}: expected a Python file")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    function: Callable[..., CheckResult | None] = getattr(importlib.import_module(name), request["function"])
    return function


def _reports(result: CheckResult | None) -> Iterator[CheckReport]:
    if result is not None:
        yield CheckReport.of(result)


def _as_json(report: CheckReport) -> dict[str, Any]:
    return {**vars(report), "outcome": report.outcome.value}


def main(arguments: list[str]) -> None:
    """Be a child: ``serve DIRECTORY PARTITION SCHEDULER RANKS ADDRESS``, or ``machine``."""
    if arguments == ["machine"]:
        print(json.dumps(inspect_machine().as_json()))
    else:
        _serve(*arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
