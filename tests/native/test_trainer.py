"""Runtime and Trainer as users meet them: what they return, in which shapes, and when.

Refusals are in test_bad_input.py and limits/.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .children import TWO_CORES, names_in, run_python

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


def test_shapes_and_initial_values(odd_checkpoint: Path) -> None:
    """Package and native library have the same names, order, shapes and layers of tensors."""
    run_python(
        HEAD
        + """
from starpullm.golden.records import shipped_record
odd = shipped_record("odd")
config, B, T = odd.model, odd.batch_size, odd.seq_len
layered = {name.partition("[")[0] for group in odd.steps[0].digests.values() for name in group if "[" in name}
with Runtime() as runtime, Trainer(runtime, checkpoint, batch_size=B, seq_len=T, keep_activations=True) as trainer:
    assert trainer.config == config
    initial = dict(generate_parameters(config, odd.seed))
    parameters, activations = parameter_shapes(config), activation_shapes(config, B, T)
    for group in ("params", "grads", "m", "v", "activations", "activation_grads"):
        shapes = activations if group.startswith("activation") else parameters
        assert trainer.tensor_names(group) == list(shapes)
        for name, shape in shapes.items():
            assert trainer.layers_of(group, name) == (config.num_layers if name in layered else None), (group, name)
            values = trainer.tensor(group, name)
            assert values.shape == shape and values.dtype == np.float32, (group, name)
            if shapes is parameters:
                expected = initial[name] if group == "params" else np.zeros(shape, np.float32)
                assert values.tobytes() == expected.tobytes(), (group, name)
    trainer.step(*generate_tokens(odd.seed, 0, B, T, config.vocab_size))
    for group in ("activations", "activation_grads"):
        for name in trainer.tensor_names(group):
            for layer in range(trainer.layers_of(group, name) or 0):
                part = trainer.tensor(group, name, layer)
                assert part.tobytes() == trainer.tensor(group, name)[layer].tobytes()
    assert np.all(trainer.tensor("activation_grads", "losses") == np.float32(1 / (B * T)))
    for name in ("ln1_mean", "probs"):
        assert not trainer.tensor("activation_grads", name).any()
""",
        odd_checkpoint,
    )


def test_groups_of_tensors_are_mappings(checkpoint: Path) -> None:
    run_python(
        HEAD
        + """
with Runtime() as runtime, Trainer(runtime, checkpoint, **SIZES, keep_activations=True) as trainer:
    trainer.step(*batch(0))
    for name in ("params", "grads", "m", "v", "activations", "activation_grads"):
        group = getattr(trainer, name)
        assert list(group) == trainer.tensor_names(name) and len(group) == len(list(group))
        for tensor, values in group.items():
            assert values.tobytes() == trainer.tensor(name, tensor).tobytes(), (name, tensor)
        assert tensor in group and "qkv_w" not in group and group.get("qkv_w") is None
    try:
        trainer.grads["qkv_w"]
    except KeyError as error:
        assert error.args[0].startswith('grads: found tensor "qkv_w", expected one of wte, wpe, '), error
    else:
        raise AssertionError("a tensor that doesn't exist")
""",
        checkpoint,
    )


def test_what_a_failed_step_leaves_is_neither_read_nor_written(checkpoint: Path, tmp_path: Path) -> None:
    """OpenMP gives each task too few threads, so its outputs are computed in part only."""
    environment = {**TWO_CORES, "OMP_THREAD_LIMIT": "1"}
    saved, states = tmp_path / "saved.bin", tmp_path / "states"
    saved.write_bytes(b"old")
    run = run_python(
        HEAD
        + """
import ctypes
from starpullm.binding.library import find_library
saved, states = sys.argv[2:]
sentences = []
with Runtime("1x2") as runtime, Trainer(runtime, checkpoint, **SIZES) as trainer:
    starpu = ctypes.CDLL(str(find_library()))  # which it is linked to
    starpu.starpu_pause()  # no task fails before all are submitted
    loss = trainer.submit(*batch(0))
    trainer.save_state(states)
    starpu.starpu_resume()
    for call in (
        trainer.wait_saved,
        lambda: trainer.save_checkpoint(saved),
        loss.result,
        lambda: trainer.params["wte"],
        lambda: trainer.save_checkpoint(saved),
        lambda: trainer.save_state(states),
    ):
        try:
            call()
        except Exception as error:
            sentences.append(f"{type(error).__name__}: {error}")
        else:
            sentences.append("no error")
print(json.dumps(sentences))
""",
        checkpoint,
        saved,
        states,
        environment=environment,
    )
    (sentence,) = set(json.loads(run.stdout))
    assert sentence.startswith("RuntimeFailureError: ")
    assert "OpenMP gave 1 threads, expected the partition's 2" in sentence
    assert saved.read_bytes() == b"old"
    assert names_in(tmp_path) == ["saved.bin", "states"]
    assert names_in(states) == [".lock"]


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
        assert 0 < task.submit_ns <= task.start_ns < task.end_ns
        assert 1 <= len(task.accesses) <= 8
        assert len({access.handle.id for access in task.accesses}) == len(task.accesses)
    assert sum(trace.seconds_by_operation().values()) > 0
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
from starpullm.instruments import Instruments
blas = dict(matmul="blas", blas_library="scipy-openblas32") if sys.argv[2] else {}
with Runtime("2x1", "dmda", **blas) as runtime:
    with Trainer(runtime, checkpoint, **SIZES, trace=True, instruments=Instruments(max_delay_us=1)) as trainer:
        trainer.step(*batch(0))
if list(Path(sys.argv[3]).glob("**/starpullm_*")):
    raise AssertionError("delayed tasks have models")
with Runtime("2x1", "dmda", **blas) as runtime, Trainer(runtime, checkpoint, **SIZES, trace=True) as trainer:
    trainer.step(*batch(0))
    print(json.dumps([inspect_machine()["simd_level"], sorted({task.operation for task in trainer.trace()})]))
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
assert np.isfinite(loss.result())
""",
        checkpoint,
    )


def test_an_exception_leaves_the_runtime_of_an_open_trainer_as_itself(checkpoint: Path) -> None:
    """Both are closed when they are dropped."""
    run_python(
        HEAD
        + """
for left in (ZeroDivisionError, KeyboardInterrupt):
    try:
        with Runtime() as runtime:
            trainer = Trainer(runtime, checkpoint, **SIZES)
            raise left
    except left:
        assert not runtime.closed
    del runtime, trainer
Runtime().close()
""",
        checkpoint,
    )
