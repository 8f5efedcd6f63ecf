"""Complete runs of the checks: each trains on a given runtime with a record's model, and returns a result.

Over ranks all ranks must call them. The ranks share the record's batch; a number of sub-batches is that of one rank.
``isolation.py`` calls them by name in a child process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.cases import find_record
from starpullm.checks.dependencies.observed_order import ObservedOrder
from starpullm.checks.dependencies.reuse import check_reuse, typical_durations
from starpullm.checks.execution_order import execution_order
from starpullm.checks.place import Place
from starpullm.checks.recorded_run import recorded_run
from starpullm.checks.reduction import GradientErrorResult, check_gradients
from starpullm.checks.reference64 import ReadTensor
from starpullm.checks.result import CheckResult, Result
from starpullm.checks.same_bits import check_same_bits, require_delays
from starpullm.checks.training import STEPS, named_tensors, new_trainer, own_batch, trace_steps
from starpullm.checks.tree import check_tree
from starpullm.data.generator import generate_tokens
from starpullm.golden.records import GoldenRecord
from starpullm.processes.clocks import read_clock
from starpullm.traces.merge import on_one_clock
from starpullm.trainer import Instruments, Trainer

R = TypeVar("R")

MAX_RECORDED = 4
"""Configurations of which a report has a recording, at most."""

MAX_RECORDED_PARAMETERS = 10**7
"""Of a model that is recorded for a report, because its steps take time and memory of their own."""


def tree(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> CheckResult:
    """Compare the order of a tree reduction's additions with the one that is described."""
    with _traced_trainer(place, record, sub_batches, reduction) as trainer:
        trace = trace_steps(trainer, seed)
    return check_tree(trace, sub_batches * place.runtime.ranks)


def reuse(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> CheckResult:
    """Compare the critical path with that of the same task flow in which every step has buffers of its own."""
    with _traced_trainer(place, record, sub_batches, reduction) as trainer:
        trace = trace_steps(trainer, seed)
    return check_reuse(trace, durations=typical_durations(trace))


def gradients(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> GradientErrorResult:
    """Compare every gradient of the second step with its sum in float64, or of the first step if one isn't finite.

    Such a gradient would make the parameters, and so the reference of the second step, not finite either.
    """
    golden = find_record(record)
    with new_trainer(place, golden, sub_batches=sub_batches, reduction=reduction) as trainer:
        number = 0
        trainer.step(*own_batch(trainer, seed, number))
        if _on_rank_0(trainer, partial(_are_gradients_finite, trainer.config.num_layers)):
            number = 1
            trainer.step(*own_batch(trainer, seed, number))
        inputs, _ = generate_tokens(seed, number, golden.batch_size, golden.seq_len, golden.model.vocab_size)
        return _on_rank_0(
            trainer,
            lambda tensor: check_gradients(
                tensor, trainer.config, inputs, sub_batches=place.runtime.ranks * sub_batches
            ),
        )


def losses_of_ranks(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> CheckResult:
    """Compare the mean losses of ``STEPS`` steps between ranks, each of which computes them from all ranks' losses."""
    golden = find_record(record)
    with new_trainer(place, golden, sub_batches=sub_batches, reduction=reduction, keep_activations=False) as trainer:
        losses = [trainer.step(*own_batch(trainer, seed, number)) for number in range(STEPS)]
        of_ranks = place.runtime.comm.allgather(losses) if place.runtime.comm else [losses]
    runs = {f"rank {rank}": {"mean_loss": np.array(values)} for rank, values in enumerate(of_ranks)}
    return replace(check_same_bits("losses of ranks", runs), unit="series of losses")


def write_gradients(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int, path: str) -> None:
    """Write all gradients of the second step to an array file (.npz), by names like ``qkvw[1]``."""
    golden = find_record(record)
    with _two_steps(place, golden, sub_batches, reduction, seed) as trainer:
        tensors = named_tensors(trainer, "grads")
    if place.runtime.rank == 0:
        np.savez(path, allow_pickle=False, **tensors)


def write_perturbed(
    place: Place,
    *,
    record: str,
    sub_batches: int,
    reduction: str,
    seed: int,
    max_delay_us: int,
    delay_seed: int,
    path: str,
) -> Result:
    """Run ``STEPS`` steps with delays and write the final tensors to an array file (.npz), as ``params/qkvw[1]``.

    The result says whether the run kept the required order.
    """
    instruments = Instruments(max_delay_us=max_delay_us, delay_seed=delay_seed)
    with _traced_trainer(place, record, sub_batches, reduction, instruments) as trainer:
        trace = trace_steps(trainer, seed)
        tensors = named_tensors(trainer, "grads", "m", "v", "params")
    if max_delay_us:
        require_delays(trace, max_delay_us)
    np.savez(path, allow_pickle=False, **tensors)
    return ObservedOrder().judge(trace)


def write_recording(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int, path: str) -> None:
    """Record ``STEPS`` steps of all ranks, and write them to a JSON file as a report has them."""
    recording = record_steps(place, record=record, sub_batches=sub_batches, reduction=reduction, seed=seed)
    if place.runtime.rank == 0:
        Path(path).write_text(json.dumps(recording))


def record_steps(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> dict[str, Any]:
    """Return the recording of ``STEPS`` steps of all ranks, as a report has it."""
    runtime = place.runtime
    with _traced_trainer(place, record, sub_batches, reduction) as trainer:
        began = read_clock(runtime.comm)
        trace = on_one_clock(trace_steps(trainer, seed), runtime.comm, began, read_clock(runtime.comm))
    ranks = f" {runtime.ranks} ranks" if runtime.ranks > 1 else ""
    return recorded_run(
        trace,
        name=f"{find_record(record).name}, sub-batches {sub_batches}, {reduction}, {STEPS} steps",
        configuration=f"{runtime.partition} {runtime.scheduler}{ranks}",
    )


def _traced_trainer(
    place: Place, record: str, sub_batches: int, reduction: str, instruments: Instruments | None = None
) -> AbstractContextManager[Trainer]:
    options = {"sub_batches": sub_batches, "reduction": reduction, "instruments": instruments}
    return new_trainer(place, find_record(record), keep_activations=False, trace=True, **options)


@contextmanager
def _two_steps(place: Place, record: GoldenRecord, sub_batches: int, reduction: str, seed: int) -> Iterator[Trainer]:
    """Make two steps, because the gradients of the first must not be part of those of the second."""
    with new_trainer(place, record, sub_batches=sub_batches, reduction=reduction) as trainer:
        for number in range(2):
            trainer.step(*own_batch(trainer, seed, number))
        yield trainer


def _are_gradients_finite(num_layers: int, tensor: ReadTensor) -> bool:
    keys = (key for key in execution_order(num_layers) if key[0] == "grads")
    return all(np.isfinite(tensor(*key)).all() for key in keys)


def _on_rank_0(trainer: Trainer, check: Callable[[ReadTensor], R]) -> R:
    """Return on all ranks the result of a check that rank 0 makes; the others take part in its reads of tensors."""
    comm = trainer.runtime.comm
    if comm is None:
        return check(trainer.tensor)
    trainer.gather()
    if comm.Get_rank() > 0:
        while True:
            what, content = comm.bcast(None)
            if what == "result":
                result: R = content
                return result
            trainer.tensor(*content)

    def tensor(group: str, name: str, layer: int | None) -> NDArray[np.float32]:
        comm.bcast(("tensor", (group, name, layer)))
        return trainer.tensor(group, name, layer)

    result = check(tensor)
    comm.bcast(("result", result))
    return result
