"""Pipelines on paper: what is refused, where the cuts are, and the bytes of each rank against formulas of their own."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from starpullm.data.generator import generate_checkpoint, generate_tokens
from starpullm.data.models import MODELS
from starpullm.errors import InvalidArgumentError
from starpullm.files.model import ModelConfig
from starpullm.graph.on_paper import run
from starpullm.graph.work import work_of
from starpullm.predict.plan import Plan, make_plan
from starpullm.runtime import Runtime
from starpullm.schedules import Pass, PipelineSchedule, ahead
from starpullm.trainer import Trainer

from .children import Reply, assert_refused, attempt, run_function
from .foreign_values import foreign_values

TINY, GPT2 = MODELS["tiny"], MODELS["gpt2"]
FOUR = replace(GPT2, num_layers=4)


def plan_of(config: ModelConfig = TINY, *, stages: int | Sequence[int] = 2, **options: Any) -> Plan:
    ranks = stages if isinstance(stages, int) else len(stages)
    given = {"batch_size": 4, "seq_len": 8, "sub_batches": 4, "ranks": ranks, "reduction": "ordered", **options}
    return make_plan(config, stages=stages, **given)


def elements(plan: Plan, group: str, stage: int | None = None) -> dict[str, int]:
    """Return the elements of a group's tensors by name, of all stages or of one."""
    handles = zip(plan.trace.handles, (plan.owners % plan.stages).tolist(), strict=True)
    return {
        handle.name.removeprefix(group): handle.bytes // 4
        for handle, its_stage in handles
        if handle.name.startswith(group) and stage in (None, its_stage)
    }


def apart(count: int | None = None, **changes: Any) -> PipelineSchedule:
    """Return the same of a schedule with passes of weights, which is so many sub-batches ahead."""
    return changed(
        lambda stages, sub_batches: ahead([count or sub_batches] * stages, sub_batches, weights=True), **changes
    )


def changed(made: PipelineSchedule | None = None, **changes: Any) -> PipelineSchedule:
    """Return the schedule gpipe, or another, with entries that are replaced, moved to the end, or inserted."""

    def schedule(stages: int, sub_batches: int) -> list[Pass]:
        passes = list(made(stages, sub_batches) if made else ahead([sub_batches] * stages, sub_batches))
        for kind, sub_batch, stage in changes.get("late", ()):
            passes.remove(Pass(kind, sub_batch, stage))
            passes.append(Pass(kind, sub_batch, stage))
        for index, entry in changes.get("at", {}).items():
            passes.insert(index, Pass(*entry))
        return passes[: changes.get("length")]

    return schedule


def plan_of_many_passes() -> Reply:
    """More than 31 bits count, of 26 GB: without the refusal the list would be written before its beginning."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 34, 1 << 34))
    sizes = {"stages": 100, "batch_size": 10_800_000, "sub_batches": 10_800_000, "activation_sets": 1}
    return attempt(lambda: plan_of(replace(TINY, num_layers=99), **sizes))


def test_more_passes_than_can_be_counted() -> None:
    refused = run_function(plan_of_many_passes)
    sentence = "batch_size, sub_batches: found 10800000 and 10800000 on each of 100 ranks, expected at most 715827882 "
    assert_refused(refused, InvalidArgumentError, f"{sentence}sub-batches on all ranks together")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"stages": 4}, "stages: found 4, expected 1 to 3: only the last, with the head, may have no block"),
        (
            {"stages": 0, "ranks": 1},
            "stages: found 0, expected 1 to 3: only the last, with the head, may have no block",
        ),
        (
            {"stages": 2, "ranks": 3},
            "stages: found 2 on 3 ranks, expected a divisor: a pipeline has a rank for each stage",
        ),
        ({"stages": (1, 2)}, "stages: found 3 blocks in all, expected the model's 2"),
        ({"stages": (0, 2)}, "stages: found 0 blocks in stage 0, expected at least 1"),
        ({"stages": (3, -1)}, "stages: found -1 blocks in stage 1, expected at least 0"),
        ({"schedule": "other"}, 'schedule: found "other", expected one of gpipe, 1f1b, zero-bubble'),
        ({"gradient_buffers": "own"}, 'gradient_buffers: found "own", expected one of shared, block'),
        (
            {"schedule": lambda stages, sub_batches: ["F0"]},
            "schedule: found 'F0', expected a Pass, forward, backward, weights",
        ),
        (
            {"schedule": "zero-bubble"},
            "passes: found some of weights with shared gradient_buffers, expected each block to keep what they read",
        ),
        (
            {"schedule": "zero-bubble", "gradient_buffers": "block", "recompute": "attention"},
            "passes: found some of weights with recompute, expected each block to keep what they read",
        ),
        (
            {
                "stages": 1,
                "sub_batches": 1,
                "schedule": apart(),
                "gradient_buffers": "block",
                "weight_gradients": "reused",
            },
            "passes: found some of weights with reused weight_gradients, expected each block to keep what they read",
        ),
        (
            {"schedule": apart(late=[("weights", 0, 1)]), "gradient_buffers": "block"},
            "passes: number 14, weights of sub-batch 1 in stage 1: expected the sub-batch before it first: losses and "
            "gradients are summed in this order",
        ),
        (
            {"schedule": apart(at={0: ("weights", 0, 0)}), "gradient_buffers": "block"},
            "passes: number 0, weights of sub-batch 0 in stage 0: expected its backward pass first",
        ),
        (
            {"schedule": apart(at={-1: ("weights", 0, 0)}), "gradient_buffers": "block"},
            "passes: number 23, weights of sub-batch 0 in stage 0: expected each pass once",
        ),
        (
            {"schedule": apart(3), "activation_sets": 2, "gradient_buffers": "block"},
            "passes: number 4, forward of sub-batch 2 in stage 0: expected a free activation set: the sub-batch that "
            "has it needs its backward pass first",
        ),
        (
            {"schedule": changed(at={1: ("forward", 0, 0)})},
            "passes: number 1, forward of sub-batch 0 in stage 0: expected each pass once",
        ),
        (
            {"schedule": changed(at={0: ("forward", 0, 1)})},
            "passes: number 0, forward of sub-batch 0 in stage 1: expected the forward pass of the stage before first",
        ),
        (
            {"schedule": changed(at={0: ("backward", 0, 1)})},
            "passes: number 0, backward of sub-batch 0 in stage 1: expected its forward pass first",
        ),
        (
            {"schedule": changed(at={8: ("backward", 0, 0)})},
            "passes: number 8, backward of sub-batch 0 in stage 0: expected the backward pass of the stage behind "
            "first",
        ),
        (
            {"schedule": changed(at={8: ("backward", 1, 1)})},
            "passes: number 8, backward of sub-batch 1 in stage 1: expected the sub-batch before it first: losses and "
            "gradients are summed in this order",
        ),
        (
            {"schedule": changed(at={0: ("forward", 4, 0)})},
            "passes: number 0, forward of sub-batch 4 in stage 0: expected a stage and a sub-batch that there are",
        ),
        (
            {"schedule": changed(at={0: ("backward", 0, 2)})},
            "passes: number 0, backward of sub-batch 0 in stage 2: expected a stage and a sub-batch that there are",
        ),
        ({"schedule": changed(length=-1)}, "passes: found 15, expected 16: each once"),
        (
            {"schedule": changed(), "activation_sets": 3},
            "passes: number 6, forward of sub-batch 3 in stage 0: expected a free activation set: the sub-batch that "
            "has it needs its backward pass first",
        ),
    ],
)
def test_refused(options: dict[str, Any], sentence: str) -> None:
    """By one sentence, before anything is submitted; a trainer has the same checks."""
    with pytest.raises(InvalidArgumentError) as caught:
        plan_of(**options)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("stages", "blocks"),
    [(2, [9, 3]), (3, [6, 6, 0]), (4, [4, 4, 4, 0]), ((12, 0), [12, 0]), ((1, 11), [1, 11])],
)
def test_cuts(stages: int | Sequence[int], blocks: list[int]) -> None:
    """By cost, a block is 12·C² and the head Vp·C: 5.5 blocks."""
    plan = plan_of(GPT2, stages=stages)
    cut = [0] * len(blocks)
    for handle, owner in zip(plan.trace.handles, plan.owners.tolist(), strict=True):
        cut[owner] += handle.name.startswith("params/qkvw")
    assert cut == blocks


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
@pytest.mark.parametrize("stages", [(9, 3), (5, 5, 2), (4, 4, 4, 0)])
@pytest.mark.parametrize(("sets", "workers"), [(0, 1), (2, 1), (0, 2)])
def test_bytes_of_ranks(stages: tuple[int, ...], schedule: str, sets: int, workers: int) -> None:
    """By the formulas of docs/design.md: a stage has its own parameters, and its sub-batches' activations."""
    last, N, C, T, Vp = len(stages) - 1, 8, GPT2.channels, 8, GPT2.padded_vocab_size
    of_blocks = schedule == "zero-bubble"
    buffers = "block" if of_blocks else "shared"
    options = {"activation_sets": sets, "workers": workers, "gradient_buffers": buffers}
    plan = plan_of(GPT2, stages=stages, schedule=schedule, **options)
    att = GPT2.num_heads * T * T
    expected = []
    for stage, blocks in enumerate(stages):
        kept = min(sets or 4, workers * (last + 1 - stage)) if schedule == "1f1b" else sets or 4
        parameters = 4 * blocks * (12 * C * C + 13 * C)
        shared = (2 * N * C + att + 18 * N * C + 2 * att) if blocks else 0
        # A gradient at a boundary is the upper stage's, of which the first has none.
        shared -= N * C if stage == 0 and blocks == 1 else 0
        shared += N * C if not blocks else 0
        shared += 11 * N * C * (blocks - 1) if of_blocks and blocks else 0
        activations = kept * (blocks * (16 * N * C + att + 4 * N) + shared)
        if stage == 0:
            parameters += 4 * (Vp * C + GPT2.max_seq_len * C)
            activations += kept * N * C + 4 * N * C + 2 * 4 * N
        if stage == last:
            parameters += 2 * Vp * C + 4 * 2 * C
            activations += kept * (2 * N * C + 2 * N + 3 * N * Vp + N) + N + 2 * 4 * N + 2
        expected.append(4 * (parameters + activations))
    assert plan.bytes_of_ranks().tolist() == expected


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("stages", [(4,), (3, 1), (2, 1, 1, 0)])
def test_bytes_of_replicas(stages: tuple[int, ...], replicas: int, schedule: str) -> None:
    """Beside a copy of what one pipeline has, m and v are shared by the ranks with the same stage."""
    one = plan_of(FOUR, stages=stages, schedule=schedule, workers=1).bytes_of_ranks()
    plan = plan_of(FOUR, stages=stages, schedule=schedule, ranks=len(stages) * replicas, weight_gradient_tiles=1)
    of_ranks = plan.bytes_of_ranks().reshape(replicas, len(stages))
    mean_losses = 2 * 4 * (replicas - 1)  # the first replica has them
    for stage in range(len(stages)):
        moments = 4 * sum(
            elements(plan, group, stage)[name] for group in ("m/", "v/") for name in elements(plan, "m/", stage)
        )
        expected = replicas * one[stage] - (replicas - 1) * moments - mean_losses * (stage == len(stages) - 1)
        assert of_ranks[:, stage].sum() == expected
        assert np.ptp(of_ranks[:, stage]) <= 2 * 4 * max(elements(plan, "m/", stage).values()) + 2 * 4


@pytest.mark.parametrize("reduction", ["ordered", "tree"])
@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("stages", [(4,), (3, 1), (2, 1, 1, 0)])
def test_messages_of_replicas(stages: tuple[int, ...], replicas: int, reduction: str) -> None:
    """By formula: activations and their gradients in a pipeline, sums from replica to replica, and new values."""
    last, ranks, sub_batches = len(stages) - 1, len(stages) * replicas, 4 * replicas
    plan = plan_of(FOUR, stages=stages, ranks=ranks, reduction=reduction, weight_gradient_tiles=1)
    work = work_of(plan.trace, plan.owners, ranks)
    weights, owners = (
        elements(plan, "params/"),
        dict(zip((handle.name for handle in plan.trace.handles), plan.owners, strict=True)),
    )
    model, wte = sum(weights.values()), weights["wte"]
    two_stages, others = int(last > 0), replicas - 1
    boundaries = 2 * last * sub_batches * 8 * FOUR.channels
    values = others * model + two_stages * replicas * wte
    losses = 2 * 4 * others + ranks - 1
    if reduction == "ordered":
        not_last = sum(size for name, size in weights.items() if owners[f"params/{name}"] // len(stages) != others)
        sums = others * (model + wte) + (ranks > 1) * wte + not_last
    else:
        added = sum(added & (added - 1) in range(0, added - added % 4) for added in range(sub_batches))
        not_first = sum(size for name, size in weights.items() if owners[f"params/{name}"] // len(stages) != 0)
        sums = added * model + two_stages * sub_batches * wte + not_first
    assert work.bytes.sum() == 4 * (boundaries + values + losses + sums)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(
    ("schedule", "options"),
    [
        ("gpipe", {"recompute": "block"}),
        ("1f1b", {"recompute": "block", "gradient_buffers": "block"}),
        ("zero-bubble", {"gradient_buffers": "block"}),
    ],
)
def test_values_of_a_plan(schedule: str, options: dict[str, Any], replicas: int) -> None:
    """Each task reads what the same sub-batch has written, and nobody has overwritten."""
    plan = plan_of(GPT2, stages=3, ranks=3 * replicas, schedule=schedule, activation_sets=3, **options)
    assert list(foreign_values(plan.trace)) == []


@pytest.mark.parametrize("scheduler", ["prio", "lws"])
@pytest.mark.parametrize(("stages", "sub_batches"), [(2, 4), (3, 6), (4, 7)])
@pytest.mark.parametrize("blocks", [1, 2])
def test_bubble(stages: int, sub_batches: int, blocks: int, scheduler: str) -> None:
    """Without a clock: each task of a block takes as long as any other, and a worker of each rank runs them."""
    config = replace(TINY, num_layers=blocks * stages)

    def length(schedule: str, buffers: str) -> tuple[int, NDArray[np.int64]]:
        options = {"batch_size": sub_batches, "sub_batches": sub_batches, "schedule": schedule}
        plan = plan_of(config, stages=(blocks,) * stages, gradient_buffers=buffers, **options)
        work, tasks = work_of(plan.trace, plan.owners, stages), plan.trace.tasks
        names = np.array(plan.trace.operations)[tasks["operation"]]
        counted = (tasks["layer"] >= 0) & (names != "adamw_update")
        kinds = np.char.endswith(names, "weight") + 2 * np.char.endswith(names, "forward")
        of_nodes = np.where(work.source < 0, counted[work.task], 0).astype(np.int64)
        priorities = np.where(work.source < 0, tasks["priority"][work.task], 0).astype(np.int64)
        schedule_of = run(work, of_nodes, priorities, workers=1, scheduler=scheduler)
        return schedule_of.makespan, np.bincount(kinds[counted]) // (stages * sub_batches)

    m, before = sub_batches, stages - 1
    for schedule, buffers in product(("gpipe", "1f1b"), ("shared", "block")):
        makespan, (b, w, f) = length(schedule, buffers)
        assert makespan <= (m + before) * (f + b + w)
    assert makespan == m * (f + b + w) + before * (f + b)
    assert length("zero-bubble", "block")[0] == m * (f + b + w) + before * f


def own_schedule(directory: str) -> list[float]:
    """Return the losses of three steps with a list that is given, and without one."""
    checkpoint, losses = Path(directory, "model.bin"), []
    generate_checkpoint(checkpoint, TINY, 1)
    with Runtime("2x1") as runtime:
        schedules: tuple[str | PipelineSchedule, ...] = (
            lambda stages, count: ahead([2] * stages, count),
            "gpipe",
            apart(2),
        )
        for schedule in schedules:
            options: dict[str, Any] = {"sub_batches": 4, "schedule": schedule, "gradient_buffers": "block"}
            with Trainer(runtime, checkpoint, batch_size=4, seq_len=8, **options) as trainer:
                batches = [generate_tokens(1, step, 4, 8, TINY.vocab_size) for step in range(3)]
                losses += [float(trainer.step(*batch)) for batch in batches]
    return losses


def test_a_list_on_one_rank(tmp_path: Path) -> None:
    losses = run_function(own_schedule, tmp_path)
    assert losses[:3] == losses[3:6] == losses[6:]
    assert len(set(losses)) == 3
