"""Builds of the library that run the same workload in turn: one process, or one job of ranks, for each.

The processes of all contenders but one are stopped, so a turn has the machine to itself, and turns of a few steps
follow each other faster than the machine's speed changes. Every turn starts StarPU and loads the model anew: the
physical pages that buffers and stacks get change the time of some operations by several percent, and must not be the
same in all turns of a contender.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from starpullm.processes.children import Child
from starpullm.processes.lock import machine_lock
from starpullm.processes.progress import report_phase
from starpullm.processes.ranks import guarded
from starpullm.speed.bits import digest_tensors, has_fixed_bits
from starpullm.speed.cost import GraphCost, graph_cost
from starpullm.speed.gate import STEP
from starpullm.speed.limit import matmul_flops, measure_peaks
from starpullm.speed.workload import Workload, make_batches, open_runtime, open_trainer, run_steps
from starpullm.traces.merge import is_kernel

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

START_SECONDS = 120.0
"""The time limit for all processes of a contender to start and to measure the machine's limit."""

_PEAK_REPETITIONS = 2


class Contender:
    """A build of the library that takes turns; `taking_turns` starts and ends its processes.

    Parameters
    ----------
    name
        Its name in messages, which no other contender has.
    library
        The native library; None: the one that this process would open.
    environment
        Environment variables that are added to those of this process.
    """

    tasks: dict[str, int]
    """The number of tasks of a step, by operation."""
    flops: int
    """``limit.matmul_flops`` of a step."""
    cost: GraphCost
    """The cost of a step's task graph; the same in every run."""
    digests: dict[str, str]
    """Of the tensors after a turn; empty if the workload's bits are not fixed."""

    def __init__(self, name: str, library: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.environment = dict(environment or {})
        if library is not None:
            self.environment["STARPULLM_LIB"] = str(library)
        self.seconds: list[dict[str, float]] = []
        """For each turn: the seconds of ``STEP``, and of a step's kernels by operation."""
        self.peaks: list[float] = []
        """The limit of the workload's cores in 10^9 operations per second, measured before and after the turns."""

    def start(
        self, workload: Workload, checkpoint: Path, time_limit: float, environment: Mapping[str, str], stack: ExitStack
    ) -> None:
        """Start the processes, which the stack ends, and run a first turn, which isn't measured."""
        self._workload, self._time_limit = workload, time_limit
        self._child = stack.enter_context(
            Child(
                f"{self.name}, {workload}",
                _serve_turns,
                {"workload": asdict(workload), "checkpoint": str(checkpoint)},
                ranks=workload.ranks,
                environment={**environment, **self.environment},
                request_name="the turn",
            )
        )
        self.peaks += self._child.start(START_SECONDS).result()
        first = self._ask("first")
        self.tasks, self.flops, self.cost = first["tasks"], first["flops"], GraphCost(**first["cost"])
        self.digests = first["digests"]

    def take_turn(self) -> float:
        """Run a turn, while the other contenders are stopped; return the seconds of a step.

        Raises
        ------
        RuntimeFailureError
            If it fails or doesn't answer.
        """
        self.seconds.append(self._ask("turn"))
        return self.seconds[-1][STEP]

    def finish(self) -> tuple[float, float]:
        """Measure the machine's limit again; return it in GFLOP/s, and a step's fraction of it."""
        self.peaks += self._ask("peaks")
        limit = statistics.median(self.peaks)
        return limit, self.flops / self._step_seconds / 1e9 / limit

    @property
    def tokens_per_ms(self) -> float:
        """Of all ranks, from the median over turns."""
        return self._workload.tokens / self._step_seconds / 1e3

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes, one per rank."""
        return self._child.pids

    @property
    def _step_seconds(self) -> float:
        return statistics.median(of[STEP] for of in self.seconds)

    def _ask(self, request: str) -> Any:
        return self._child.ask(request, self._time_limit).result()


@contextmanager
def taking_turns(workload: Workload, checkpoint: Path, time_limit: float, *contenders: Contender) -> Iterator[None]:
    """Hold the machine lock and start the processes of all contenders, which are ended at the end of the block.

    Parameters
    ----------
    workload
        What they run; a turn has ``warm_up`` steps that are not measured, at least one, and ``iterations`` that are.
    checkpoint
        The model that every turn starts from.
    time_limit
        Seconds for a turn.
    contenders
        In the order in which they are started.

    Raises
    ------
    FileError
        If the machine can't be locked.
    RuntimeFailureError
        If a contender doesn't start, with everything that is known of the reason.
    """
    with ExitStack() as stack:
        stack.enter_context(machine_lock())
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="starpullm-turns-"))
        environment = {"STARPU_HOME": directory} if "STARPU_HOME" not in os.environ else {}
        for contender in contenders:
            contender.start(workload, checkpoint, time_limit, environment, stack)
        yield


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
    """Run a turn; return seconds by quantity, or of the first turn what is the same in all turns.

    The step's is the least time of the turn's steps, each from the end of a step to the end of the next. An operation's
    is the sum over its tasks of the least time that each task has in these steps: a task is rarely interrupted in all.
    """
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
        operations = [trace.operations[number] for number in tasks["operation"][-1]]
        if is_first:
            return {
                "tasks": Counter(operations),
                "flops": matmul_flops(trainer.config, workload.batch_size, workload.seq_len),
                "cost": asdict(graph_cost(trace)),
                "digests": digest_tensors(trainer) if has_fixed_bits(workload) else {},
            }
        ends = tasks["end_ns"].max(axis=1)[workload.warm_up - 1 :]
        nanoseconds = Counter({STEP: int(np.diff(ends).min())})
        durations = (tasks["end_ns"] - tasks["start_ns"])[workload.warm_up :].min(axis=0)
        for operation, duration in zip(operations, durations.tolist(), strict=True):
            nanoseconds[operation] += duration
        return {name: of * 1e-9 for name, of in nanoseconds.items()}
