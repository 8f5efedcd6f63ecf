"""What one measurement runs: a model with sizes, a placement and a number of steps.

Every measurement trains through these functions, so all of them run the same steps on the same batches.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from starpullm.data.generator import generate_tokens
from starpullm.errors import InvalidArgumentError
from starpullm.graph.merge import on_one_clock
from starpullm.options import (
    ARITHMETICS,
    GRADIENT_BUFFERS,
    OFFLOAD_PLANS,
    RECOMPUTATIONS,
    WEIGHT_GRADIENTS,
    TrainingOptions,
    training_options,
)
from starpullm.processes import Comm
from starpullm.processes.clocks import on_rank_0, read_clock
from starpullm.runtime import DEFAULT_SCHEDULER, Partition
from starpullm.schedules import number_of_pipelines
from starpullm.trace import Trace
from starpullm.trainer import Trainer

_Value = TypeVar("_Value")

SEED = 1
"""Of the generated tokens."""


@dataclass(frozen=True, kw_only=True)
class Workload(TrainingOptions):
    """What is measured: ``iterations`` steps after ``warm_up`` ones.

    ``model`` is a name for tables and messages. ``batch_size`` is B of all ranks together; partition, scheduler and
    sub-batches are those of each rank. ``ranks`` is 1 for one process without mpirun.
    """

    model: str
    batch_size: int
    seq_len: int
    partition: str
    scheduler: str = DEFAULT_SCHEDULER
    ranks: int = 1
    iterations: int = 1
    warm_up: int = 1
    matmul: str = "strict"
    blas_library: str | None = None
    arithmetic: str = ARITHMETICS[0]
    offload: str | None = None
    memory_limit: str | None = None
    offload_plan: str = OFFLOAD_PLANS[0]
    devices: str = "0"

    def __post_init__(self) -> None:
        for name in ("batch_size", "seq_len", "sub_batches", "ranks", "iterations"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"{name}: found {getattr(self, name)}, expected at least 1")
        if self.warm_up < 0:
            raise InvalidArgumentError(f"warm_up: found {self.warm_up}, expected at least 0")
        Partition.parse(self.partition)
        if self.batch_size % (self.pipelines * self.sub_batches):
            raise InvalidArgumentError(
                f"batch_size: found {self.batch_size}, expected a multiple of {self.pipelines * self.sub_batches} "
                f"({'ranks' if self.stages == 1 else 'pipelines'} {self.pipelines}, "
                f"sub-batches of each {self.sub_batches})"
            )

    def __str__(self) -> str:
        ranks = f", {self.ranks} ranks" if self.ranks > 1 else ""
        matmul = "".join(f", {word}" for word in (self.matmul, self.arithmetic) if word != "strict")
        sets = f", {self.activation_sets} sets" if self.activation_sets else ""
        tiles = f", {self.weight_gradient_tiles} tiles" if self.weight_gradient_tiles else ""
        again = "" if self.recompute == RECOMPUTATIONS[0] else f", {self.recompute} recomputed"
        reused = "" if self.weight_gradients == WEIGHT_GRADIENTS[0] else f", {self.weight_gradients} gradients"
        cut = "" if self.stages == 1 else f", stages {self.stages}, {self.schedule}"
        disk = f", {self.memory_limit} and a disk ({self.offload_plan})" if self.offload else ""
        buffers = "" if self.gradient_buffers == GRADIENT_BUFFERS[0] else f", buffers of each {self.gradient_buffers}"
        devices = "" if self.devices == "0" else f", devices {self.devices}"
        settings = f"{sets}, {self.reduction}{tiles}{again}{reused}{cut}{buffers}{matmul}{disk}{devices}"
        return f"{self.partition}{ranks}, S = {self.sub_batches}{settings}"

    @property
    def cores(self) -> int:
        """The cores of one rank."""
        partition = Partition.parse(self.partition)
        return partition.workers * partition.threads

    @property
    def of_each_rank(self) -> dict[str, Any]:
        """What a rank's trainer is created with, and a plan made with."""
        return {"batch_size": self.batch_size // self.pipelines, "seq_len": self.seq_len, **training_options(self)}

    @property
    def pipelines(self) -> int:
        """How many ranks, or pipelines of ranks, share the batch."""
        return number_of_pipelines(self.ranks, self.stages)

    @property
    def tokens(self) -> int:
        """The tokens of a step, of all ranks together."""
        return self.batch_size * self.seq_len


def make_batches(workload: Workload, trainer: Trainer, number: int) -> list[list[NDArray[np.int32]]]:
    """Return this rank's inputs and targets, each (B of the rank, T), of so many steps."""
    first = trainer.runtime.rank * workload.pipelines // workload.ranks * trainer.batch_size
    own = slice(first, first + trainer.batch_size)
    sizes = (workload.batch_size, workload.seq_len, trainer.config.vocab_size)
    return [[part[own] for part in generate_tokens(SEED, step, *sizes)] for step in range(number)]


class MeasuredSteps(NamedTuple):
    """Steps that all ranks have run, by the clock of rank 0: the first begin, the last end, and the trace if any."""

    begin_ns: int
    end_ns: int
    losses: list[float]
    trace: Trace | None

    @property
    def seconds(self) -> float:
        """The time from the first begin to the last end."""
        return (self.end_ns - self.begin_ns) * 1e-9


def run_steps(trainer: Trainer, batches: Sequence[Sequence[NDArray[np.int32]]], *, trace: bool) -> MeasuredSteps:
    """Submit all steps ahead, on all ranks after a barrier, and wait for them; every rank returns the same."""
    comm = trainer.runtime.comm
    if trace:
        trainer.clear_trace()
    clock = read_clock(comm)
    if comm:
        comm.Barrier()
    begin = time.monotonic_ns()
    losses = [trainer.submit(*batch) for batch in batches]
    trainer.wait()
    end = time.monotonic_ns()
    ended = read_clock(comm)
    own = on_rank_0(np.array([begin, end]), clock, ended).tolist()
    begins, ends = zip(*all_values(comm, own), strict=True)
    traced = on_one_clock(trainer.trace(), comm, clock, ended) if trace else None
    return MeasuredSteps(min(begins), max(ends), [float(loss) for loss in losses], traced)


def all_values(comm: Comm | None, value: _Value) -> list[_Value]:
    """Return every rank's value, on every rank."""
    return comm.allgather(value) if comm else [value]
