"""Sequences end badly if a trainer and the plain model differ in anything that is compared, and become short programs.

The plain model is tested in tests/unit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from click.testing import CliRunner

from starpullm.binding import allocations
from starpullm.checks.check_context import serve_checks
from starpullm.checks.scenario import call_sequence, state_machine
from starpullm.checks.scenario.call_sequence import Call, CallSequence, Ending, draw, run_sequence
from starpullm.checks.scenario.reference_model import TrainerWithReference
from starpullm.checks.scenario.state_machine import StateMachine
from starpullm.commands import scenario as command
from starpullm.golden.plain import PlainModel
from starpullm.processes.children import Pool

from .children import TWO_CORES, run_function, run_python

SIZES = {
    "max_seq_len": 5,
    "vocab_size": 7,
    "num_layers": 2,
    "num_heads": 1,
    "channels": 3,
    "padded_vocab_size": 8,
}
OPENED = {"who": "a", "batch_size": 2, "seq_len": 5, "sub_batches": 2, "keep_activations": True}


patch = pytest.MonkeyPatch().setattr
"""In children, which end with what has been patched."""


def sequence(*calls: tuple[str, dict[str, Any]], **options: Any) -> CallSequence:
    rest = [Call(name, {"who": "a", **arguments}) for name, arguments in calls]
    made = {"partition": "1x1", "scheduler": "lws", "seed": 3, **SIZES}
    return CallSequence(made, "", [Call("open", {**OPENED, **options}), *rest])


def ending_of(sequence_: CallSequence) -> Ending:
    with tempfile.TemporaryDirectory() as directory:
        return run_sequence(sequence_, Path(directory))


def nan_loss(model: PlainModel) -> None:
    evaluate = model.evaluate
    patch(model, "evaluate", lambda *batch: evaluate(*batch) * np.float32("nan"))


def changing(group: str, name: str) -> Callable[[PlainModel], None]:
    """Return a function after which a model has another last bit in a tensor after each update."""

    def change(model: PlainModel) -> None:
        update = model.update

        def changed(rate: float | None = None) -> None:
            update(rate)
            model.groups[group][name].view(np.uint32)[...] ^= 1

        patch(model, "update", changed)

    return change


FAULTS: dict[str, Callable[[PlainModel], None]] = {
    "loss": nan_loss,
    "activations/att[1]": changing("activations", "att"),
    "activation_grads/qkv": changing("activation_grads", "qkv"),
    "grads/wpe": changing("grads", "wpe"),
    "m/lnfb": changing("m", "lnfb"),
    "v/fcw": changing("v", "fcw"),
    "params/wte": changing("params", "wte"),
}


def endings_with_faults() -> dict[str, list[Any]]:
    """Run one sequence with a plain model that has each of the faults."""
    made = PlainModel.__init__
    endings = {}
    for name, fault in {"": lambda model: None, **FAULTS}.items():

        def make(self: PlainModel, *arguments: Any, fault: Any = fault) -> None:
            made(self, *arguments)
            fault(self)

        patch(PlainModel, "__init__", make)
        endings[name] = list(ending_of(sequence(("step", {}))))
    return endings


def test_a_difference_in_anything_that_is_compared_is_found() -> None:
    endings = run_function(endings_with_faults)
    compared, *nothing = endings.pop("")
    assert compared > 2 * 6 * 28
    assert nothing == ["", ""]
    for name, (_, sentence, kind) in endings.items():
        assert kind == "Difference", name
        assert sentence.startswith("sequence 3, call 1, step(who='a'): Difference: "), sentence
        assert f" {name}" in sentence, sentence


def ending_beyond_bounds() -> list[Any]:
    """Run a sequence with gradients that have no fixed bits, of which one is wrong by a hundredth."""
    backward = PlainModel.backward

    def wrong(self: PlainModel, *batch: Any) -> None:
        backward(self, *batch)
        self.groups["activation_grads"]["fch"][...] *= np.float32(1.01)

    patch(PlainModel, "backward", wrong)
    return list(ending_of(sequence(("step", {}), reduction="redux", keep_activations=False)))


def test_gradients_beyond_their_bounds_are_found() -> None:
    _, sentence, kind = run_function(ending_beyond_bounds)
    assert kind == "Difference"
    assert "elements beyond their bounds of fcw[1]" in sentence


def endings_of_refusals() -> list[Any]:
    """Run a sequence in which the library accepts what it should refuse."""
    ends = [list(ending_of(sequence(("refuse", {"what": what})))) for what in ("input", "runtime in use")]
    patch(state_machine, "REFUSALS", {"nothing": (ValueError, lambda state_machine, trainer: None)})
    return [*ends, list(ending_of(sequence(("refuse", {"what": "nothing"}))))]


def test_what_is_not_refused_is_found() -> None:
    *refused, accepted = run_function(endings_of_refusals)
    assert [kind for _, _, kind in refused] == ["", ""]
    assert accepted[1].endswith("Difference: refusal of nothing: expected 'ValueError', found 'none'")


def endings_of_new_faults() -> dict[str, list[Any]]:
    """Run sequences of which the model expects something else than the library does."""
    steps = sequence(("step", {}), ("save_state", {"slow": True}), ("close", {}), trace=True)
    without_memory = sequence(("lack_memory", {"place": 1}))
    restart = Call("restart", {"partition": "1x1", "place": 2})
    without_memory = without_memory._replace(calls=[*without_memory.calls, restart])
    endings = {"": ending_of(steps), "without memory": ending_of(without_memory)}
    for name, drawn, owner, attribute, value in (
        ("what is left when all is closed", steps, state_machine, "KEPT_AFTER_RUNTIMES", 0),
        ("memory lacks where it is said to", without_memory, allocations, "not_reached", lambda: 1),
        ("expected a refusal, found a value", steps, TrainerWithReference, "_is_kept", lambda *_: False),
        (
            "numbers of the steps in the trace",
            steps,
            TrainerWithReference,
            "_submitted",
            property(lambda _: 7, lambda *_: None),
        ),
        ("what the newest state says", steps, state_machine, "_description", Mock(side_effect=[{}, {"batches": 1}])),
    ):
        with pytest.MonkeyPatch.context() as changes:
            changes.setattr(owner, attribute, value, raising=False)
            endings[name] = ending_of(drawn)
    return {name: list(ending) for name, ending in endings.items()}


def test_what_a_sequence_leaves_and_says_is_compared() -> None:
    endings = run_function(endings_of_new_faults, environment=allocations.preloading())
    for name in ("", "without memory"):
        compared, *nothing = endings.pop(name)
        assert nothing == ["", ""], name
        assert compared > 0
    for name, (_, sentence, kind) in endings.items():
        assert kind == "Difference", name
        assert name in sentence, sentence


def endings_of_kills() -> list[Any]:
    """Run sequences of kills during a second save, which leave a complete state, none, and another trainer's."""
    saves: list[tuple[str, dict[str, Any]]] = [("submit", {}), ("save_state", {})] * 2
    left = [ending_of(sequence(*saves, ("interrupt", {})))]
    for steps in ([], [7]):
        patch(state_machine, "complete_steps", Mock(return_value=steps))
        left.append(ending_of(sequence(*saves, ("interrupt", {}))))
    return left


def test_what_a_kill_leaves_is_compared() -> None:
    left, *wrong = run_function(endings_of_kills)
    assert left[1:] == ["", ""]
    assert left[0] > 0
    for (_, sentence, kind), what in zip(
        wrong, ("states that a kill can lose", "one of the last two states"), strict=True
    ):
        assert kind == "Difference"
        assert what in sentence


@pytest.mark.parametrize("seed", [6])
def test_a_sequence_is_a_program(seed: int) -> None:
    """It makes the same calls as the sequence, so it ends well too; impossible ones are left out."""
    machine, simd, calls = run_function(possible_calls, seed, environment=TWO_CORES)
    possible = CallSequence(machine, simd, [Call(*call) for call in calls])
    run_python(possible.program("no difference"), environment=TWO_CORES)


def possible_calls(seed: int) -> CallSequence:
    """Return the sequence of a seed without the calls that are impossible."""
    drawn = draw(seed)
    made: list[Call] = []
    nested: list[str] = []

    def heard(name: str, call: Callable[..., None]) -> Callable[..., None]:
        def make(self: StateMachine, *who: str, **arguments: Any) -> None:
            nested.append(name)
            try:
                call(self, *who, **arguments)
            finally:
                nested.pop()
            if not nested and not who:  # closing a machine closes its trainers
                made.append(Call(name, arguments))

        return make

    class Heard(StateMachine):
        """Hears the calls, but not those that calls make themselves."""

    for name in {call.name for call in drawn.calls}:
        patch(Heard, name, heard(name, getattr(StateMachine, name)))
    patch(call_sequence, "StateMachine", Heard)
    assert ending_of(drawn).kind == ""
    return drawn._replace(calls=made)


def output_of_the_command() -> str:
    """Return what the command prints for two sequences."""
    patch(command, "IN_ONE_PROCESS", 2)
    return CliRunner().invoke(command.command, ["--minutes", "0", "--seed", "40"], catch_exceptions=False).stdout


def test_command() -> None:
    assert run_function(output_of_the_command, environment=TWO_CORES).startswith("2 sequences, ")


def test_ends_of_ranks(tmp_path: Path) -> None:
    """All with status 1, but only options that are refused end as other options that are."""
    with Pool(serve_checks) as pool:
        first, other, raises = (
            command._run(pool, [called], tmp_path / "progress", 2).facts["kind"]
            for called in (sequence(seq_len=1000), sequence(seq_len=2000), sequence(("read", {})))
        )
    assert first == other != raises


def test_a_sequence_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It isn't said to do otherwise than the plain model."""
    monkeypatch.setattr(command, "START_SECONDS", 1e-3)
    monkeypatch.setattr(command, "SEQUENCE_SECONDS", 0.0)
    with Pool(serve_checks) as pool:
        hangs = command._run(pool, [sequence()], tmp_path / "progress", 1)
    assert hangs.facts["kind"].startswith("run_sequences: the check had not ended after")
    line = hangs.lines()[0]
    assert line.startswith(
        "scenarios: failed: run_sequences: the check had not ended after 0.001 s, so its process was"
    )


def endings_on_a_busy_machine() -> list[Any]:
    """Run a sequence in which the process doesn't stand still for a copy in time."""
    patch(state_machine, "_COPY", "exit 124")
    return list(ending_of(sequence(("submit", {}), ("save_state", {}), ("interrupt", {}), ("step", {}))))


def test_a_call_for_which_a_machine_is_too_busy_is_left_out() -> None:
    compared, *nothing = run_function(endings_on_a_busy_machine)
    assert nothing == ["", ""]
    assert compared > 0
