"""The trace of a run over all its ranks: recording it, storing it in a file, and reading it back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

import starpullm
from starpullm.binding.structs import TRACE_ACCESS, TRACE_TASK
from starpullm.errors import InvalidArgumentError
from starpullm.files.header import StrPath
from starpullm.files.trace_file import ACCESS, TASK, TraceFile, read_trace_file, write_trace_file
from starpullm.graph.merge import on_one_clock
from starpullm.processes.clocks import read_clock
from starpullm.processes.mpirun import host_name
from starpullm.trace import HandleInfo, Trace
from starpullm.trainer import Trainer


@dataclass(frozen=True)
class RankInfo:
    """Where a rank ran, and how exactly its times are known on the clock of rank 0; 0: it is the same clock."""

    host: str
    partition: str
    clock_uncertainty_ns: int


@dataclass(frozen=True)
class TracedRun:
    """The tasks of all ranks, with times on rank 0's monotonic clock, and what is known of the run.

    Tasks that no worker has run have worker -1: the transfers between ranks.
    """

    trace: Trace
    ranks: tuple[RankInfo, ...]
    settings: Mapping[str, Any]
    """JSON values: scheduler, reduction, sub_batches, batch_size, seq_len, matmul, model."""
    unix_ns: int
    """By how much the system's time, in nanoseconds since 1970, was ahead of the clock."""
    program: str

    @property
    def has_run(self) -> NDArray[np.bool_]:
        """Which tasks a worker has run."""
        has_run: NDArray[np.bool_] = self.trace.tasks["worker"] >= 0
        return has_run

    @cached_property
    def origin_ns(self) -> int:
        """The time of the first submission, from which exported times count."""
        return int(self.trace.tasks["submit_ns"].min(initial=np.iinfo(np.int64).max)) if len(self.trace) else 0

    def steps(self, first: int, last: int) -> TracedRun:
        """Return the part with these submissions (steps and evaluations, numbered from 0), `last` included."""
        tasks = self.trace.tasks
        chosen = np.flatnonzero((tasks["step"] >= first) & (tasks["step"] <= last))
        if not len(chosen):
            numbers = f"{tasks['step'].min()} to {tasks['step'].max()}" if len(tasks) else "no tasks at all"
            raise InvalidArgumentError(f"steps: found no task of {first} to {last}, expected some of {numbers}")
        # Submissions follow one another, so the chosen tasks do too.
        tasks = tasks[chosen[0] : chosen[-1] + 1].copy()
        begin = int(tasks["first_access"][0])
        end = int(tasks["first_access"][-1] + tasks["num_accesses"][-1])
        tasks["first_access"] -= begin
        return replace(self, trace=replace(self.trace, tasks=tasks, accesses=self.trace.accesses[begin:end]))


class Recording:
    """Records a trainer's tasks from here on; over ranks, every rank creates and finishes one.

    The trainer must have been created with ``trace=True``.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._unix_ns = time.time_ns() - time.monotonic_ns()
        self._began = read_clock(trainer.runtime.comm)

    def finish(self) -> TracedRun | None:
        """Wait for all submitted tasks, and return the trace of all ranks on rank 0, None on the others."""
        trainer, comm = self._trainer, self._trainer.runtime.comm
        own = trainer.trace()
        ended = read_clock(comm)
        trace = on_one_clock(own, comm, self._began, ended)
        uncertainty = max(self._began.uncertainty_ns, ended.uncertainty_ns)
        info = RankInfo(host_name(), str(trainer.runtime.partition), uncertainty)
        ranks = [info] if comm is None else comm.gather(info)
        if ranks is None:
            return None
        return TracedRun(trace, tuple(ranks), _settings(trainer), self._unix_ns, f"starpullm {starpullm.__version__}")


def save_run(path: StrPath, run: TracedRun) -> None:
    """Write a run's trace to a file (docs/formats.md)."""
    trace = run.trace
    tasks, accesses = np.empty(len(trace), TASK), np.empty(len(trace.accesses), ACCESS)
    for table, stored in ((trace.tasks, tasks), (trace.accesses, accesses)):
        for name in stored.dtype.names or ():
            stored[name] = table[name]
    about = {
        "program": run.program,
        "settings": dict(run.settings),
        "clock": {"unix_ns": run.unix_ns},
        "ranks": [asdict(rank) for rank in run.ranks],
        "operations": trace.operations,
        "handles": [{"name": handle.name, "bytes": handle.bytes} for handle in trace.handles],
    }
    write_trace_file(path, TraceFile(about, tasks, accesses))


def load_run(path: StrPath) -> TracedRun:
    """Read a run's trace from a file; errors as ``read_trace_file``."""
    stored = read_trace_file(path)
    tasks = np.zeros(len(stored.tasks), TRACE_TASK)
    accesses = np.zeros(len(stored.accesses), TRACE_ACCESS)
    for table, part in ((tasks, stored.tasks), (accesses, stored.accesses)):
        for name in part.dtype.names or ():
            table[name] = part[name]
    tasks["id"] = np.arange(len(tasks))
    about = stored.about
    handles = tuple(
        HandleInfo(number, handle["name"], handle["bytes"]) for number, handle in enumerate(about["handles"])
    )
    ranks = (RankInfo(rank["host"], rank["partition"], rank["clock_uncertainty_ns"]) for rank in about["ranks"])
    unix_ns = about["clock"].get("unix_ns", 0)
    return TracedRun(
        trace=Trace(tasks, accesses, tuple(about["operations"]), handles),
        ranks=tuple(ranks),
        settings=about["settings"],
        unix_ns=unix_ns if isinstance(unix_ns, int) else 0,
        program=about["program"],
    )


def _settings(trainer: Trainer) -> dict[str, Any]:
    return {
        "scheduler": trainer.runtime.scheduler,
        "matmul": trainer.runtime.matmul,
        "reduction": trainer.reduction,
        "sub_batches": trainer.sub_batches * trainer.pipelines,
        "batch_size": trainer.batch_size * trainer.pipelines,
        "seq_len": trainer.seq_len,
        "model": asdict(trainer.config),
    }
