"""What a trainer's functions refuse: tokens, names, places in a tensor, calls that aren't possible now."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from starpullm.binding import prototypes, structs
from starpullm.checks.bits import compare_bits
from starpullm.checks.observer import Observer
from starpullm.errors import InvalidArgumentError, StateError, TokenRangeError
from starpullm.instruments import Instruments
from starpullm.trainer import Trainer

from .refusals import refused
from .sizes import MODEL, B, T, batch

pytestmark = pytest.mark.child("one worker", preloads="allocations")

Train = Callable[..., Trainer]

WTE = MODEL.padded_vocab_size * MODEL.channels
"""Elements of wte."""


@pytest.fixture(scope="module")
def trainer(train: Train) -> Iterator[Trainer]:
    """One that has made a step."""
    with train() as trainer:
        trainer.step(*batch(0))
        yield trainer


@pytest.fixture
def traced(train: Train) -> Iterator[Trainer]:
    """One that is traced, with delays."""
    with train(trace=True, instruments=Instruments(max_delay_us=1)) as trainer:
        yield trainer


# ---- Tokens, learning rates, positions ----

Call = Callable[[Trainer, NDArray[np.int32]], object]

CALLS: Mapping[str, Call] = {
    "inputs of submit": lambda trainer, tokens: trainer.submit(tokens, batch(1)[1]),
    "targets of submit": lambda trainer, tokens: trainer.submit(batch(1)[0], tokens),
    "inputs of evaluate": lambda trainer, tokens: trainer.evaluate(tokens, batch(1)[1]),
    "targets of evaluate": lambda trainer, tokens: trainer.evaluate(batch(1)[0], tokens),
    "inputs of probabilities": lambda trainer, tokens: trainer.probabilities(tokens, 0, 0),
}


def parameters(trainer: Trainer) -> dict[str, NDArray[np.float32]]:
    return {name: trainer.tensor("params", name) for name in trainer.tensor_names("params")}


def assert_same(expected: Mapping[str, NDArray[np.float32]], found: Mapping[str, NDArray[np.float32]]) -> None:
    assert [name for name in expected if compare_bits(expected[name], found[name])] == []


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("token", [-1, MODEL.vocab_size, MODEL.padded_vocab_size, -(2**31)])
@pytest.mark.parametrize("what", CALLS)
def test_token_out_of_range(trainer: Trainer, what: str, token: int) -> None:
    before, tokens = parameters(trainer), batch(1)[0].copy()
    tokens[1, 3] = token
    start = f"{what.split(maxsplit=1)[0]}[1, 3]: token {token} is out of range, expected 0 to {MODEL.vocab_size - 1}"
    with refused(TokenRangeError, start):
        CALLS[what](trainer, tokens)
    assert_same(before, parameters(trainer))


@pytest.mark.parametrize("what", CALLS)
def test_first_and_last_token(trainer: Trainer, what: str) -> None:
    tokens = np.where(np.arange(B * T).reshape(B, T) % 2, 0, MODEL.vocab_size - 1)
    CALLS[what](trainer, tokens)


@pytest.mark.parametrize("rate", [math.nan, math.inf, 1e39, -1e-3])
def test_learning_rate_of_a_step(trainer: Trainer, rate: float) -> None:
    before = parameters(trainer)
    with refused(InvalidArgumentError, "learning_rate: found "):
        trainer.submit(*batch(1), learning_rate=rate)
    assert_same(before, parameters(trainer))


@pytest.mark.parametrize(("what", "sequence", "position", "most"), [("sequence", B, 0, B), ("position", 0, T, T)])
def test_place_of_probabilities(trainer: Trainer, what: str, sequence: int, position: int, most: int) -> None:
    with refused(InvalidArgumentError, f"{what}: found {most}, expected 0 to {most - 1}"):
        trainer.probabilities(batch(1)[0], sequence, position)
    trainer.probabilities(batch(1)[0], B - 1, T - 1)


# ---- Tables ----


def test_tables() -> None:
    assert [prototypes.call("tensor_count", group) for group in range(-1, 7)] == [0, 16, 16, 16, 16, 23, 23, 0]
    operations = list(prototypes.names("operation_name"))
    assert operations[-2:] == ["report_loss", "transfer"]
    assert len(operations) == len(set(operations))
    assert prototypes.call("operation_name", -1) is None


@pytest.mark.parametrize("group", [-1, 6])
@pytest.mark.parametrize("name", ["session_tensor_info", "session_read_tensor"])
def test_group(trainer: Trainer, name: str, group: int) -> None:
    arguments: tuple[Any, ...] = (0, 0, 0, 0, np.empty(1, np.float32))
    if name == "session_tensor_info":
        arguments = (0, structs.new("tensor_info"))
    with refused(InvalidArgumentError, f"group: found {group}, expected 0 to 5"):
        prototypes.call(name, trainer._handle, group, *arguments)


@pytest.mark.parametrize(
    ("group", "number", "count"),
    [(group, number, count) for group, count in ((0, 16), (3, 16), (4, 23), (5, 23)) for number in (-1, count)],
)
def test_number_of_a_tensor(trainer: Trainer, group: int, number: int, count: int) -> None:
    with refused(InvalidArgumentError, f"tensor: found number {number}, expected 0 to {count - 1}"):
        prototypes.call("session_tensor_info", trainer._handle, group, number, structs.new("tensor_info"))


# ---- Reading tensors ----


def read_wte(trainer: Trainer, offset: int, count: int) -> NDArray[np.float32]:
    values = np.zeros(WTE, np.float32)
    prototypes.call("session_read_tensor", trainer._handle, 0, 0, 0, offset, count, values)
    return values[:count]


@pytest.mark.parametrize(("offset", "count"), [(-1, 1), (0, -1), (0, WTE + 1), (WTE - 1, 2), (WTE + 1, 0), (WTE, 1)])
def test_elements_that_a_tensor_has_not(trainer: Trainer, offset: int, count: int) -> None:
    with refused(InvalidArgumentError, f"wte: found {count} elements from {offset} on, expected a part of {WTE}"):
        read_wte(trainer, offset, count)


@pytest.mark.parametrize(("offset", "count"), [(0, WTE), (WTE - 1, 1), (WTE, 0), (5, 7)])
def test_elements_of_a_tensor(trainer: Trainer, offset: int, count: int) -> None:
    expected = trainer.tensor("params", "wte").ravel()[offset : offset + count]
    assert compare_bits(expected, read_wte(trainer, offset, count)) is None


@pytest.mark.parametrize("layer", [-1, MODEL.num_layers])
@pytest.mark.parametrize(("group", "name"), [("params", "qkvw"), ("activations", "ln2_mean")])
def test_layer(trainer: Trainer, group: str, name: str, layer: int) -> None:
    with refused(InvalidArgumentError, f"{name}: found layer {layer}, expected 0 to {MODEL.num_layers - 1}"):
        trainer.tensor(group, name, layer)
    trainer.tensor(group, name, MODEL.num_layers - 1)


@pytest.mark.parametrize(
    ("group", "name"),
    [
        *(("activations", name) for name in ("preatt", "attproj", "fcproj")),
        *(("activation_grads", name) for name in ("qkv", "ln1", "residual3")),
    ],
)
def test_buffer_of_all_layers(trainer: Trainer, group: str, name: str) -> None:
    with refused(StateError, f"{group}/{name}: its layers share one buffer,"):
        trainer.tensor(group, name, 0)


@pytest.mark.parametrize(
    ("group", "name", "buffers"),
    [
        ("grads", "qkvw", "two buffers"),
        *(("activations", name, "one buffer") for name in ("ln1", "att", "residual2", "fch_gelu")),
        *((group, name, "") for group, name in (("grads", "wte"), ("activations", "residual3"))),
        ("activation_grads", "encoded", ""),
    ],
)
def test_reused_gradients_and_recomputed_blocks(train: Train, group: str, name: str, buffers: str) -> None:
    with train(recompute="block", weight_gradients="reused") as trainer:
        if not buffers:
            trainer.tensor(group, name)
            return
        with refused(StateError, f"{group}/{name}: its layers share {buffers},"):
            trainer.tensor(group, name, 1)


def test_sub_batches_of_one_activation_set(train: Train) -> None:
    with train(sub_batches=B, activation_sets=1) as trainer:
        last = B - 1
        assert trainer.kept_sequences("activations", "logits") == [slice(last, B)]
        for first, end in ((0, B), (0, last)):
            with refused(StateError, "activations/logits: found sub-batch 0, whose activation set another one has had"):
                trainer.tensor("activations", "logits", sequences=slice(first, end))
        trainer.tensor("activations", "logits", sequences=slice(last, B))


@pytest.mark.parametrize(
    ("group", "name", "sequences"),
    [
        *(("activations", "logits", part) for part in (slice(1, 1), slice(0, B, 2), slice(B, B + 1))),
        ("params", "wte", slice(0, 1)),
    ],
)
def test_sequences(trainer: Trainer, group: str, name: str, sequences: slice) -> None:
    with refused(InvalidArgumentError, f"sequences: found {sequences} of {group}, expected some of an activation"):
        trainer.tensor(group, name, sequences=sequences)


# ---- Traces, instruments and held tasks ----

NOT_THERE: Mapping[str, Callable[[Trainer], object]] = {
    "the session isn't traced, expected one created with trace": lambda trainer: trainer.trace(),
    "the session isn't traced": lambda trainer: trainer.clear_trace(),
    "the session has no instruments": lambda trainer: Observer(trainer).findings(),
    "hold: the session isn't traced": lambda trainer: Observer(trainer).hold(),
    "release: the session holds no tasks": lambda trainer: Observer(trainer).release(),
}


@pytest.mark.parametrize(("start", "call"), NOT_THERE.items(), ids=NOT_THERE)
def test_what_is_not_there(trainer: Trainer, start: str, call: Callable[[Trainer], object]) -> None:
    with refused(StateError, start):
        call(trainer)


@pytest.mark.parametrize(
    ("name", "array", "start"),
    [
        ("session_findings_read", np.empty(1, structs.FINDING), "findings: room for 1, expected 0"),
        ("session_runtime_edges", np.empty(2, np.int64), "edges: room for 1, expected 0"),
    ],
    ids=["findings", "edges"],
)
def test_too_much_room(traced: Trainer, name: str, array: NDArray[Any], start: str) -> None:
    with refused(InvalidArgumentError, start):
        prototypes.call(name, traced._handle, array, 1)


WHILE_HELD: Mapping[str, Callable[[Trainer, Path], object]] = {
    "an evaluation": lambda trainer, path: trainer.evaluate(*batch(0)),
    "a tensor": lambda trainer, path: trainer.tensor("params", "wte"),
    "the trace": lambda trainer, path: trainer.trace(),
    "clearing the trace": lambda trainer, path: trainer.clear_trace(),
    "the findings": lambda trainer, path: Observer(trainer).findings(),
    "the counts": lambda trainer, path: Observer(trainer).counts(),
    "a checkpoint": lambda trainer, path: trainer.save_checkpoint(path),
    "a state": lambda trainer, path: trainer.save_state(path),
}


@pytest.mark.parametrize("what", WHILE_HELD)
def test_while_tasks_are_held(traced: Trainer, tmp_path: Path, what: str) -> None:
    """Whatever would wait for them is refused."""
    Observer(traced).hold()
    traced.submit(*batch(0))
    with refused(StateError, "the session holds its tasks, expected a release first"):
        WHILE_HELD[what](traced, tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []
    Observer(traced).release()


def test_hold(traced: Trainer, tmp_path: Path) -> None:
    observer = Observer(traced)
    traced.save_state(tmp_path)
    observer.hold()
    traced.wait_saved()
    with refused(StateError, "hold: the session holds its tasks already, expected a release"):
        observer.hold()
    loss = traced.submit(*batch(0))
    assert not loss.ready
    with refused(StateError, "the session holds its tasks, expected a release first"):
        loss.result()
    with refused(StateError, "the session holds its tasks, expected a release first"):
        traced.evaluate(*batch(0))
    with refused(StateError, "the session holds 2 submissions, expected a release before the next"):
        traced.submit(*batch(0))
    observer.release()
    assert math.isfinite(loss.result())
    traced.step(*batch(0))


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("instruments", [Instruments(audit=True), Instruments(poison=True)], ids=["audit", "poison"])
class TestWatched:
    """With an instrument that waits for all tasks."""

    @pytest.fixture
    def watched(self, train: Train, instruments: Instruments) -> Iterator[Trainer]:
        with train(trace=True, instruments=instruments) as trainer:
            yield trainer

    def test_counts_are_forgotten_with_the_trace(self, watched: Trainer) -> None:
        def counted() -> list[int]:
            counts = Observer(watched).counts()
            return [counts.pages, counts.poisoned, counts.poisoned_between, counts.searched]

        watched.step(*batch(0))
        assert any(counted())
        watched.clear_trace()
        assert counted() == [0, 0, 0, 0]

    def test_hold(self, watched: Trainer) -> None:
        with refused(StateError, "hold: the session is audited or poisoned, expected neither"):
            Observer(watched).hold()

    @pytest.mark.parametrize("keep", [0, -1])
    def test_number_of_states_that_are_kept(self, watched: Trainer, tmp_path: Path, keep: int) -> None:
        with refused(InvalidArgumentError, f"keep: found {keep}, expected at least 1"):
            watched.save_state(tmp_path / "states", keep=keep)
        assert list(tmp_path.iterdir()) == []


def test_state_of_an_audited_trainer(train: Train, tmp_path: Path) -> None:
    with train(trace=True, instruments=Instruments(audit=True)) as trainer:
        with refused(StateError, "the session is audited, expected one that isn't"):
            trainer.save_state(tmp_path / "states")
        assert list(tmp_path.iterdir()) == []
        with refused(StateError, "another session of this process is audited, expected none: close it"):
            train(trace=True, instruments=Instruments(audit=True)).close()


def test_state_after_less_than_no_batch(trainer: Trainer, tmp_path: Path) -> None:
    with refused(InvalidArgumentError, f"{tmp_path}: number of batches is -1, expected at least 0"):
        trainer.save_state(tmp_path, batches=-1)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_state_without_a_directory(trainer: Trainer) -> None:
    with refused(InvalidArgumentError, "starpullm_session_save_state: options->directory is NULL"):
        prototypes.call("session_save_state", trainer._handle, structs.new("save_options", keep=1))
