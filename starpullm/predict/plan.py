"""The task graph of training steps on any number of ranks, as the library would submit it, without running anything."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from starpullm.binding import prototypes, structs
from starpullm.errors import InvalidArgumentError
from starpullm.files.model import ModelConfig
from starpullm.options import REDUCTIONS, TrainingOptions, index_of_choice
from starpullm.schedules import number_of, session_options
from starpullm.trace import Trace, make_trace

ADDRESS_SPACE = 2**47
"""The bytes that a process of x86-64 or AArch64 can address with 48 bits, of which the kernel keeps half."""


@dataclass(frozen=True)
class Plan:
    """The tasks of all ranks in the order of submission, none of which has run, and what is known of them in advance.

    ``owners`` is the rank that keeps each handle's value.
    """

    trace: Trace
    owners: NDArray[np.int64]
    ranks: int
    stages: int = 1

    def has_buffer(self, rank: int) -> NDArray[np.bool_]:
        """Return of each handle whether a rank has a buffer for it: it owns it, or has a copy of a parameter.

        Those are copies of its stage's parameters, and of wte in the last stage.
        """
        stage = rank % self.stages
        has_head = stage == self.stages - 1
        names = [handle.name for handle in self.trace.handles]
        is_parameter = np.array([name.startswith("params/") for name in names], bool)
        is_wte = np.array([name == "params/wte" for name in names], bool)
        is_read = is_parameter & ((self.owners % self.stages == stage) | (is_wte & has_head))
        has_buffer: NDArray[np.bool_] = is_read | (self.owners == rank)
        return has_buffer

    def bytes_of_ranks(self) -> NDArray[np.int64]:
        """Return the bytes of each rank's buffers."""
        sizes = np.array([handle.bytes for handle in self.trace.handles], np.int64)
        return np.array([sizes[self.has_buffer(rank)].sum() for rank in range(self.ranks)], np.int64)


def make_plan(
    config: ModelConfig,
    *,
    batch_size: int,
    seq_len: int,
    ranks: int,
    workers: int = 1,
    keep_activations: bool = False,
    steps: int = 1,
    **options: Any,
) -> Plan:
    """Return the plan of so many steps; batch size, sub-batches and workers are those of each rank.

    The other options are `TrainingOptions`. `InvalidArgumentError` is raised if a number isn't possible, the reduction
    is ``redux``, to which StarPU adds tasks of its own, or a rank has more bytes than a process can address.
    """
    training = TrainingOptions(**options)
    index_of_choice("reduction", training.reduction, REDUCTIONS[:2])
    sizes = {"batch_size": batch_size, "seq_len": seq_len, "ranks": ranks, "workers": workers}
    session = session_options(training, **sizes, keep_activations=keep_activations)
    tasks, accesses, handles = prototypes.trace(
        "plan_create",
        structs.new("model_config", **asdict(config)),
        session,
        prototypes.integer("ranks", ranks, 32),
        prototypes.integer("workers", workers, 32),
        prototypes.integer("steps", steps, 32),
    )
    owners = np.array([owner for _, _, owner in handles], np.int64)
    plan = Plan(make_trace(tasks, accesses, handles), owners, ranks, number_of(training.stages))
    most = int(plan.bytes_of_ranks().max())
    if most > ADDRESS_SPACE:
        raise InvalidArgumentError(f"model: found {most} bytes on a rank, expected at most {ADDRESS_SPACE}")
    return plan
