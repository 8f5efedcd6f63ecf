"""A step against a debug state in llm.c's format: what is within llm.c's tolerances, and what isn't.

Collected by pytest. The states are written here, from a run's own tensors and disturbed ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from starpullm.checks.debug_state import STARTER_PACK_LOSSES, check_debug_state, expected_losses
from starpullm.data.generator import generate_tokens
from starpullm.files.checkpoint import checkpoint_config
from starpullm.files.debug_state import DebugState, read_debug_state
from starpullm.files.header import header_bytes
from starpullm.files.model import parameter_shapes
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer

from .children import TWO_CORES, Finished, run_cli, run_function

Change = Callable[[DebugState], object]


def write_debug_state(path: str | Path, state: DebugState) -> None:
    parts = [state.inputs, state.targets, state.logits, np.float32(state.loss), *state.gradients.values()]
    header = header_bytes(20240327, 2, *state.inputs.shape)
    Path(path).write_bytes(header + b"".join(np.asarray(part).tobytes() for part in parts))


def write_state(checkpoint: str, path: str) -> None:
    """Write the state of a step of 4 x 8 tokens, in a child."""
    config = checkpoint_config(checkpoint)
    inputs, targets = generate_tokens(3, 0, 4, 8, config.vocab_size)
    with Runtime() as runtime, Trainer(runtime, checkpoint, batch_size=4, seq_len=8) as trainer:
        loss = trainer.step(inputs, targets)
        logits = np.ascontiguousarray(trainer.tensor("activations", "logits")[..., : config.vocab_size])
        grads = {name: trainer.tensor("grads", name) for name in parameter_shapes(config)}
    write_debug_state(path, DebugState(config, inputs, targets, logits, float(loss), grads))


@pytest.fixture(scope="module")
def state(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("debug") / "state.bin"
    run_function(write_state, tiny_checkpoint, path)
    return path


def compare(state: Path, checkpoint: Path, *options: object) -> Finished:
    return run_cli("debug-state", state, "--checkpoint", checkpoint, *options, environment=TWO_CORES)


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--partition", "2x1", "--sub-batches", "4", "--reduction", "redux"),
        ("--partition", "1x2", "--sub-batches", "2", "--reduction", "tree"),
    ],
)
def test_its_own_state(state: Path, tiny_checkpoint: Path, options: tuple[str, ...]) -> None:
    """Any reduction is near enough, and the line doesn't claim more."""
    run = compare(state, tiny_checkpoint, *options).check()
    assert run.stdout == (
        "debug state: passed: 18 of 18 tensors are within llm.c's tolerances; bits weren't compared\n"
    )


def disturbed(path: Path, checkpoint: Path, to: Path, change: Change) -> Path:
    """A copy of a state with something changed."""
    state = read_debug_state(path, checkpoint_config(checkpoint))
    changed = change(state)
    write_debug_state(to, changed if isinstance(changed, DebugState) else state)
    return to


def add(name: str, position: tuple[int, ...], value: float) -> Change:
    def change(state: DebugState) -> None:
        array = state.logits if name == "logits" else state.gradients[name]
        array[position] += np.float32(value)

    return change


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (add("fcw", (1, 63, 5), 0.021), "grads/fcw: 1 of 2048 outside 0.02; the farthest, [1, 63, 5]: expected "),
        (add("wte", (60, 2), -0.021), "grads/wte: 1 of 976 outside 0.02; the farthest, [60, 2]: expected "),
        (add("logits", (3, 7, 60), 0.011), "logits: 1 of 1952 outside 0.01; the farthest, [3, 7, 60]: expected "),
        (add("lnfb", (0,), np.nan), "grads/lnfb: 1 of 16 outside 0.02; the farthest, [0]: expected nan, found "),
        (lambda state: replace(state, loss=state.loss - 0.011), "loss: 1 of 1 outside 0.01; the farthest, expected "),
    ],
)
def test_what_is_outside_is_named(
    state: Path, tiny_checkpoint: Path, tmp_path: Path, change: Change, line: str
) -> None:
    path = disturbed(state, tiny_checkpoint, tmp_path / "disturbed.bin", change)
    run = compare(path, tiny_checkpoint).check(1)
    first, second = run.stdout.splitlines()
    assert first == "debug state: failed: 17 of 18 tensors are within llm.c's tolerances; bits weren't compared"
    assert second.startswith(f"  {line}")
    result = json.loads(compare(path, tiny_checkpoint, "--json").check(1).stdout)
    assert (result["outcome"], result["measured"], len(result["tensors"])) == ("failed", 1, 18)


@pytest.mark.parametrize(
    "change",
    [
        add("fcw", (1, 63, 5), 0.019),
        add("logits", (3, 7, 60), -0.009),
        add("wte", (61, 0), 1.0),  # padding, which llm.c's test doesn't compare
    ],
)
def test_what_is_within(state: Path, tiny_checkpoint: Path, tmp_path: Path, change: Change) -> None:
    compare(disturbed(state, tiny_checkpoint, tmp_path / "near.bin", change), tiny_checkpoint).check()


def ten_steps(checkpoint: str, path: str) -> list[list[str]]:
    """The tensors outside for the losses of a run with llm.c's settings, and for disturbed ones, in a child."""
    state = read_debug_state(path, checkpoint_config(checkpoint))
    with Runtime("2x1") as runtime:
        with Trainer(runtime, checkpoint, batch_size=4, seq_len=8, learning_rate=1e-4, weight_decay=0.01) as trainer:
            losses = [float(trainer.step(state.inputs, state.targets)) for _ in range(10)]
        assert losses == sorted(losses, reverse=True)
        results = []
        for off in (0.0, 0.02):
            expected = [*losses[:7], losses[7] + off, *losses[8:]]
            result = check_debug_state(state, runtime, Path(checkpoint), sub_batches=2, losses=expected)
            results.append([tensor.tensor for tensor in result.tensors if tensor.outside])
            assert len(result.tensors) == 18 + 9
    return results


def test_losses_of_further_steps(state: Path, tiny_checkpoint: Path) -> None:
    assert run_function(ten_steps, tiny_checkpoint, state, environment=TWO_CORES) == [[], ["loss of step 7"]]


def test_the_starter_pack_s_losses_belong_to_its_state(state: Path, tiny_checkpoint: Path) -> None:
    other = read_debug_state(state, checkpoint_config(tiny_checkpoint))
    assert list(expected_losses(other)) == [np.float32(other.loss)]
    assert len(STARTER_PACK_LOSSES) == 10
    # As it is read from the file: binary32.
    assert expected_losses(replace(other, loss=float(np.float32(5.270007133483887)))) == STARTER_PACK_LOSSES


def test_refusals(state: Path, tiny_checkpoint: Path, odd_checkpoint: Path) -> None:
    """Another kind of file, another model's state, a batch that can't be cut so: a sentence each."""
    for run, parts in (
        (compare(tiny_checkpoint, tiny_checkpoint), (str(tiny_checkpoint), "20240327", "20240326")),
        (compare(state, odd_checkpoint), (str(state), "bytes in all")),
        (compare(state, tiny_checkpoint, "--sub-batches", 3), ("sub_batches", "3", "divisor of the batch size 4")),
    ):
        assert run.check(2).stdout == ""
        assert len(run.stderr.splitlines()) == 1
        assert all(part in run.stderr for part in parts), run.stderr
