"""Runtime and Trainer as users meet them: what they return, in which shapes, and when.

Collected by pytest; the runs are in child processes. Refusals are in test_bad_input.py and in the suite.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .children import run_python

HEAD = """
import json, sys
from pathlib import Path
import numpy as np
from starpullm import Runtime, Trainer
from starpullm.data.generator import generate_parameters, generate_tokens
from starpullm.files.checkpoint import read_checkpoint
from starpullm.files.model import ModelConfig, parameter_shapes
from starpullm.golden.records import activation_shapes

checkpoint = sys.argv[1]
config = ModelConfig(max_seq_len=16, vocab_size=61, num_layers=2, num_heads=2, channels=16, padded_vocab_size=64)
SIZES = dict(batch_size=2, seq_len=8)

def batch(step):
    return generate_tokens(1, step, 2, 8, 61)
"""


@pytest.fixture
def checkpoint(tiny_checkpoint: Path) -> Path:
    return tiny_checkpoint


def test_shapes_and_initial_values(checkpoint: Path) -> None:
    run_python(
        HEAD
        + """
with Runtime() as runtime, Trainer(runtime, checkpoint, **SIZES, keep_activations=True) as trainer:
    assert trainer.config == config
    initial = dict(generate_parameters(config, 1))
    for group in ("params", "grads", "m", "v"):
        assert trainer.tensor_names(group) == list(parameter_shapes(config))
        for name, shape in parameter_shapes(config).items():
            values = trainer.tensor(group, name)
            assert values.shape == shape and values.dtype == np.float32, (group, name)
            expected = initial[name] if group == "params" else np.zeros(shape, np.float32)
            assert values.tobytes() == expected.tobytes(), (group, name)
    trainer.step(*batch(0))
    for group in ("activations", "activation_grads"):
        shapes = activation_shapes(config, 2, 8)
        assert trainer.tensor_names(group) == list(shapes)
        for name, shape in shapes.items():
            assert trainer.tensor(group, name).shape == shape, (group, name)
            layers = trainer.layers_of(group, name)
            if layers is not None:
                assert layers == 2
                for layer in range(2):
                    part = trainer.tensor(group, name, layer)
                    assert part.tobytes() == trainer.tensor(group, name)[layer].tobytes()
    assert np.all(trainer.tensor("activation_grads", "losses") == np.float32(1 / 16))
    for name in ("ln1_mean", "probs"):
        assert not trainer.tensor("activation_grads", name).any()
""",
        checkpoint,
    )


def test_losses_arrive_later_and_outlive_the_trainer(checkpoint: Path) -> None:
    run_python(
        HEAD
        + """
with Runtime("2x1") as runtime:
    with Trainer(runtime, checkpoint, **SIZES, sub_batches=2) as trainer:
        expected = [trainer.step(*batch(step)) for step in range(5)]
    with Trainer(runtime, checkpoint, **SIZES, sub_batches=2, steps_in_flight=3) as trainer:
        losses = [trainer.submit(*batch(step)) for step in range(5)]
        trainer.wait()
        assert all(loss.ready for loss in losses)
        dropped = trainer.submit(*batch(5))
        del dropped
    assert all(loss.value.tobytes() == value.tobytes() for loss, value in zip(losses, expected))
    assert float(losses[0]) == float(expected[0]) and losses[0].value.dtype == np.float32
""",
        checkpoint,
    )


def test_evaluation_changes_nothing(checkpoint: Path) -> None:
    run_python(
        HEAD
        + """
with Runtime("2x1") as runtime, Trainer(runtime, checkpoint, **SIZES) as trainer:
    before = trainer.evaluate(*batch(0))
    assert trainer.evaluate(*batch(0)).tobytes() == before.tobytes()
    assert trainer.step(*batch(0)).tobytes() == before.tobytes()
    assert trainer.evaluate(*batch(0)) < before
    probabilities = trainer.probabilities(batch(0)[0], sequence=1, position=3)
    assert probabilities.shape == (61,) and abs(probabilities.sum() - 1) < 1e-5
    loss = trainer.step(*batch(1))

with Runtime() as runtime, Trainer(runtime, checkpoint, **SIZES) as trainer:
    trainer.step(*batch(0))
    assert trainer.step(*batch(1)).tobytes() == loss.tobytes()
""",
        checkpoint,
    )


def test_trace_names_what_was_done(checkpoint: Path) -> None:
    run = run_python(
        HEAD
        + """
with Runtime("2x1") as runtime, Trainer(runtime, checkpoint, **SIZES, sub_batches=2, trace=True) as trainer:
    trainer.step(*batch(0))
    trace = trainer.trace()
    assert len(trainer.trace()) == len(trace)
    trainer.clear_trace()
    assert len(trainer.trace()) == 0
    trainer.evaluate(*batch(0))
    assert {task.step for task in trainer.trace()} == {1}
    operations = {}
    for task in trace:
        operations[task.operation] = operations.get(task.operation, 0) + 1
        assert 1 <= len(task.accesses) <= 8
        assert len({access.handle.id for access in task.accesses}) == len(task.accesses)
    assert trace.kernel_seconds() > 0
    assert set(trace.seconds_by_operation()) <= set(operations)
print(json.dumps(operations))
""",
        checkpoint,
    )
    L, S = 2, 2
    assert json.loads(run.stdout) == {
        "encoder_forward": S,
        "layernorm_forward": S * (2 * L + 1),
        "matmul_forward": S * (4 * L + 1),
        "attention_forward": S * L,
        "residual_forward": S * 2 * L,
        "gelu_forward": S * L,
        "softmax_forward": S,
        "crossentropy_forward": S,
        "mean_loss": S,
        "report_loss": 1,
        "crossentropy_softmax_backward": S,
        "matmul_backward_input": S * (4 * L + 1),
        "matmul_backward_weight": S * (4 * L + 1),
        "layernorm_backward_input": S * (2 * L + 1),
        "layernorm_backward_weight": S * (2 * L + 1),
        "residual_backward": S * 2 * L,
        "gelu_backward": S * L,
        "attention_backward": S * L,
        "encoder_backward": S,
        "adamw_update": 4 + 12 * L,
    }


@pytest.mark.parametrize(("level", "blas"), [("ref", ""), ("", ""), ("ref", "_blas")])
def test_performance_models(checkpoint: Path, tmp_path: Path, level: str, blas: str) -> None:
    """Each operation has one by level and BLAS, which StarPU writes when it stops; no delay is measured into it."""
    code = """
from starpullm.machine import inspect_machine
from starpullm.trainer import Instruments
blas = dict(matmul="blas", blas_library="scipy-openblas32") if sys.argv[2] else {}
with Runtime("2x1", "dmda", **blas) as runtime:
    with Trainer(runtime, checkpoint, **SIZES, trace=True, instruments=Instruments(max_delay_us=1)) as trainer:
        trainer.step(*batch(0))
if list(Path(sys.argv[3]).glob("**/starpullm_*")):
    raise AssertionError("delayed tasks have models")
with Runtime("2x1", "dmda", **blas) as runtime, Trainer(runtime, checkpoint, **SIZES, trace=True) as trainer:
    trainer.step(*batch(0))
    print(json.dumps([inspect_machine().simd_level, sorted({task.operation for task in trainer.trace()})]))
"""
    environment = {"STARPU_HOME": str(tmp_path), "STARPULLM_SIMD": level}
    run = run_python(HEAD + code, checkpoint, blas, tmp_path, environment=environment)
    used, operations = json.loads(run.stdout)
    assert (used == "ref") == bool(level)
    models = {path.name.split(".")[0] for path in (tmp_path / ".starpu" / "sampling" / "codelets").glob("*/*")}
    assert sorted(models) == [f"starpullm_{operation}_{used}{blas}" for operation in operations]


def test_a_runtime_that_is_dropped_is_closed(checkpoint: Path) -> None:
    """As in a notebook whose cells are run again; its trainer, which is dropped with it, is closed first."""
    run_python(
        HEAD
        + """
losses = []
for partition in ("1x1", "2x1", "1x1"):
    runtime = Runtime(partition)
    trainer = Trainer(runtime, checkpoint, **SIZES)
    losses.append(trainer.step(*batch(0)))
    del runtime, trainer
assert len(set(losses)) == 1
""",
        checkpoint,
    )


def test_a_trainer_that_is_dropped_is_closed(checkpoint: Path) -> None:
    run_python(
        HEAD
        + """
with Runtime("2x1") as runtime:
    for step in range(3):
        loss = Trainer(runtime, checkpoint, **SIZES).submit(*batch(step))
assert np.isfinite(loss.value)
""",
        checkpoint,
    )
