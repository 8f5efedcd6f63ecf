"""What is known of the machine without the native library."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest

from starpullm.binding.library import starpu_limits
from starpullm.errors import LibraryNotFoundError
from starpullm.machine import (
    available_cores,
    count_cores,
    crowded_partitions,
    full_partitions,
    handle_bytes,
    with_cores_for,
)
from starpullm.runtime import Partition


@pytest.mark.parametrize(
    ("cores", "workers", "contexts", "expected"),
    [
        (2, 128, 10, ("1x2", "2x1")),
        (8, 128, 10, ("1x8", "2x4", "4x2", "8x1")),
        # Workers of several threads need a context each; 32x4 and 64x2 would be refused.
        (128, 128, 10, ("1x128", "2x64", "4x32", "8x16", "128x1")),
        # Without parallel workers.
        (8, 128, 0, ("8x1",)),
        (128, 64, 10, ("1x64", "2x32", "4x16", "8x8", "64x1")),
    ],
)
def test_partitions_that_starpu_can_take(cores: int, workers: int, contexts: int, expected: tuple[str, ...]) -> None:
    assert full_partitions(cores, workers, contexts) == expected


@pytest.mark.parametrize(
    ("cores", "workers", "contexts", "expected"),
    [
        (1, 128, 10, ["2x1", "3x1", "1x2"]),
        (2, 128, 10, ["3x1", "5x1", "2x2"]),
        (16, 128, 10, ["17x1", "33x1"]),
        (2, 4, 0, ["3x1"]),
    ],
)
def test_partitions_with_more_workers_than_cores(
    cores: int, workers: int, contexts: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert crowded_partitions(cores, workers, contexts) == expected
    monkeypatch.setenv("HWLOC_SYNTHETIC", f"core:{cores}")
    assert with_cores_for(f"{cores}x1") == {}
    for partition in expected:
        for name, topology in with_cores_for(partition).items():
            monkeypatch.setenv(name, topology)
        assert count_cores() == prod(Partition.parse(partition))
        monkeypatch.setenv("HWLOC_SYNTHETIC", f"core:{cores}")


@pytest.mark.parametrize(
    ("topology", "cores"),
    [
        ("numa:1 core:2 pu:1", 2),
        ("numa:2 core:18 pu:2", 36),
        ("Package:2 L3:3 Core:4", 24),
        ("pack:2(memory=1GB) core:2 pu:2(indexes=2*8:1*2)", 4),
        ("pu:4", 4),
        ("numa:2 pu:3", 6),
        ("2 3 pu:2", None),
        ("", None),
    ],
)
def test_cores_are_those_that_hwloc_will_find(
    monkeypatch: pytest.MonkeyPatch, topology: str, cores: int | None
) -> None:
    """Of a topology without named cores, Linux's are counted."""
    monkeypatch.setenv("HWLOC_SYNTHETIC", topology)
    assert count_cores() == (cores or len(available_cores()))


def test_limits_are_read_from_the_library_s_file(tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(b"\x7fELF\0starpullm: StarPU of 256 workers, 64 contexts\0")
    assert starpu_limits(path) == (256, 64)
    path.write_bytes(b"\x7fELF\0")
    with pytest.raises(LibraryNotFoundError, match="doesn't state its StarPU's limits"):
        starpu_limits(path)


@pytest.mark.parametrize(("max_nodes", "measured"), [(4, 1400), (8, 2775), (64, 74901)])
def test_memory_of_a_handle(max_nodes: int, measured: int) -> None:
    """As measured with StarPU 1.4.10: the resident memory of 10,000 vectors."""
    assert handle_bytes(max_nodes) == pytest.approx(measured, rel=0.05)
