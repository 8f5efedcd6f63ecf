"""The processes of contenders that run the same workload in turn: one process, or one job of ranks, for each.

The processes of all contenders but one are stopped, so a turn has the machine to itself, and turns of a few steps
follow each other faster than the machine's speed changes. Every turn starts StarPU and loads the model anew: the
physical pages that buffers and stacks get change the time of some operations by several percent, and must not be the
same in all turns of a contender.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import InvalidArgumentError
from starpullm.processes.children import Child
from starpullm.processes.lock import machine_lock
from starpullm.processes.progress import report_phase
from starpullm.processes.ranks import guarded
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
            contender.peaks += self._ask(contender, "peaks")

    def pids(self, contender: Contender) -> tuple[int, ...]:
        """Return a contender's processes, one per rank."""
        return self._children[contender.name].pids

    def _start(self, contender: Contender, directory: Path) -> None:
        environment = {"STARPU_HOME": str(directory)} if "STARPU_HOME" not in os.environ else {}
        child = Child(
            f"{contender.name}, {self.workload}",
            _serve_turns,
            {"workload": asdict(self.workload), "checkpoint": str(self._checkpoint)},
            ranks=self.workload.ranks,
            environment={**environment, **contender.environment},
            request_name="the turn",
        )
        self._stack.callback(child.end)
        contender.peaks = child.start(START_SECONDS).result()
        self._children[contender.name] = child
        first = self._ask(contender, "first")
        self._operations[contender.name] = np.array(first["operations"])
        contender.tasks = dict(Counter(first["operations"]))
        contender.flops = first["flops"]
        contender.cost = GraphCost(**first["cost"])

    def _ask(self, contender: Contender, request: str) -> Any:
        return self._children[contender.name].ask(request, self._time_limit).result()


# ---- In the children ----


@contextmanager
def _serve_turns(
    comm: Comm | None, workload: Mapping[str, Any], checkpoint: str
) -> Iterator[tuple[list[float], Callable[[str], Any]]]:
    """Yield the machine's limit; requests are ``"peaks"`` (the limit again), ``"first"`` and ``"turn"``."""
    own = Workload(**workload)

    def answer(request: str) -> Any:
        if request == "peaks":
            return measure_peaks(own.cores, comm, _PEAK_REPETITIONS)[0]
        return _run_turn(own, Path(checkpoint), comm, is_first=request == "first")

    yield answer("peaks"), answer


def _run_turn(workload: Workload, checkpoint: Path, comm: Comm | None, *, is_first: bool) -> dict[str, Any]:
    """Run a turn; return the times of each step, or of the first turn what is the same in all turns."""
    steps = workload.warm_up + workload.iterations
    report_phase("running a turn")

    def guard() -> AbstractContextManager[None]:
        return guarded(comm) if comm is not None else nullcontext()

    with (
        open_runtime(workload, comm) as runtime,
        guard(),
        open_trainer(workload, checkpoint, runtime, trace=True) as trainer,
        guard(),
    ):
        trace = run_steps(trainer, make_batches(workload, trainer, steps), trace=True).trace
        assert trace is not None
        tasks = trace.tasks[is_kernel(trace)].reshape(steps, -1)
        if is_first:
            return {
                "operations": [trace.operations[number] for number in tasks["operation"][-1]],
                "flops": matmul_flops(trainer.config, workload.batch_size, workload.seq_len),
                "cost": asdict(graph_cost(trace)),
            }
        durations = tasks["end_ns"] - tasks["start_ns"]
        return {"durations": durations.tolist(), "ends": tasks["end_ns"].max(axis=1).tolist()}
