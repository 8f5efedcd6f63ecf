"""How long tasks take: by the operations of their matmuls at a given speed, or as tasks of the same kind have taken."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import InvalidArgumentError
from starpullm.files.model import ModelConfig
from starpullm.trace import Trace
from starpullm.traces.merge import is_kernel

Kind = tuple[str, tuple[int, ...]]
"""An operation and the bytes of its accesses."""


def kinds_of(trace: Trace) -> list[Kind]:
    """Return the kind of each task."""
    sizes = np.array([handle.bytes for handle in trace.handles], np.int64)[trace.accesses["handle"]].tolist()
    tasks = trace.tasks
    columns = (tasks["operation"].tolist(), tasks["first_access"].tolist(), tasks["num_accesses"].tolist())
    return [
        (trace.operations[operation], tuple(sizes[first : first + count]))
        for operation, first, count in zip(*columns, strict=True)
    ]


def mean_durations(trace: Trace) -> dict[Kind, float]:
    """Return how long the recorded tasks of each kind took on average, in nanoseconds; messages aren't among them."""
    totals: defaultdict[Kind, list[int]] = defaultdict(list)
    durations = (trace.tasks["end_ns"] - trace.tasks["start_ns"]).tolist()
    for kind, duration, kernel in zip(kinds_of(trace), durations, is_kernel(trace).tolist(), strict=True):
        if kernel:
            totals[kind].append(duration)
    return {kind: sum(taken) / len(taken) for kind, taken in totals.items()}


def from_measured(trace: Trace, measured: Mapping[Kind, float]) -> NDArray[np.float64]:
    """Return the duration of each task in nanoseconds, 0 for messages.

    Raises
    ------
    InvalidArgumentError
        If tasks of one kind weren't measured.
    """
    durations = np.zeros(len(trace))
    for number, (kind, kernel) in enumerate(zip(kinds_of(trace), is_kernel(trace).tolist(), strict=True)):
        if not kernel:
            continue
        if kind not in measured:
            raise InvalidArgumentError(
                f"durations: found no {kind[0]} with accesses of {', '.join(map(str, kind[1]))} bytes, expected one: "
                "they have to be of the same model and sub-batches"
            )
        durations[number] = measured[kind]
    return durations


def matmul_operations(trace: Trace, config: ModelConfig, sub_batch_size: int, seq_len: int) -> NDArray[np.int64]:
    """Return the multiplications and additions of each task's matrix products, as ``speed.limit.matmul_flops`` counts.

    Those of a linear layer are twice its weight's elements for each token.
    """
    is_weight = np.array([handle.name.startswith(("params/", "grads/")) for handle in trace.handles], bool)
    elements = np.array([handle.bytes // 4 for handle in trace.handles], np.int64) * is_weight
    tasks = trace.tasks
    largest = np.maximum.reduceat(elements[trace.accesses["handle"]], tasks["first_access"])
    attention = 2 * sub_batch_size * config.channels * seq_len * (seq_len + 1)
    by_operation = {"attention_forward": attention, "attention_backward": 2 * attention}
    fixed = np.array([by_operation.get(name, 0) for name in trace.operations], np.int64)
    is_linear = np.array([name.startswith("matmul") for name in trace.operations], bool)
    linear = 2 * sub_batch_size * seq_len * largest * is_linear[tasks["operation"]]
    counts: NDArray[np.int64] = linear + fixed[tasks["operation"]]
    return counts
