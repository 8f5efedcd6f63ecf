"""Predictions: the plan is the graph that a trainer submits, and the model's steps take as long as StarPU's.

The commands of performance.md are run, `--validate` with the smallest model.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from starpullm.binding import prototypes, structs
from starpullm.checks.transfers import Sent, required_messages
from starpullm.data.generator import generate_checkpoint, generate_tokens
from starpullm.data.models import MODELS
from starpullm.errors import InvalidArgumentError
from starpullm.golden.records import shipped_record
from starpullm.graph.work import work_of
from starpullm.predict.costs import matmul_operations
from starpullm.predict.plan import Plan, make_plan
from starpullm.predict.recorded_steps import same_tasks
from starpullm.runtime import Runtime
from starpullm.speed.limit import matmul_flops
from starpullm.trainer import Trainer

from .children import TWO_CORES, run_cli, run_function
from .foreign_values import foreign_values

TINY = MODELS["tiny"]
LARGE = shipped_record("gpt2-124m").model
GPT2 = ("predict", "--model", "gpt2-124m", "--gflops", 10)


def compare_plans(directory: str) -> list[bool]:
    """Return whether plans have the tasks of trainers, for reductions, numbers of buffers and what shares them."""
    checkpoint, same = Path(directory, "model.bin"), []
    generate_checkpoint(checkpoint, TINY, 1)
    with Runtime("2x1") as runtime:
        for reduction, others in (
            ("ordered", {}),
            ("ordered", {"keep_activations": True, "weight_gradient_tiles": 2}),
            ("tree", {"recompute": "attention"}),
            ("ordered", {"recompute": "block", "activation_sets": 2}),
            ("ordered", {"recompute": "block", "sub_batches": 1, "weight_gradients": "reused"}),
        ):
            options: dict[str, Any] = {"batch_size": 6, "seq_len": 8, "sub_batches": 3, **others}
            options["reduction"] = reduction
            with Trainer(runtime, checkpoint, **options, trace=True) as trainer:
                for step in range(2):
                    trainer.step(*generate_tokens(1, step, 6, 8, TINY.vocab_size))
                trace = trainer.trace()
            plan = make_plan(TINY, ranks=1, workers=2, steps=2, **options)
            same.append(same_tasks(plan.trace, trace))
    return same


def test_a_plan_is_what_a_trainer_submits(tmp_path: Path) -> None:
    """Over ranks, `predict --validate` compares them: tests/ranks."""
    assert run_function(compare_plans, tmp_path, environment=TWO_CORES) == [True] * 5


@pytest.mark.parametrize(("reduction", "ranks"), [("ordered", 3), ("tree", 2), ("tree", 4)])
def test_operations_and_messages_of_a_plan(reduction: str, ranks: int) -> None:
    """Matmuls are those that `bench` counts; messages those that StarPU-MPI's own count has confirmed."""
    sizes: dict[str, Any] = {"batch_size": 4, "seq_len": 8}
    plan = make_plan(TINY, **sizes, sub_batches=2, ranks=ranks, reduction=reduction, steps=2)
    operations = matmul_operations(plan.trace, TINY, 2, 8)
    assert operations.sum() == 2 * matmul_flops(TINY, 4 * ranks, 8)
    work = work_of(plan.trace, plan.owners, ranks)
    messages = work.source >= 0
    sent = []
    for rank in range(ranks):
        mine = messages & (work.source == rank)
        sizes_to = np.bincount(work.rank[mine], work.bytes[mine]).tolist()
        sent.append(Sent(int(mine.sum()), {to: int(size) for to, size in enumerate(sizes_to) if size}))
    assert sent == required_messages(plan.trace, dict(enumerate(plan.owners.tolist())), ranks)


def priority(name: str, layer: int, sub_batch: int, order: Sequence[str]) -> int:
    """Return the priority of a task in a step with two sub-batches; `order` is that of the passes of stages."""
    if name == "adamw_update":
        return 1
    if sub_batch < 0:
        return 0
    if not order:
        return -1 if name == "matmul_backward_weight" and layer == 0 else 0
    of_weights = name.endswith("backward_weight") or name == "encoder_backward"
    kind = "weights" if of_weights else "backward" if "backward" in name else "forward"
    return -1 - 2 * order.index(kind) - sub_batch


@pytest.mark.parametrize(
    ("options", "order"),
    [
        ({"ranks": 1}, ()),
        ({"ranks": 2, "stages": 2}, ("backward", "weights", "forward")),
        (
            {"ranks": 2, "stages": 2, "schedule": "zero-bubble", "gradient_buffers": "block"},
            ("backward", "forward", "weights"),
        ),
    ],
)
def test_priorities_of_a_plan(options: dict[str, Any], order: Sequence[str]) -> None:
    """They are those of design.md; no result shows another one, only the time."""
    trace = make_plan(TINY, batch_size=4, seq_len=8, sub_batches=2, reduction="ordered", **options).trace
    columns = [trace.tasks[name].tolist() for name in ("operation", "layer", "sub_batch", "priority")]
    tasks = {(trace.operations[operation], *others) for operation, *others in zip(*columns, strict=True)}
    assert tasks == {
        (name, layer, sub_batch, priority(name, layer, sub_batch, order)) for name, layer, sub_batch, _ in tasks
    }
    assert len({task[3] for task in tasks}) == (8 if order else 3)


@pytest.mark.parametrize(("sub_batches", "sets", "ranks"), [(8, 1, 1), (8, 3, 1), (4, 2, 2)])
def test_bytes_of_activation_sets(sub_batches: int, sets: int, ranks: int) -> None:
    """Activations take sets / sub-batches of what they take with all; encoded's gradient is none of them."""
    options: dict[str, Any] = {"batch_size": sub_batches, "seq_len": 256, "sub_batches": sub_batches, "ranks": ranks}

    def bytes_of(sets: int) -> tuple[int, int]:
        plan = make_plan(LARGE, **options, reduction="ordered", activation_sets=sets)
        handles = plan.trace.handles
        activations = {h.name: h.bytes for h in handles if h.name.startswith("activation")}
        kept = [size for name, size in activations.items() if "grads/encoded" in name or "grads/losses" in name]
        return sum(kept), sum(activations.values()) - sum(kept)

    kept, of_all = bytes_of(0)
    assert bytes_of(sets) == (kept, of_all * sets // sub_batches)
    assert kept < 0.02 * of_all


def plan_of_large(**options: Any) -> Plan:
    sizes = {"batch_size": 4, "seq_len": 256, "sub_batches": 2, "ranks": 1}
    return make_plan(LARGE, reduction="tree", **{**sizes, **options})


def foreign_values_of_another_layer(plan: Plan, operation: str) -> int:
    """Return what is found if the last task of an operation with a layer is said to be of the next one."""
    tasks = plan.trace.tasks.copy()
    of_it = np.array(plan.trace.operations)[tasks["operation"]] == operation
    tasks["layer"][np.flatnonzero(of_it & (tasks["layer"] >= 0))[-1]] += 1
    return len(list(foreign_values(replace(plan.trace, tasks=tasks))))


@pytest.mark.parametrize("sets", [0, 1])
def test_recomputed_tasks_and_their_bytes(sets: int) -> None:
    """Of all blocks but the last; they are the tasks whose results the backward pass reads, and share all but these."""
    columns = 2 * 256 * LARGE.channels
    att, rows = 2 * LARGE.num_heads * 256**2, 2 * 256
    attention = {"attention_forward": 1}
    block = {**attention, "layernorm_forward": 2, "matmul_forward": 3, "residual_forward": 1, "gelu_forward": 1}
    shared = {"attention": columns + att, "block": 15 * columns + att + 4 * rows}
    none = plan_of_large(activation_sets=sets)
    for recompute, tasks in (("attention", attention), ("block", block)):
        plan = plan_of_large(activation_sets=sets, recompute=recompute)
        again = Counter(task.operation for task in plan.trace)
        again.subtract(task.operation for task in none.trace)
        layers = LARGE.num_layers - 1
        assert +again == {name: 2 * layers * number for name, number in tasks.items()}
        assert not -again
        saved = none.bytes_of_ranks() - plan.bytes_of_ranks()
        assert saved.tolist() == [4 * (sets or 2) * layers * shared[recompute]]
        assert list(foreign_values(plan.trace)) == []
        assert foreign_values_of_another_layer(plan, "attention_forward") > 0


def test_bytes_of_reused_gradients() -> None:
    kept, reused = (plan_of_large(sub_batches=1, weight_gradients=kind) for kind in ("kept", "reused"))
    block = 12 * LARGE.channels**2 + 13 * LARGE.channels
    saved = kept.bytes_of_ranks() - reused.bytes_of_ranks()
    assert saved.tolist() == [4 * (LARGE.num_layers - 2) * block]
    assert list(foreign_values(reused.trace)) == []
    assert foreign_values_of_another_layer(reused, "adamw_update") > 0


def test_what_holds_a_step() -> None:
    """36 workers wait for the sum of wte, by far the longest chain, if it isn't cut; with `tree` they are busy."""
    found = {}
    for name, *options in (("whole", "--weight-gradient-tiles", 1), ("tree", "--reduction", "tree")):
        done = run_cli(*GPT2, "--partition", "36x1", *options, "--json").check()
        found[name] = json.loads(done.stdout)
    assert next(iter(found["whole"]["waits"])) == "grads/wte"
    assert found["whole"]["efficiency"] < 0.3
    assert found["tree"]["efficiency"] > 0.97
    for prediction in found.values():
        bound = max(prediction["work_seconds"], prediction["path_seconds"])
        assert bound <= prediction["step_seconds"] < 1.3 * bound
        assert sum(prediction["waits"].values()) == pytest.approx(1)


@pytest.mark.parametrize(("partition", "ranks", "least"), [("12x1", 1, 0.97), ("4x1", 16, 0.81)])
def test_chains_of_sums_hold_no_step(partition: str, ranks: int, least: float) -> None:
    """Enough tiles are chosen for the numbers of workers that the paper trained on."""
    done = run_cli(*GPT2, "--partition", partition, "--ranks", ranks, "--json").check()
    assert json.loads(done.stdout)["efficiency"] > least


def test_a_predicted_trace_is_a_trace(tmp_path: Path) -> None:
    """`starpullm trace` reads it, and so does `predict` for its durations."""
    run_cli(*GPT2, "--partition", "2x1", "--ranks", 2, "--trace", tmp_path / "run.trace").check()
    described = run_cli("trace", tmp_path / "run.trace").check().stdout
    assert "rank 1 on predicted, partition 2x1" in described
    again = ("--durations", tmp_path / "run.trace", "--partition", "2x1", "--ranks", 2)
    assert "efficiency" in run_cli("predict", "--model", "gpt2-124m", *again).check().stdout


def test_validation() -> None:
    """The smallest model, on what this machine has."""
    done = run_cli(
        *("predict", "--model", "tiny", "--partition", "2x1", "--validate", "--json"),
        environment=TWO_CORES,
    ).check()
    validated = json.loads(done.stdout)["validated"]
    placements = [(row["configuration"]["partition"], row["configuration"]["ranks"]) for row in validated]
    assert placements == [("1x1", 1), ("2x1", 1), ("1x2", 1), ("1x1", 2)]
    for comparison in validated:
        assert comparison["error"] == comparison["predicted_seconds"] / comparison["measured_seconds"] - 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--model", "nobody"), "Error: Invalid value for '--model': 'nobody' is not one of"),
        ((), "Error: expected either --model or --checkpoint"),
        (("--model", "tiny", "--partition", "0x1"), 'Error: partition: found "0x1", expected WxT, for example 2x1'),
        (("--model", "tiny", "--ranks", 0), "Error: Invalid value for '--ranks': 0 is not in the range x>=1"),
        (("--model", "tiny", "--seq-len", 17), "Error: seq_len: found 17, expected 1 to 16"),
        (("--model", "tiny", "--reduction", "redux"), 'Error: reduction: found "redux", expected one of ordered, tree'),
        (("--model", "tiny", "--network", "fast"), 'Error: network: found "fast", expected a latency and a bandwidth'),
        (("--model", "tiny", "--scheduler", "dmda"), 'Error: scheduler: found "dmda", expected one of lws, prio'),
        (("--model", "tiny", "--validate"), "Error: expected at most one of --gflops, --durations and --validate"),
        (
            ("--model", "gpt2-xl", "--seq-len", 1024, "--batch-size", 20000),
            "Error: model: found 223167794022408 bytes on a rank, expected at most 140737488355328",
        ),
    ],
)
def test_bad_input(options: tuple[object, ...], sentence: str) -> None:
    done = run_cli("predict", "--gflops", 1, *options, timeout=20).check(2)
    assert done.stderr.splitlines()[-1].startswith(sentence), done
    assert not done.stdout


def test_an_impossible_model() -> None:
    """That a program gives the library itself: the package has checked those that it gives."""
    sizes = {**asdict(TINY), "channels": 9}
    with pytest.raises(InvalidArgumentError, match=r"^plan: channels is 9, expected a multiple of num_heads \(2\)$"):
        prototypes.trace("plan_create", structs.new("model_config", **sizes), structs.new("session_options"), 1, 1, 1)


def test_durations_of_another_run(tmp_path: Path) -> None:
    """What isn't a trace, and one whose tasks have other sizes."""
    trace = tmp_path / "run.trace"
    run_cli("predict", "--gflops", 1, "--model", "tiny", "--seq-len", 8, "--trace", trace).check()
    other = run_cli("predict", "--model", "tiny", "--seq-len", 4, "--durations", trace).check(2)
    assert other.stderr.startswith(f"Error: durations in {trace}: found no encoder_forward with accesses of")
    trace.write_bytes(b"none")
    damaged = run_cli("predict", "--model", "tiny", "--durations", trace).check(2)
    assert damaged.stderr.startswith(f"Error: {trace}: expected a starpullm trace, found text")
