"""What only several ranks can show: refusals on all of them together, and what they save together."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from starpullm.binding import prototypes
from starpullm.checks.bits import compare_bits
from starpullm.checks.observer import Observer
from starpullm.errors import FileError, InvalidArgumentError, StateError
from starpullm.files.checkpoint import read_checkpoint
from starpullm.resume import training_state
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer

from ..readers.training_state import read_training_state
from .refusals import refused, words
from .sizes import INT32_MAX, INT64_MAX, MODEL, batch
from .test_checkpoints import large_checkpoint

pytestmark = pytest.mark.child("two ranks", ranks=2)

Create = Callable[..., None]

WATCHED = "instruments: found audit or poison on 2 ranks, expected one: transfers aren't tasks"
MANY = f"on each of 2 ranks, expected at most {INT32_MAX // 3} sub-batches"

REFUSED: list[tuple[str, dict[str, Any]]] = [
    *((WATCHED, {"trace": 1, "instruments": instruments}) for instruments in (1, 2, 3)),
    *(
        (f"batch_size, sub_batches: found {size} and {number} {MANY}", {"batch_size": size, "sub_batches": number})
        for size, number in ((INT64_MAX, 1), (INT32_MAX, INT32_MAX))
    ),
]


@pytest.fixture
def shared(runtime: Runtime, tmp_path: Path) -> Path:
    """One folder of all ranks."""
    return Path(runtime.comm.bcast(str(tmp_path))) if runtime.comm else tmp_path


@pytest.mark.parametrize(("start", "options"), REFUSED, ids=[words(options) for _, options in REFUSED])
def test_refused(create_in_c: Create, start: str, options: dict[str, Any]) -> None:
    with refused(InvalidArgumentError, start):
        create_in_c(**options)
    create_in_c(batch_size=1)


def test_hold(train: Callable[..., Trainer]) -> None:
    with train(trace=True) as trainer:
        with refused(StateError, "hold: found 2 ranks, expected one: transfers aren't tasks"):
            Observer(trainer).hold()
        trainer.step(*batch(0))


def test_message_of_2_gib(create_in_c: Create, tmp_path: Path) -> None:
    most = INT32_MAX // 4
    rows = most // MODEL.channels + 1
    with large_checkpoint(tmp_path / "large.bin", rows) as large:
        start = f"params/wte: found {rows * MODEL.channels} elements, expected at most {most} on 2 ranks"
        with refused(InvalidArgumentError, start):
            create_in_c(checkpoint=prototypes.c_string("checkpoint", large), batch_size=1)


def test_checkpoint_that_one_rank_lacks(runtime: Runtime, create_in_c: Create) -> None:
    """All repeat the sentence of the last one."""
    lacking = {"checkpoint": b"/nowhere/model.bin"} if runtime.rank == 1 else {}
    with refused(FileError, "rank 1 on ", ": /nowhere/model.bin: open: No such file or directory", errno=errno.ENOENT):
        create_in_c(**lacking, batch_size=1)
    create_in_c(batch_size=1)


def test_checkpoint(runtime: Runtime, train: Callable[..., Trainer], shared: Path) -> None:
    with train() as trainer:
        trainer.step(*batch(0))
        trainer.save_checkpoint(shared / "model.bin")
        wait(runtime)
        parameters = read_checkpoint(shared / "model.bin").parameters
        for name in trainer.tensor_names("params"):
            assert compare_bits(trainer.tensor("params", name), parameters[name]) is None, name
    wait(runtime)


def test_state_that_is_saved_while_steps_are_in_flight(
    runtime: Runtime, train: Callable[..., Trainer], shared: Path
) -> None:
    with train() as trainer:
        for number in range(2):
            trainer.submit(*batch(number))
        trainer.save_state(shared, batches=2, keep=1)
        trainer.submit(*batch(2))
        trainer.wait_saved()
    wait(runtime)
    assert training_state(shared).ranks == 2
    saved = read_training_state(shared)
    with train(resume=shared) as trainer:
        for group, arrays in (("params", saved.params), ("m", saved.m), ("v", saved.v)):
            for name in trainer.tensor_names(group):
                assert compare_bits(arrays[name], trainer.tensor(group, name)) is None, f"{group}/{name}"
    with train() as again:
        for number in range(2):
            again.submit(*batch(number))
        for name in again.tensor_names("params"):
            assert compare_bits(again.tensor("params", name), saved.params[name]) is None, name
    wait(runtime)


def wait(runtime: Runtime) -> None:
    if runtime.comm:
        runtime.comm.Barrier()
