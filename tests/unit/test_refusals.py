"""What needs no native library of the check that lets StarPU refuse tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from starpullm.binding import allocations, refusals
from starpullm.errors import StateError


def test_a_process_that_has_not_preloaded_it_is_told() -> None:
    for call in (refusals.refuse_call, refusals.refuse_message):
        with pytest.raises(StateError, match=r"libstarpullm_refusals\.so isn't preloaded, expected it in .*LD_PRELOAD"):
            call(1)


def test_several_libraries_are_preloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(allocations, "find_library", lambda: tmp_path / "counts.so")
    monkeypatch.setenv("LD_PRELOAD", "/lib/a.so")
    expected = f"{tmp_path / 'counts.so'}:{tmp_path / 'refuses.so'}:/lib/a.so"
    assert allocations.preloading(tmp_path / "refuses.so") == {"LD_PRELOAD": expected}
