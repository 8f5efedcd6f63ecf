"""What needs no native library of the counting of allocations."""

from __future__ import annotations

from pathlib import Path

import pytest

from starpullm.binding import allocations


def test_several_libraries_are_preloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(allocations, "find_library", lambda: tmp_path / "counts.so")
    monkeypatch.setenv("LD_PRELOAD", "/lib/a.so")
    expected = f"{tmp_path / 'counts.so'}:{tmp_path / 'refuses.so'}:/lib/a.so"
    assert allocations.preloading(tmp_path / "refuses.so") == {"LD_PRELOAD": expected}
