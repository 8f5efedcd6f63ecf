"""Statements about the library: what is compared of a refusal, and what counts as wrong; no library is needed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from starpullm.checks.place import environment, limited_files
from starpullm.checks.result import Outcome
from starpullm.errors import FileError, InvalidArgumentError, StarpullmError, StateError

from ..native.limits.statements import Statements

F32 = np.float32


def raising(error: StarpullmError) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


def outcome(state: Callable[[Statements], None]) -> Outcome:
    statements = Statements("limits")
    state(statements)
    result = statements.result()
    assert (result.compared, result.measured) == (1, len(statements.wrong))
    return result.outcome


@pytest.mark.parametrize(
    ("error", "holds"),
    [
        (FileError("a: open tmp-7.x: gone", 2), True),
        (FileError("a: open tmp-8: gone", 2), True),
        (FileError("a: open tmp-7.x: gone", 3), False),
        (FileError("a: open tmp-7.x: gone"), False),
        (FileError("a: open tmp 7: gone", 2), False),
        (FileError("a: open tmp-7.x: gone.", 2), False),
        (FileError("A: open tmp-7.x: gone", 2), False),
        (StateError("a: open tmp-7.x: gone"), False),
        (None, False),
    ],
)
def test_a_refusal_is_compared_as_a_whole(error: StarpullmError | None, holds: bool) -> None:
    call = raising(error) if error else print
    found = outcome(lambda s: s.refused("opening", FileError, "a: open *: gone", call, 2))
    assert (found is Outcome.PASSED) is holds


@pytest.mark.parametrize(("found", "holds"), [(1, True), (2, False), (True, False), (1.0, False), ("1", False)])
def test_equal_values_are_of_one_type(found: object, holds: bool) -> None:
    assert (outcome(lambda s: s.equal("x", 1, found)) is Outcome.PASSED) is holds


def test_bits_are_compared() -> None:
    zero = np.zeros(3, F32)
    assert outcome(lambda s: s.same_bits("x", zero, zero.copy())) is Outcome.PASSED
    assert outcome(lambda s: s.same_bits("x", zero, -zero)) is Outcome.FAILED


def test_each_wrong_statement_is_shown() -> None:
    statements = Statements("limits")
    statements.equal("first", 1, 1)
    statements.equal("second", 1, 2)
    statements.refused("third", StateError, "no", raising(StateError("yes")))
    assert statements.result().lines() == [
        "limits: failed: a statement doesn't hold (2 in 3 statements): second: expected 1, found 2",
        "  third: expected StateError: no, found StateError: yes",
    ]


def test_no_statement_is_no_verdict() -> None:
    with pytest.raises(InvalidArgumentError, match="nothing was compared"):
        Statements("limits").result()


# ---- The process ----


def test_an_environment_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STARPULLM_X", "1")
    with environment(STARPULLM_X=None, STARPULLM_Y="2"):
        assert os.environ.get("STARPULLM_X") is None
        assert os.environ["STARPULLM_Y"] == "2"
    assert os.environ["STARPULLM_X"] == "1"
    assert "STARPULLM_Y" not in os.environ


def test_a_limit_on_files_ends(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with limited_files(3), path.open("wb", buffering=0) as file:
        assert file.write(b"1234") == 3
        with pytest.raises(OSError, match="large"):
            file.write(b"4")
    assert path.write_bytes(b"1234") == 4
