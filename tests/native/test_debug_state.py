"""A step against a debug state in llm.c's format, with the tolerances and losses of llm.c's own ``test_gpt2.c``.

PyTorch computed the debug state of llm.c's starter pack, so this is the comparison with an implementation that shares
no code with either. The pack is large: where ``STARPULLM_STARTER_PACK`` names no folder with it, that test is skipped,
and the others compare with states of a small model that are written here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
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
from starpullm.golden.records import shipped_record
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer

from .children import TWO_CORES, run_function

VERSION = 2
TOLERANCES = {"logits": 1e-2, "loss": 1e-2}
"""Those of gradients are 2e-2."""
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


def train(path: str, checkpoint: str, partition: str, sub_batches: int, reduction: str, steps: int, found: str) -> None:
    """Train on a state's batch, in a child; write logits and gradients of the first step and the losses of all."""
    config = checkpoint_config(Path(checkpoint))
    state = read_debug_state(Path(path), config)
    settings: dict[str, Any] = {"learning_rate": 1e-4, "weight_decay": 0.01, "reduction": reduction}
    B, T = state.inputs.shape
    with (
        Runtime(partition) as runtime,
        Trainer(runtime, checkpoint, batch_size=B, seq_len=T, sub_batches=sub_batches, **settings) as trainer,
    ):
        losses = [trainer.step(state.inputs, state.targets)]
        arrays = {name: trainer.tensor("grads", name) for name in parameter_shapes(config)}
        arrays["logits"] = trainer.tensor("activations", "logits")[..., : config.vocab_size]
        losses += [trainer.step(state.inputs, state.targets) for _ in range(steps - 1)]
    np.savez(found, allow_pickle=False, losses=np.array(losses), **arrays)


def outside(state: DebugState, losses: Sequence[float], found: Mapping[str, Array], vocab_size: int) -> list[str]:
    """Return the names of what is outside llm.c's tolerances; a NaN is.

    As in llm.c's test, the padding of the logits and of wte's gradient isn't compared.
    """
    compared: dict[str, tuple[Any, Any]] = {"logits": (state.logits, found["logits"])}
    compared |= {f"loss of step {number}": (loss, found["losses"][number]) for number, loss in enumerate(losses)}
    for name, expected in state.gradients.items():
        rows = slice(vocab_size) if name == "wte" else slice(None)
        compared[name] = (expected[rows], found[name][rows])
    return [
        name
        for name, (expected, is_found) in compared.items()
        if not (np.abs(np.float64(expected) - np.float64(is_found)) <= TOLERANCES.get(name.split()[0], 2e-2)).all()
    ]


# ---- llm.c's own state ----


@pytest.mark.timeout(1800)
@pytest.mark.skipif("STARPULLM_STARTER_PACK" not in os.environ, reason="STARPULLM_STARTER_PACK names no folder")
def test_the_starter_pack(tmp_path: Path) -> None:
    """Ten steps of the 124M model."""
    folder, found = Path(os.environ["STARPULLM_STARTER_PACK"]), tmp_path / "found.npz"
    path, checkpoint = folder / "gpt2_124M_debug_state.bin", folder / "gpt2_124M.bin"
    run_function(train, path, checkpoint, "1x1", 4, "ordered", len(STARTER_PACK_LOSSES), found, timeout=1700)
    config = checkpoint_config(checkpoint)
    with np.load(found) as arrays:
        assert outside(read_debug_state(path, config), STARTER_PACK_LOSSES, arrays, config.vocab_size) == []


# ---- What the comparison sees ----

CONFIG = shipped_record("tiny").model


@pytest.fixture(scope="module")
def own(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Array]]:
    """The state of a step of 4 x 8 tokens, and what was found in ten steps."""
    path, found = tmp_path_factory.mktemp("debug") / "state.bin", tmp_path_factory.mktemp("debug") / "found.npz"
    inputs, targets = generate_tokens(3, 0, 4, 8, CONFIG.vocab_size)
    zeros = {name: np.zeros(shape, np.float32) for name, shape in parameter_shapes(CONFIG).items()}
    write_debug_state(path, DebugState(inputs, targets, np.zeros((4, 8, CONFIG.vocab_size), np.float32), 0, zeros))
    run_function(train, path, tiny_checkpoint, "1x1", 1, "ordered", 10, found)
    with np.load(found) as archive:
        arrays = dict(archive)
    gradients = {name: arrays[name] for name in zeros}
    write_debug_state(path, DebugState(inputs, targets, arrays["logits"], float(arrays["losses"][0]), gradients))
    return path, arrays


@pytest.mark.parametrize("placement", [("2x1", 4, "redux"), ("1x2", 2, "tree")])
def test_its_own_state(
    own: tuple[Path, dict[str, Array]], tiny_checkpoint: Path, tmp_path: Path, placement: tuple[str, int, str]
) -> None:
    """Any reduction is near enough, over ten steps."""
    path, first = own
    run_function(train, path, tiny_checkpoint, *placement, 10, tmp_path / "found.npz", environment=TWO_CORES)
    state = read_debug_state(path, CONFIG)
    assert state.loss == first["losses"][0]
    with np.load(tmp_path / "found.npz") as found:
        assert outside(state, first["losses"].tolist(), found, CONFIG.vocab_size) == []


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
        ("losses", (7,), 0.02, ["loss of step 7"]),
    ],
)
def test_what_is_outside_is_named(
    own: tuple[Path, dict[str, Array]], name: str, index: tuple[int, ...], by: float, expected: list[str]
) -> None:
    path, arrays = own
    changed = {**arrays, name: arrays[name].copy()}
    changed[name][index] += by
    state = read_debug_state(path, CONFIG)
    assert outside(state, arrays["losses"].tolist(), changed, CONFIG.vocab_size) == expected
