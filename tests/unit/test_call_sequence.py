"""Sequences as values: they can be run, they cover the calls, they are made shorter, and they become programs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from starpullm.binding.library import StarpuLimits
from starpullm.checks.scenario import call_sequence
from starpullm.checks.scenario.call_sequence import Call, CallSequence, draw, shorter, shrink
from starpullm.checks.scenario.saved import SavedStates
from starpullm.checks.scenario.state_machine import REFUSALS, StateMachine
from starpullm.golden.plain import State

SIZES = {
    "max_seq_len": 8,
    "vocab_size": 9,
    "num_layers": 2,
    "num_heads": 2,
    "channels": 6,
    "padded_vocab_size": 10,
}
SEQUENCE = CallSequence(
    {"partition": "2x1", "scheduler": "eager", "seed": 5, **SIZES},
    "ref",
    [
        Call("open", {"who": "a", "batch_size": 6, "seq_len": 8, "sub_batches": 3, "reduction": "tree"}),
        Call("step", {"who": "a"}),
        Call("submit", {"who": "a", "rate": 1e-2}),
        Call("save_state", {"who": "a", "keep": 1}),
        Call("close", {"who": "a"}),
    ],
)


@pytest.fixture(autouse=True)
def _limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_sequence, "find_library", lambda: None)
    monkeypatch.setattr(call_sequence, "starpu_limits", lambda path: StarpuLimits(8, 4))
    monkeypatch.setattr(call_sequence, "count_cores", lambda: 4)


def test_a_seed_is_one_sequence() -> None:
    for seed in range(50):
        sequence = draw(seed)
        assert sequence == draw(seed) != draw(seed + 1)
        assert str(sequence.calls[0]).startswith("open(who='a', batch_size=")
        assert sequence.simd == ("", "ref")[seed % 2]


def test_all_calls_and_options_are_drawn() -> None:
    calls = [call for seed in range(200) for call in draw(seed).calls]
    names = Counter(call.name for call in calls)
    public = {name for name, value in vars(StateMachine).items() if callable(value) and not name.startswith("_")}
    assert set(names) == public - {"compare", "end"}
    assert {call.arguments["what"] for call in calls if call.name == "refuse"} == set(REFUSALS)
    options = Counter(name for call in calls if call.name == "open" for name in call.arguments)
    assert {*call_sequence.OPTIONS, "who", "batch_size", "seq_len", "sub_batches"} == set(options)
    assert {draw(seed).machine["partition"] for seed in range(99)} >= {"1x1", "2x1", "1x2", "2x2", "4x1"}


def test_shrinking_keeps_what_matters() -> None:
    """A sequence that differs if it saves after a step of several sub-batches is left with no more than that."""

    def ends_the_same(sequence: CallSequence) -> bool:
        opened, *others = sequence.calls or [Call("", {})]
        names = [call.name for call in others]
        return (
            opened.arguments.get("sub_batches", 1) > 1 and "save_state" in names[names.index("submit") :]
            if ("submit" in names)
            else False
        )

    found = shrink(SEQUENCE, ends_the_same)
    assert [call.name for call in found.calls] == ["open", "submit", "save_state"]
    assert set(found.calls[0].arguments) == {"who", "batch_size", "seq_len", "sub_batches"}
    assert found.machine == {
        "partition": "1x1",
        "scheduler": "lws",
        "seed": 5,
        "max_seq_len": 1,
        "vocab_size": 1,
        "num_layers": 1,
        "num_heads": 1,
        "channels": 1,
        "padded_vocab_size": 1,
    }
    assert not any(map(ends_the_same, shorter(found)))


def test_the_program_makes_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, dict[str, Any]]] = []

    class Heard:
        def __init__(self, **options: Any) -> None:
            made.append(("", options))

        def __enter__(self) -> Heard:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def __getattr__(self, name: str) -> Any:
            return lambda **arguments: made.append((name, arguments))

    monkeypatch.setattr("starpullm.checks.scenario.state_machine.StateMachine", Heard)
    monkeypatch.setenv("STARPULLM_SIMD", "")
    program = SEQUENCE.program("two\nlines")
    exec(compile(program, "program", "exec"), {})
    assert made == [("", SEQUENCE.machine), *SEQUENCE.calls]
    assert len(program.splitlines()) <= 12


def test_a_save_over_ranks_that_is_begun_again_may_have_removed_nothing() -> None:
    for over_ranks, possible in ((False, [[5]]), (True, [[2, 5], [5]])):
        for found in ([2, 5], [5], [2], []):
            states = SavedStates()
            for updates, keep in ((2, 2), (5, 1), (5, 2)):
                states.save(State({}, {}, {}, updates), keep, {}, over_ranks=over_ranks)
            assert (states.kept(found) == found) == (found in possible)
            states.save(State({}, {}, {}, 6), 3, {}, over_ranks=over_ranks)
            after = [*found, 6] if found in possible else [5, 6]
            assert states.kept(after) == after
