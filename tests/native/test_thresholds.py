"""Both sides of the sizes at which the library takes another path.

Thresholds of kernels alone are in the suite's check of kernels.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from starpullm.checks.observer import Observer
from starpullm.golden.records import SHIPPED_RECORDS, shipped_record

from .children import TWO_CORES, run_cli, run_function, simd_levels
from .tiny import batch, bits_of, tiny_trainer

TIME_LIMIT = 100.0
SIX_CORES = {"HWLOC_SYNTHETIC": "core:6 pu:1"}


# ---- Sizes ----


@pytest.mark.parametrize("level", ["ref", "sse2", "avx2", "avx512", "neon"])
def test_every_simd_level(level: str) -> None:
    """Alone and in teams, which cut outputs elsewhere, and large ones of vector kernels into grids."""
    if level not in simd_levels():
        pytest.skip(f"this machine has no {level}")
    records = [shipped_record(name) for name in SHIPPED_RECORDS[:-1]]
    teams = (1, 3) if level == "ref" else (1, 3, 6)
    partitions = [option for threads in teams for option in ("--partition", f"1x{threads}")]
    run = run_cli(
        "parity",
        *(record.path for record in records),
        *partitions,
        timeout=TIME_LIMIT,
        environment={"STARPULLM_SIMD": level, **SIX_CORES},
    ).check()
    steps = len(teams) * sum(record.num_steps for record in records)
    tensors = sum(len(names) for record in records for step in record.steps for names in step.digests.values())
    assert run.stdout.splitlines()[-1] == f"parity: {len(teams) * tensors} tensors over {steps} steps, 0 differ"


# ---- Steps in flight ----


def train_in_flight(checkpoint: str, steps_in_flight: int, steps: int) -> list[str]:
    """Losses and final bits; the first steps are held back until as many as may be in flight have been submitted."""
    with tiny_trainer("2x1", checkpoint, sub_batches=2, steps_in_flight=steps_in_flight, trace=True) as trainer:
        observer = Observer(trainer)
        observer.hold()
        losses = [trainer.submit(*batch(step)) for step in range(steps_in_flight)]
        assert not any(loss.ready for loss in losses)
        observer.release()
        losses += [trainer.submit(*batch(step)) for step in range(steps_in_flight, steps)]
        return [loss.result().tobytes().hex() for loss in losses] + [bits_of(trainer)]


def test_any_number_of_steps_in_flight(tiny_checkpoint: Path) -> None:
    """Also more than two, and as many as there are steps; every slot is used, most of them twice."""
    steps = 7
    expected, *others = (
        run_function(train_in_flight, tiny_checkpoint, number, steps, timeout=TIME_LIMIT, environment=TWO_CORES)
        for number in (1, 3, 5, 7)
    )
    assert len(set(expected)) == steps + 1
    for found in others:
        assert found == expected
