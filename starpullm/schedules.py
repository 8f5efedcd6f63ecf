"""Pipelines: the stages that a model is cut into, and the order in which sub-batches pass through them."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from starpullm.binding import prototypes, structs
from starpullm.errors import InvalidArgumentError
from starpullm.options import (
    GRADIENT_BUFFERS,
    RECOMPUTATIONS,
    REDUCTIONS,
    SCHEDULES,
    WEIGHT_GRADIENTS,
    TrainingOptions,
    index_of_choice,
)

KINDS = ("forward", "backward", "weights")


class Pass(NamedTuple):
    """A pass of a sub-batch through a stage; ``kind`` is ``"forward"``, ``"backward"`` or ``"weights"``.

    If a list has passes of weights, which compute their gradients, it has one of each sub-batch in each stage; else the
    backward passes do.
    """

    kind: str
    sub_batch: int
    stage: int


PipelineSchedule = Callable[[int, int], Sequence[Pass]]
"""``schedule(stages, sub_batches)`` returns all passes of a step, in the order in which they are submitted."""


def ahead(counts: Sequence[int], sub_batches: int, *, weights: bool = False) -> list[Pass]:
    """Return a list in which the forward passes of each stage are so many ahead of its backward passes.

    The counts of later stages aren't larger. ``1f1b`` has W for the last stage, and W more for each stage before, with
    W workers. ``zero-bubble`` has passes of ``weights``, and in each of P stages (P + 2)·W.
    """
    passes = []
    for number in range(-max(counts), sub_batches):
        if number >= 0:
            passes += [Pass("backward", number, stage) for stage in reversed(range(len(counts)))]
            passes += [Pass("weights", number, stage) for stage in range(len(counts)) if weights]
        forward = [(number + count, stage) for stage, count in enumerate(counts)]
        passes += [Pass("forward", s, stage) for s, stage in forward if 0 <= s < sub_batches]
    return passes


def number_of(stages: int | Sequence[int]) -> int:
    """Return the number of stages, which are given by this number or by the blocks of each."""
    return prototypes.integer("stages", stages, 32) if isinstance(stages, int) else len(stages)


def number_of_pipelines(ranks: int, stages: int | Sequence[int]) -> int:
    """Return how many pipelines so many ranks are; each has a batch of its own."""
    return ranks // max(1, number_of(stages)) or 1


def session_options(
    training: TrainingOptions, *, batch_size: int, seq_len: int, ranks: int, workers: int, **others: Any
) -> Any:
    """Return the options of a session of so many ranks and workers of each, ``struct starpullm_session_options``.

    ``others`` are members as they are.
    """
    integers = [("batch_size", batch_size, 64), ("seq_len", seq_len, 64), ("sub_batches", training.sub_batches, 64)]
    integers += [("activation_sets", training.activation_sets, 64)]
    integers += [("weight_gradient_tiles", training.weight_gradient_tiles, 32)]
    return structs.new(
        "session_options",
        pipeline=ctypes.pointer(_pipeline(training, ranks, workers)),
        reduction=index_of_choice("reduction", training.reduction, REDUCTIONS),
        recompute=index_of_choice("recompute", training.recompute, RECOMPUTATIONS),
        reuse_weight_gradients=index_of_choice("weight_gradients", training.weight_gradients, WEIGHT_GRADIENTS),
        **{name: prototypes.integer(name, value, bits) for name, value, bits in integers},
        **others,
    )


def _pipeline(training: TrainingOptions, ranks: int, workers: int) -> Any:
    """Return what the options say of stages and passes, ``struct starpullm_pipeline``.

    A pass keeps one worker busy: with more workers in a stage, so many times more sub-batches are ahead.
    """
    stages, schedule, sub_batches = training.stages, training.schedule, training.sub_batches
    count = number_of(stages)
    of_blocks = index_of_choice("gradient_buffers", training.gradient_buffers, GRADIENT_BUFFERS)
    options = structs.new("pipeline", stages=count, gradients_of_blocks=of_blocks)
    if not isinstance(stages, int):
        blocks = [prototypes.integer("stages", number, 32) for number in stages]
        options.blocks = (ctypes.c_int32 * count)(*blocks)
    if callable(schedule):
        passes = schedule(count, sub_batches)
    elif index_of_choice("schedule", schedule, SCHEDULES) == 0 or not 1 < count <= ranks:
        return options  # forward passes are as far ahead as there are activation sets
    else:
        weights = schedule == SCHEDULES[2]
        sets = training.activation_sets or sub_batches
        counts = [min(sets, workers * (count + 2 if weights else count - stage)) for stage in range(count)]
        passes = ahead(counts, sub_batches, weights=weights)
    options.passes = (structs.TYPES["pass"] * len(passes))(*map(_pass, passes))
    options.num_passes = len(passes)
    return options


def described(options: Any) -> tuple[int, list[int], int]:
    """Return what ranks compare of a pipeline: the stages, their blocks, and a checksum of the rest."""
    blocks = options.blocks[: options.stages] if options.blocks else []
    passes = [(entry.kind, entry.sub_batch, entry.stage) for entry in options.passes[: options.num_passes]]
    return options.stages, blocks, zlib.crc32(repr((options.gradients_of_blocks, passes)).encode())


def _pass(entry: object) -> Any:
    if not isinstance(entry, tuple) or len(entry) != 3 or entry[0] not in KINDS:
        raise InvalidArgumentError(f"schedule: found {entry!r}, expected a Pass, {', '.join(KINDS)}")
    kind, sub_batch, stage = entry
    numbers = {"sub_batch": sub_batch, "stage": stage}
    checked = {name: prototypes.integer(name, number, 32) for name, number in numbers.items()}
    return structs.new("pass", kind=KINDS.index(kind), **checked)
