"""The processes of contenders that run the same workload in turn: one process, or one job of ranks, for each.

The processes of all contenders but one are stopped, so a turn has the machine to itself, and turns of a few steps
follow each other faster than the machine's speed changes. Every turn starts StarPU and loads the model anew: the
physical pages that buffers and stacks get change the time of some operations by several percent, and must not be the
same in all turns of a contender.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.isolation import Child
from starpullm.errors import InvalidArgumentError, RuntimeFailureError, StarpullmError
from starpullm.processes.lock import machine_lock
from starpullm.processes.progress import report_phase
from starpullm.processes.ranks import guarded, rank_and_size_from_environment, world
from starpullm.speed.attribution import is_kernel
from starpullm.speed.cost import GraphCost, graph_cost
from starpullm.speed.limit import matmul_flops, measure_peaks
from starpullm.speed.workload import Workload, make_batches, open_runtime, open_trainer, run_steps

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

__all__ = ["Contender", "Turn", "Turns"]

START_SECONDS = 120.0
"""The time limit for all processes of a contender to start and to measure the machine's limit."""

_PEAK_REPETITIONS = 2


@dataclass(frozen=True)
class Turn:
    """What was measured in a turn.

    Parameters
    ----------
    step_seconds
        The least time of the turn's steps, each from the end of a step to the end of the next.
    seconds_by_operation
        The kernels' time of a step: for each task of a step the least time of the turn's steps, summed over the tasks.
        A task is rarely interrupted in all of the steps.
    """

    step_seconds: float
    seconds_by_operation: dict[str, float]


class Contender:
    """A build of the library that takes turns.

    Parameters
    ----------
    name
        Its name in messages.
    library
        The native library; None: the one that this process would open.
    environment
        Environment variables that are added to those of this process.
    """

    def __init__(self, name: str, library: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.environment = dict(environment or {})
        if library is not None:
            self.environment["STARPULLM_LIB"] = str(library)
        self.flops = 0
        """``limit.matmul_flops`` of a step."""
        self.tasks: dict[str, int] = {}
        """The number of tasks of a step, by operation."""
        self.cost: GraphCost | None = None
        """The cost of a step's task graph; the same in every run."""
        self.peaks: list[float] = []
        """The limit of the workload's cores in 10^9 operations per second, measured before and after the turns."""


class Turns:
    """The processes of all contenders; a context manager that holds the machine lock.

    Parameters
    ----------
    workload
        What they run; a turn has ``warm_up`` steps that are not measured and ``iterations`` that are.
    checkpoint
        The model that every turn starts from.
    contenders
        Their names are different.
    time_limit
        Seconds for a turn.

    Raises
    ------
    FileError
        If the machine can't be locked.
    RuntimeFailureError
        If a contender doesn't start, with everything that is known of the reason.
    """

    def __init__(
        self, workload: Workload, checkpoint: Path, contenders: Sequence[Contender], time_limit: float = 60.0
    ) -> None:
        if workload.warm_up < 1:
            raise InvalidArgumentError(f"warm_up: found {workload.warm_up}, expected at least 1")
        self.workload = workload
        self._checkpoint = checkpoint
        self._contenders = contenders
        self._time_limit = time_limit
        self._children: dict[str, Child] = {}
        self._operations: dict[str, NDArray[np.str_]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._stack.enter_context(machine_lock())
            directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="starpullm-turns-")))
            for contender in self._contenders:
                self._start(contender, directory)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def take(self, contender: Contender) -> Turn:
        """Run a turn of a contender, while the others are stopped.

        Raises
        ------
        RuntimeFailureError
            If it fails or doesn't answer.
        """
        reply = self._ask(contender, "turn")
        first = self.workload.warm_up
        per_task = np.array(reply["durations"])[first:].min(axis=0) * 1e-9
        names, group = np.unique(self._operations[contender.name], return_inverse=True)
        sums = np.bincount(group, weights=per_task)
        step_seconds = float(np.diff(reply["ends"])[first - 1 :].min()) * 1e-9
        return Turn(step_seconds, {str(name): float(of) for name, of in zip(names, sums, strict=True)})

    def finish(self) -> None:
        """Measure the machine's limit once more."""
        for contender in self._contenders:
            contender.peaks += self._ask(contender, "peaks")["peaks"]

    def pids(self, contender: Contender) -> tuple[int, ...]:
        """Return a contender's processes, one per rank."""
        return self._children[contender.name].pids

    def _start(self, contender: Contender, directory: Path) -> None:
        workload = self.workload
        command = [sys.executable, "-P", "-m", "starpullm.speed.turns"]
        environment = {"STARPU_HOME": str(directory)} if "STARPU_HOME" not in os.environ else {}
        child = Child(
            f"{contender.name}, {workload}",
            [*command, json.dumps(asdict(workload)), str(self._checkpoint)],
            directory,
            {**environment, **contender.environment},
            workload.ranks if workload.ranks > 1 else None,
        )
        self._stack.callback(child.end)
        hello = child.wait_started(START_SECONDS)
        if isinstance(hello, str):
            raise RuntimeFailureError(hello)
        self._children[contender.name] = child
        contender.peaks = hello["peaks"]
        first = self._ask(contender, "first")
        self._operations[contender.name] = np.array(first["operations"])
        contender.tasks = dict(Counter(first["operations"]))
        contender.flops = first["flops"]
        contender.cost = GraphCost(**first["cost"])

    def _ask(self, contender: Contender, request: str) -> dict[str, Any]:
        reply = self._children[contender.name].ask(json.dumps(request) + "\n", self._time_limit)
        if isinstance(reply, str):
            raise RuntimeFailureError(reply)
        if "raised" in reply:
            raise RuntimeFailureError(f"{contender.name}, {self.workload}: {reply['raised']}")
        return reply


# ---- In the children ----


class _Connection:
    """The connection of rank 0 to the parent; all ranks read the same requests from it."""

    def __init__(self, address: str, comm: Comm | None) -> None:
        self._comm = comm
        pids = comm.gather(os.getpid()) if comm else [os.getpid()]
        self._stream = None
        if pids is not None:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(address)
            self._stream = self._socket.makefile("rw", encoding="utf-8", newline="\n")
            self.send({"pids": pids})

    def send(self, reply: Mapping[str, object]) -> None:
        if self._stream is not None:
            self._stream.write(json.dumps(reply) + "\n")
            self._stream.flush()

    def read(self) -> str:
        """Return the next request, "" if the parent has closed the connection."""
        request = ""
        if self._stream is not None:
            line = self._stream.readline()
            request = json.loads(line) if line else ""
        return self._comm.bcast(request) if self._comm else request


def _serve(
    workload: Workload,
    checkpoint: Path,
    connection: _Connection,
    comm: Comm | None,
    guard: Callable[[], AbstractContextManager[None]],
) -> None:
    reply = _peaks(workload, comm)
    while True:
        report_phase("waiting for a turn")
        connection.send(reply)
        request = connection.read()
        if not request:
            return
        reply = _answer(request, workload, checkpoint, comm, guard)


def _answer(
    request: str,
    workload: Workload,
    checkpoint: Path,
    comm: Comm | None,
    guard: Callable[[], AbstractContextManager[None]],
) -> dict[str, Any]:
    """Answer ``"peaks"``, ``"first"`` (what is the same in all turns), or ``"turn"`` (the times of each step)."""
    if request == "peaks":
        return _peaks(workload, comm)
    steps = workload.warm_up + workload.iterations
    report_phase("running a turn")
    with (
        open_runtime(workload, comm) as runtime,
        guard(),
        open_trainer(workload, checkpoint, runtime, trace=True) as trainer,
        guard(),
    ):
        trace = run_steps(trainer, make_batches(workload, trainer, steps), trace=True).trace
        assert trace is not None
        tasks = trace.tasks[is_kernel(trace)].reshape(steps, -1)
        if request == "first":
            return {
                "operations": [trace.operations[number] for number in tasks["operation"][-1]],
                "flops": matmul_flops(trainer.config, workload.batch_size, workload.seq_len),
                "cost": asdict(graph_cost(trace)),
            }
        durations = tasks["end_ns"] - tasks["start_ns"]
        return {"durations": durations.tolist(), "ends": tasks["end_ns"].max(axis=1).tolist()}


def _peaks(workload: Workload, comm: Comm | None) -> dict[str, Any]:
    return {"peaks": measure_peaks(workload.cores, comm, _PEAK_REPETITIONS)[0]}


def _main(workload: Workload, checkpoint: Path, address: str) -> None:
    _, size = rank_and_size_from_environment()
    if size > 1:
        comm = world()

        def guard() -> AbstractContextManager[None]:
            return guarded(comm)

        with guard():
            _serve(workload, checkpoint, _Connection(address, comm), comm, guard)
        return
    connection = _Connection(address, None)
    try:
        _serve(workload, checkpoint, connection, None, nullcontext)
    except StarpullmError as error:
        connection.send({"raised": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    _main(Workload(**json.loads(sys.argv[1])), Path(sys.argv[2]), sys.argv[3])
