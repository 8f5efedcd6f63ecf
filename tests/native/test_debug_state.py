"""A step against a debug state in llm.c's format, with the tolerances and losses of llm.c's own ``test_gpt2.c``.

PyTorch computed the debug state of llm.c's starter pack, so this is the comparison with an implementation that shares
no code with either. The pack is large: where ``STARPULLM_STARTER_PACK`` names no folder with it, that test is skipped,
and the others compare with states of a small model that are written here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from starpullm.data.generator import generate_tokens
from starpullm.files.checkpoint import checkpoint_config
from starpullm.files.header import DEBUG_STATE_MAGIC, HEADER_BYTES, header_bytes
from starpullm.files.model import ModelConfig, num_parameters, parameter_shapes, split_tensors
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer

from .children import TWO_CORES, run_function

VERSION = 2
LOGITS_TOLERANCE = LOSS_TOLERANCE = 1e-2
GRADIENT_TOLERANCE = 2e-2
STARTER_PACK_LOSSES = (
    *(5.270007133483887, 4.059706687927246, 3.3751230239868164, 2.8007826805114746, 2.315382242202759),
    *(1.8490285873413086, 1.3946564197540283, 0.9991465210914612, 0.6240804195404053, 0.37651097774505615),
)
"""Mean losses of ten steps on the batch of the starter pack."""

Array = NDArray[np.float32]


@dataclass(frozen=True)
class DebugState:
    """One forward and backward pass: inputs and targets (B,T), logits (B,T,V), gradients in the checkpoint's order."""

    inputs: NDArray[np.int32]
    targets: NDArray[np.int32]
    logits: Array
    loss: float
    gradients: dict[str, Array]


def write_debug_state(path: Path, state: DebugState) -> None:
    header = header_bytes(DEBUG_STATE_MAGIC, VERSION, *state.inputs.shape)
    parts = [state.inputs, state.targets, state.logits, np.float32(state.loss), *state.gradients.values()]
    path.write_bytes(header + b"".join(np.asarray(part).tobytes() for part in parts))


def read_debug_state(path: Path, config: ModelConfig) -> DebugState:
    content = path.read_bytes()
    magic, version, B, T = np.frombuffer(content, "<i4", 4).tolist()
    assert (magic, version) == (DEBUG_STATE_MAGIC, VERSION)
    sizes = [B * T, B * T, B * T * config.vocab_size, 1]
    assert len(content) == HEADER_BYTES + 4 * (sum(sizes) + num_parameters(config))
    body = np.frombuffer(content, "<i4", offset=HEADER_BYTES)
    inputs, targets, logits, loss, gradients = np.split(body, np.cumsum(sizes))
    return DebugState(
        inputs.reshape(B, T),
        targets.reshape(B, T),
        logits.view(np.float32).reshape(B, T, config.vocab_size),
        float(loss.view(np.float32)[0]),
        split_tensors(gradients.view(np.float32), config),
    )


def outside(expected: NDArray[np.floating], found: NDArray[np.floating], tolerance: float) -> bool:
    """Whether an element is farther off than the tolerance; a NaN is."""
    return not bool((np.abs(np.asarray(found, np.float64) - np.asarray(expected, np.float64)) <= tolerance).all())


def tensors_outside(
    path: str,
    checkpoint: str,
    partition: str = "1x1",
    sub_batches: int = 1,
    reduction: str = "ordered",
    losses: list[float] | None = None,
) -> list[str]:
    """Train on the state's batch, in a child, and return the names of what is outside llm.c's tolerances.

    As in llm.c's test, the padding of the logits and of wte's gradient isn't compared. ``losses`` are those of all
    steps; without them there is one step.
    """
    config = checkpoint_config(Path(checkpoint))
    state = read_debug_state(Path(path), config)
    B, T = state.inputs.shape
    with (
        Runtime(partition) as runtime,
        Trainer(
            runtime,
            checkpoint,
            batch_size=B,
            seq_len=T,
            sub_batches=sub_batches,
            reduction=reduction,
            learning_rate=1e-4,
            weight_decay=0.01,
        ) as trainer,
    ):
        found = []
        for number, loss in enumerate(losses or [state.loss]):
            if outside(np.asarray(loss), np.asarray(trainer.step(state.inputs, state.targets)), LOSS_TOLERANCE):
                found.append(f"loss of step {number}")
            if number == 0:
                found += tensors_of_first_step(trainer, state, config.vocab_size)
    return found


def tensors_of_first_step(trainer: Trainer, state: DebugState, vocab_size: int) -> Iterator[str]:
    if outside(state.logits, trainer.tensor("activations", "logits")[..., :vocab_size], LOGITS_TOLERANCE):
        yield "logits"
    for name, expected in state.gradients.items():
        rows = slice(vocab_size) if name == "wte" else slice(None)
        if outside(expected[rows], trainer.tensor("grads", name)[rows], GRADIENT_TOLERANCE):
            yield name


# ---- llm.c's own state ----


@pytest.mark.timeout(1800)
@pytest.mark.skipif("STARPULLM_STARTER_PACK" not in os.environ, reason="STARPULLM_STARTER_PACK names no folder")
def test_the_starter_pack() -> None:
    """Ten steps of the 124M model."""
    folder = Path(os.environ["STARPULLM_STARTER_PACK"])
    files = (folder / "gpt2_124M_debug_state.bin", folder / "gpt2_124M.bin")
    options = ("1x1", 4, "ordered", list(STARTER_PACK_LOSSES))
    assert run_function(tensors_outside, *files, *options, timeout=1700) == []


# ---- What the comparison sees ----


def write_state(checkpoint: str, path: str) -> list[float]:
    """Write the state of a step of 4 x 8 tokens, in a child; return the losses of ten steps."""
    config = checkpoint_config(Path(checkpoint))
    inputs, targets = generate_tokens(3, 0, 4, 8, config.vocab_size)
    settings: dict[str, Any] = {"batch_size": 4, "seq_len": 8, "learning_rate": 1e-4, "weight_decay": 0.01}
    with Runtime() as runtime, Trainer(runtime, checkpoint, **settings) as trainer:
        losses = [float(trainer.step(inputs, targets))]
        logits = np.ascontiguousarray(trainer.tensor("activations", "logits")[..., : config.vocab_size])
        gradients = {name: trainer.tensor("grads", name) for name in parameter_shapes(config)}
        write_debug_state(Path(path), DebugState(inputs, targets, logits, losses[0], gradients))
        return losses + [float(trainer.step(inputs, targets)) for _ in range(9)]


@pytest.fixture(scope="module")
def state(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    path = tmp_path_factory.mktemp("debug") / "state.bin"
    return path, run_function(write_state, tiny_checkpoint, path)


@pytest.mark.parametrize(("placement"), [("1x1", 1, "ordered"), ("2x1", 4, "redux"), ("1x2", 2, "tree")])
def test_its_own_state(state: tuple[Path, list[float]], tiny_checkpoint: Path, placement: tuple[str, int, str]) -> None:
    """Any reduction is near enough, over ten steps."""
    path, losses = state
    assert run_function(tensors_outside, path, tiny_checkpoint, *placement, losses, environment=TWO_CORES) == []


@pytest.mark.parametrize(
    ("name", "index", "by", "expected"),
    [
        ("fcw", (1, 63, 5), 0.019, []),
        ("fcw", (1, 63, 5), 0.021, ["fcw"]),
        ("wte", (60, 2), -0.021, ["wte"]),
        ("wte", (61, 0), 1.0, []),  # padding
        ("lnfb", (0,), np.nan, ["lnfb"]),
        ("logits", (3, 7, 60), -0.009, []),
        ("logits", (3, 7, 60), 0.011, ["logits"]),
        ("loss", (7,), 0.02, ["loss of step 7"]),
    ],
)
def test_what_is_outside_is_named(
    state: tuple[Path, list[float]],
    tiny_checkpoint: Path,
    tmp_path: Path,
    name: str,
    index: tuple[int, ...],
    by: float,
    expected: list[str],
) -> None:
    path, losses = state
    perturbed = read_debug_state(path, checkpoint_config(tiny_checkpoint))
    arrays = {"logits": perturbed.logits.copy(), "loss": np.array(losses), **perturbed.gradients}
    arrays[name] = np.array(arrays[name])
    arrays[name][index] += by
    gradients = {key: arrays[key] for key in perturbed.gradients}
    changed = DebugState(perturbed.inputs, perturbed.targets, arrays["logits"], perturbed.loss, gradients)
    write_debug_state(tmp_path / "state.bin", changed)
    options = ("1x1", 1, "ordered", arrays["loss"].tolist())
    assert run_function(tensors_outside, tmp_path / "state.bin", tiny_checkpoint, *options) == expected
