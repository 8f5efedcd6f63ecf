"""Expectations of the library: what counts as wrong; no library is needed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from starpullm.checks.check_context import environment, limited_files
from starpullm.checks.expectations import Expectations

F32 = np.float32


def wrong(state: Callable[[Expectations], None]) -> list[str]:
    """Return the sentence of what doesn't hold."""
    expectations = Expectations()
    state(expectations)
    assert expectations.compared == 1
    return [finding.sentence for finding in expectations.wrong]


@pytest.mark.parametrize(("found", "holds"), [(1, True), (2, False), (True, False), (1.0, False), ("1", False)])
def test_equal_values_are_of_one_type(found: object, holds: bool) -> None:
    assert wrong(lambda expected: expected.equal("x", 1, found)) == (
        [] if holds else [f"x: expected 1, found {found!r}"]
    )


def test_bits_are_compared() -> None:
    zero = np.zeros(3, F32)
    assert wrong(lambda expected: expected.same_bits("x", zero, zero.copy())) == []
    assert len(wrong(lambda expected: expected.same_bits("x", zero, -zero))) == 1


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
