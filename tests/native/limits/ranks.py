"""What only several ranks can show: refusals on all of them together, and what they save together."""

from __future__ import annotations

import errno
import tempfile
from functools import partial
from pathlib import Path

from starpullm.binding import prototypes
from starpullm.checks.cases import find_record
from starpullm.checks.observer import Observer
from starpullm.checks.place import Place
from starpullm.checks.result import Result
from starpullm.checks.training import new_trainer, own_batch
from starpullm.errors import FileError, InvalidArgumentError, StateError
from starpullm.files.checkpoint import read_checkpoint
from starpullm.resume import training_state

from ..readers.training_state import read_training_state
from .checkpoints import large_checkpoint
from .options import MODEL, TINY, create_as_is
from .processes import NO_FORMAT
from .statements import Statements

_INT32_MAX = 2**31 - 1


def refused_over_ranks(place: Place, *, record: str, seed: int) -> Result:
    """Try what several ranks can't do, and what fails on one of them alone."""
    statements = Statements("limits over ranks")
    ranks, golden = place.runtime.ranks, find_record(record)
    with new_trainer(place, golden, keep_activations=False, trace=True) as trainer:
        statements.refused(
            "a hold",
            StateError,
            f"hold: found {ranks} ranks, expected one: transfers aren't tasks",
            Observer(trainer).hold,
        )
        statements.allowed("a step", partial(trainer.step, *own_batch(trainer, seed, 0)))
    path = prototypes.c_string("checkpoint", place.checkpoint(TINY))
    for instruments in (1, 2, 3):
        kind = InvalidArgumentError
        sentence = f"instruments: found audit or poison on {ranks} ranks, expected one: transfers aren't tasks"
        if instruments & 1 and str(place.runtime.partition) != "1x1":
            sentence = (
                f"instruments: found the audit on partition {place.runtime.partition}, expected 1x1: pages are open to "
                "all threads"
            )
        call = partial(create_as_is, place.runtime, checkpoint=path, trace=1, instruments=instruments)
        statements.refused(f"instruments {instruments}", kind, sentence, call)
    for batch_size, sub_batches in ((2**63 - 1, 1), (_INT32_MAX, _INT32_MAX)):
        statements.refused(
            f"{sub_batches} of {batch_size} on each rank",
            InvalidArgumentError,
            f"batch_size, sub_batches: found {batch_size} and {sub_batches} on each of {ranks} ranks, expected at most "
            f"{_INT32_MAX // 3} sub-batches on all ranks together",
            partial(create_as_is, place.runtime, checkpoint=path, batch_size=batch_size, sub_batches=sub_batches),
        )
    _check_large_messages(statements, place)
    _check_one_rank_alone(statements, place)
    statements.allowed("a trainer after these", partial(create_as_is, place.runtime, checkpoint=path, batch_size=1))
    return statements.result()


def _check_large_messages(statements: Statements, place: Place) -> None:
    most = _INT32_MAX // 4
    rows = most // MODEL.channels + 1
    with (
        tempfile.TemporaryDirectory(dir=place.directory, prefix=NO_FORMAT) as directory,
        large_checkpoint(Path(directory, "large.bin"), rows) as large,
    ):
        statements.refused(
            "a message of 2 GiB",
            InvalidArgumentError,
            f"params/wte: found {rows * MODEL.channels} elements, expected at most {most} on {place.runtime.ranks} "
            "ranks: MPI has no larger messages",
            partial(create_as_is, place.runtime, checkpoint=prototypes.c_string("checkpoint", large), batch_size=1),
        )


def _check_one_rank_alone(statements: Statements, place: Place) -> None:
    """Let the last rank have no checkpoint: all repeat its sentence."""
    last = place.runtime.ranks - 1
    missing = "/nowhere/model.bin"
    own = place.runtime.rank == last
    path = prototypes.c_string("checkpoint", missing if own else place.checkpoint(TINY))
    statements.refused(
        "a checkpoint that one rank lacks",
        FileError,
        f"rank {last} on *: {missing}: open: No such file or directory",
        partial(create_as_is, place.runtime, checkpoint=path, batch_size=1),
        errno.ENOENT,
    )


def saved_over_ranks(place: Place, *, record: str, seed: int) -> Result:
    """Save a state of several ranks while steps are in flight, and read it by the package's reader and by resuming."""
    statements = Statements("what several ranks save")
    comm, golden = place.runtime.comm, find_record(record)
    with tempfile.TemporaryDirectory(dir=place.directory, prefix=NO_FORMAT) as own:
        states = Path(comm.bcast(own) if comm else own)
        with new_trainer(place, golden, keep_activations=False) as trainer:
            for number in range(2):
                trainer.submit(*own_batch(trainer, seed, number))
            trainer.save_state(states, batches=2, keep=1)
            trainer.submit(*own_batch(trainer, seed, 2))
            trainer.wait_saved()
            trainer.save_checkpoint(states / "model.bin")
            _wait(place)
            checkpoint = read_checkpoint(states / "model.bin").parameters
            for name in trainer.tensor_names("params"):
                statements.same_bits(f"{name} of the checkpoint", trainer.tensor("params", name), checkpoint[name])
        _wait(place)
        statements.equal("ranks that saved", place.runtime.ranks, training_state(states).ranks)
        saved = read_training_state(states)
        with new_trainer(place, golden, resume=states, keep_activations=False) as trainer:
            for group, arrays in (("params", saved.params), ("m", saved.m), ("v", saved.v)):
                for name in trainer.tensor_names(group):
                    statements.same_bits(f"{group}/{name}", arrays[name], trainer.tensor(group, name))
        with new_trainer(place, golden, keep_activations=False) as again:
            for number in range(2):
                again.submit(*own_batch(again, seed, number))
            for name in again.tensor_names("params"):
                statements.same_bits(f"{name} after two steps", again.tensor("params", name), saved.params[name])
        _wait(place)
    return statements.result()


def _wait(place: Place) -> None:
    if place.runtime.comm:
        place.runtime.comm.Barrier()
