"""Builds of the library that run the same configuration by turns, each in a process or in ranks of its own.

The throughput gate calls it. Whoever's turn it isn't is stopped, so a turn has the machine as if it were alone, and
turns of a few steps follow each other faster than the machine's speed changes. Every turn starts StarPU and loads the
model anew: which physical pages buffers and stacks get makes a difference of several percent to some operations, and
must not be the same for all turns of a build.
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
from starpullm.runtime import Partition, Runtime
from starpullm.speed.cost import GraphCost, graph_cost
from starpullm.speed.throughput import (
    Configuration,
    is_kernel,
    make_batches,
    matmul_flops,
    measure_peaks,
    open_trainer,
    run_steps,
)

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

__all__ = ["Contestant", "Turn", "Turns"]

START_SECONDS = 120.0
"""For a process or for all ranks to start and to load the model."""

_PEAK_REPETITIONS = 2


@dataclass(frozen=True)
class Turn:
    """What was measured in a turn.

    Parameters
    ----------
    step_seconds
        From the end of a step to that of the next: the least of the turn's.
    seconds_by_operation
        Kernels' time of a step: for each task of a step the least of the turn's steps, summed over the tasks. A task
        is rarely interrupted in all of them.
    """

    step_seconds: float
    seconds_by_operation: dict[str, float]


class Contestant:
    """A build that takes turns.

    Parameters
    ----------
    name
        What messages call it.
    library
        None: the one that this process would open.
    environment
        Added to that of this process.
    """

    def __init__(self, name: str, library: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.environment = dict(environment or {})
        if library is not None:
            self.environment["STARPULLM_LIB"] = str(library)
        self.flops = 0
        """``matmul_flops`` of a step."""
        self.tasks: dict[str, int] = {}
        """Of a step, by operation."""
        self.cost: GraphCost | None = None
        """Of a step; the same in every run."""
        self.peaks: list[float] = []
        """What the cores of the configuration do at most, 10^9 operations per second; before and after the turns."""


class Turns:
    """The processes of all contestants; a context manager that has the machine to itself, as far as that is known.

    Parameters
    ----------
    configuration
        What they run; its ``iterations`` are the steps of a turn that are measured, after ``warm_up`` that aren't.
    checkpoint
        The model that every turn starts from.
    contestants
        Names are different.
    time_limit
        Seconds for a turn.

    Raises
    ------
    FileError
        If the machine can't be locked.
    RuntimeFailureError
        If one doesn't start, with everything that is known of the reason.
    """

    def __init__(
        self,
        configuration: Configuration,
        checkpoint: Path,
        contestants: Sequence[Contestant],
        time_limit: float = 60.0,
    ) -> None:
        self.configuration = configuration
        self._checkpoint = checkpoint
        if configuration.warm_up < 1:
            raise InvalidArgumentError(f"warm_up: found {configuration.warm_up}, expected at least 1")
        self._contestants = contestants
        self._time_limit = time_limit
        self._children: dict[str, Child] = {}
        self._operations: dict[str, NDArray[np.str_]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._stack.enter_context(machine_lock())
            directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="starpullm-turns-")))
            for contestant in self._contestants:
                self._start(contestant, directory)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def take(self, contestant: Contestant) -> Turn:
        """Let a contestant run its steps, and the others wait.

        Raises
        ------
        RuntimeFailureError
            If it fails or doesn't answer.
        """
        reply = self._ask(contestant, "turn")
        lead = self.configuration.warm_up
        per_task = np.array(reply["durations"])[lead:].min(axis=0) * 1e-9
        names, group = np.unique(self._operations[contestant.name], return_inverse=True)
        sums = np.bincount(group, weights=per_task)
        step_seconds = float(np.diff(reply["ends"])[lead - 1 :].min()) * 1e-9
        return Turn(step_seconds, {str(name): float(of) for name, of in zip(names, sums, strict=True)})

    def finish(self) -> None:
        """Measure once more what the machine can do."""
        for contestant in self._contestants:
            contestant.peaks += self._ask(contestant, "peaks")

    def pids(self, contestant: Contestant) -> tuple[int, ...]:
        """Return a contestant's processes, one per rank."""
        return self._children[contestant.name].pids

    def _start(self, contestant: Contestant, directory: Path) -> None:
        configuration = self.configuration
        environment = {"STARPU_HOME": str(directory)} if "STARPU_HOME" not in os.environ else {}
        child = Child(
            f"{contestant.name}, {configuration}",
            _take_turns,
            {"configuration": asdict(configuration), "checkpoint": str(self._checkpoint)},
            ranks=configuration.ranks,
            environment={**environment, **contestant.environment},
            request_name="the turn",
        )
        self._stack.callback(child.end)
        contestant.peaks = child.start(START_SECONDS).result()
        self._children[contestant.name] = child
        first = self._ask(contestant, "first")
        self._operations[contestant.name] = np.array(first["operations"])
        contestant.tasks = dict(Counter(first["operations"]))
        contestant.flops = first["flops"]
        contestant.cost = GraphCost(**first["cost"])

    def _ask(self, contestant: Contestant, request: str) -> Any:
        return self._children[contestant.name].ask(request, self._time_limit).result()


# ---- In the children ----


@contextmanager
def _take_turns(
    comm: Comm | None, configuration: Mapping[str, Any], checkpoint: str
) -> Iterator[tuple[list[float], Callable[[str], Any]]]:
    """Measure what the cores can do at most; requests are for a turn, the first turn, or to measure that again."""
    own = Configuration(**configuration)
    partition = Partition.parse(own.partition)

    def answer(request: str) -> Any:
        if request == "peaks":
            return measure_peaks(partition.workers * partition.threads, comm, _PEAK_REPETITIONS)[0]
        return _turn(own, Path(checkpoint), comm, is_first=request == "first")

    yield answer("peaks"), answer


def _turn(
    configuration: Configuration,
    checkpoint: Path,
    comm: Comm | None,
    *,
    is_first: bool,
) -> dict[str, Any]:
    """Run a turn's steps; return each one's times, or of the first turn what is the same in all of them."""
    steps = configuration.warm_up + configuration.iterations
    report_phase("running a turn")

    def guard() -> AbstractContextManager[None]:
        return guarded(comm) if comm is not None else nullcontext()

    with (
        Runtime(
            configuration.partition,
            configuration.scheduler,
            comm,
            matmul=configuration.matmul,
            blas_library=configuration.blas_library,
        ) as runtime,
        guard(),
        open_trainer(configuration, checkpoint, runtime, trace=True) as trainer,
        guard(),
    ):
        trace = run_steps(trainer, make_batches(configuration, trainer, steps), trace=True).trace
        assert trace is not None
        tasks = trace.tasks[is_kernel(trace)].reshape(steps, -1)
        if is_first:
            return {
                "operations": [trace.operations[number] for number in tasks["operation"][-1]],
                "flops": matmul_flops(trainer.config, configuration.batch_size, configuration.seq_len),
                "cost": asdict(graph_cost(trace)),
            }
        durations = tasks["end_ns"] - tasks["start_ns"]
        return {"durations": durations.tolist(), "ends": tasks["end_ns"].max(axis=1).tolist()}
