"""What is known of the machine without the native library."""

from __future__ import annotations

import pytest

from starpullm.machine import full_partitions, handle_bytes


@pytest.mark.parametrize(
    ("cores", "workers", "contexts", "parallel", "expected"),
    [
        (2, 128, 10, True, ("1x2", "2x1")),
        (8, 128, 10, True, ("1x8", "2x4", "4x2", "8x1")),
        (8, 128, 10, False, ("8x1",)),
        # Workers of several threads need a context each; 32x4 and 64x2 would be refused.
        (128, 128, 10, True, ("1x128", "2x64", "4x32", "8x16", "128x1")),
        (128, 64, 10, True, ("1x64", "2x32", "4x16", "8x8", "64x1")),
    ],
)
def test_partitions_that_starpu_can_take(
    cores: int, workers: int, contexts: int, parallel: bool, expected: tuple[str, ...]
) -> None:
    assert full_partitions(cores, workers, contexts, parallel_workers=parallel) == expected


@pytest.mark.parametrize(("max_nodes", "measured"), [(4, 1400), (8, 2775), (64, 74901)])
def test_memory_of_a_handle(max_nodes: int, measured: int) -> None:
    """As measured with StarPU 1.4.10: the resident memory of 10,000 vectors."""
    assert handle_bytes(max_nodes) == pytest.approx(measured, rel=0.05)
