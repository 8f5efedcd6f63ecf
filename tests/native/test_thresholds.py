"""Both sides of the sizes at which the library takes another path.

Collected by pytest; the runs are in child processes. Thresholds of kernels alone are in native/tests/kernels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from starpullm import Runtime, Trainer
from starpullm.checks.observer import Observer
from starpullm.data.generator import generate_tokens
from starpullm.golden.records import THRESHOLD_RECORDS, shipped_record
from starpullm.trainer import Instruments

from .children import TWO_CORES, names_in, run_cli, run_function, run_python
from .readers.training_state import read_training_state

TINY = shipped_record("tiny")
TIME_LIMIT = 100.0
SIX_CORES = {"HWLOC_SYNTHETIC": "core:6 pu:1"}
SLOW = Instruments(max_delay_us=8000)
"""A step of tiny then takes about 0.3 s, in which no core is busy."""

LEVELS = """
from starpullm.checks.libm import vector_levels

print("ref", *vector_levels())
"""


def batch(step: int) -> tuple[Any, Any]:
    return generate_tokens(TINY.seed, step, TINY.batch_size, TINY.seq_len, TINY.model.vocab_size)


@contextmanager
def tiny_trainer(partition: str, checkpoint: str | None, **options: Any) -> Iterator[Trainer]:
    sizes = {"batch_size": TINY.batch_size, "seq_len": TINY.seq_len}
    with Runtime(partition) as runtime, Trainer(runtime, checkpoint, **{**sizes, **options}) as trainer:
        yield trainer


def bits_of(trainer: Trainer) -> str:
    """One hash of all bits of the parameters and of AdamW's m and v."""
    digest = hashlib.sha256()
    for group in ("params", "m", "v"):
        for name in trainer.tensor_names(group):
            digest.update(trainer.tensor(group, name).tobytes())
    return digest.hexdigest()


# ---- Sizes ----


@pytest.mark.parametrize("level", ["ref", "sse2", "avx2", "avx512", "neon"])
def test_records_beyond_thresholds(level: str) -> None:
    """On each level, alone and with teams of four and six threads, which cut large outputs into grids."""
    if level not in run_python(LEVELS).stdout.split():
        pytest.skip(f"this machine has no {level}")
    records = [shipped_record(name) for name in THRESHOLD_RECORDS]
    partitions = [option for threads in (1, 4, 6) for option in ("--partition", f"1x{threads}")]
    run = run_cli(
        "parity",
        *(record.path for record in records),
        *partitions,
        timeout=TIME_LIMIT,
        environment={"STARPULLM_SIMD": level, **SIX_CORES},
    ).check()
    steps = 3 * sum(record.num_steps for record in records)
    tensors = 3 * sum(len(names) for record in records for step in record.steps for names in step.digests.values())
    assert run.stdout.splitlines()[-1] == f"parity: {tensors} tensors over {steps} steps, 0 differ"


def test_blocks_of_small_caches() -> None:
    """Every product is cut into many blocks."""
    records = [shipped_record(name) for name in ("tiny", "odd", "ragged")]
    environment = {"STARPULLM_CACHES": "2K,8K", **TWO_CORES}
    run = run_cli("parity", *(record.path for record in records), timeout=TIME_LIMIT, environment=environment).check()
    tensors = sum(len(names) for record in records for step in record.steps for names in step.digests.values())
    assert (
        run.stdout.splitlines()[-1]
        == f"parity: {tensors} tensors over {sum(record.num_steps for record in records)} steps, 0 differ"
    )


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


# ---- Saving ----


def save_at_all_times(checkpoint: str, directory: str) -> dict[str, Any]:
    """Save while steps are in flight, twice in a row, after an evaluation, after a resume before any step."""
    first, second = f"{directory}/first", f"{directory}/second"
    bits: dict[str, Any] = {}
    with tiny_trainer("2x1", checkpoint, sub_batches=2, steps_in_flight=3, trace=True, instruments=SLOW) as trainer:
        losses = [trainer.submit(*batch(step)) for step in range(3)]
        trainer.save_state(first, batches=3)
        bits["in flight when saved"] = not losses[-1].ready
        trainer.save_state(first, batches=3)
        trainer.submit(*batch(3))
        trainer.wait_saved()
        bits["saved twice"] = state_bits(first)
        trainer.evaluate(*batch(9))
        trainer.save_state(first, batches=4)
        trainer.wait_saved()
        bits["saved after an evaluation"] = state_bits(first)
    with tiny_trainer("1x1", None, resume=first) as trainer:
        trainer.save_state(second, batches=4)
        trainer.submit(*batch(4))
        trainer.wait_saved()
        bits["saved after a resume"] = state_bits(second)
        bits["resumed"] = bits_of(trainer)
    return bits


def state_bits(directory: str) -> list[Any]:
    """Step, batches and one hash of all bits, like `bits_of`, of the newest state."""
    state = read_training_state(directory)
    digest = hashlib.sha256()
    for arrays in (state.params, state.m, state.v):
        for array in arrays.values():
            digest.update(array.tobytes())
    return [state.step, state.batches, digest.hexdigest()]


def train_plainly(checkpoint: str, steps: int) -> list[str]:
    """The bits after each step."""
    with tiny_trainer("1x1", checkpoint) as trainer:
        bits = []
        for step in range(steps):
            trainer.step(*batch(step))
            bits.append(bits_of(trainer))
        return bits


def test_saving_at_any_time(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Every state has the bits of a run that waited after each step."""
    plain = run_function(train_plainly, tiny_checkpoint, 5, timeout=TIME_LIMIT)
    found = run_function(save_at_all_times, tiny_checkpoint, tmp_path, timeout=TIME_LIMIT, environment=TWO_CORES)
    assert found == {
        "in flight when saved": True,
        "saved twice": [3, 3, plain[2]],
        "saved after an evaluation": [4, 4, plain[3]],
        "saved after a resume": [4, 4, plain[3]],
        "resumed": plain[4],
    }
    assert names_in(tmp_path / "first") == [".lock", "step-000000000003", "step-000000000004"]
    assert names_in(tmp_path / "second") == [".lock", "step-000000000004"]
