"""What each operation of a trainer leaves that is repeated, also of those that are refused.

A leak is told with the operation's name. The suite repeats steps, whole trainers and runtimes.
"""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starpullm.binding.library import find_library
from starpullm.checks.cases import find_record
from starpullm.checks.memory import OBJECTS_KEPT_EARLY, find_growth
from starpullm.checks.observer import Observer
from starpullm.checks.place import Place, limited_files
from starpullm.checks.result import Finding, Result
from starpullm.checks.training import new_trainer, own_batch
from starpullm.errors import (
    FileError,
    FormatError,
    InvalidArgumentError,
    RuntimeFailureError,
    StarpullmError,
    StateError,
    TokenRangeError,
)
from starpullm.golden.records import GoldenRecord
from starpullm.instruments import Instruments
from starpullm.predict.plan import make_plan
from starpullm.resume import training_state
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer

from ..readers.state_file import StateFile
from .statements import judged

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

Operations = dict[str, Callable[[], object]]

OPERATIONS = partial(judged, check="growth over operations", unit="allocations", fault="operations leave memory")


def operation_growth(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> Result:
    """Compare what each operation allocates with what is freed of it; over ranks those that all ranks do together."""
    golden, runtime = find_record(record), place.runtime
    options = {"sub_batches": sub_batches, "reduction": reduction, "trace": True, "keep_activations": False}
    with (
        tempfile.TemporaryDirectory(dir=place.directory) as own,
        new_trainer(place, golden, **options) as trainer,
    ):
        directory = Path(runtime.comm.bcast(own) if runtime.comm else own)
        operations = _of_a_model(trainer, seed) | _of_files(trainer, directory, seed)
        if runtime.comm:
            operations = {name: _together(call, runtime.comm) for name, call in operations.items()}
            found = find_growth_of_each(operations, warm_up=2, repetitions=6, renewals=1, pools=True)
            return OPERATIONS(**found)
        with new_trainer(place, golden, keep_activations=False) as other:
            operations |= _of_held_tasks(trainer, seed)
            operations |= _refused_saves(trainer, other, directory)
            operations |= _of_states(place, golden, directory, trainer)
            operations |= _of_trainers(place, golden, directory, seed)
            return OPERATIONS(**find_growth_of_each(operations))


def find_growth_of_each(
    operations: Mapping[str, Callable[[], object]],
    *,
    warm_up: int = 3,
    repetitions: int = 10,
    renewals: int = 3,
    pools: bool = False,
) -> dict[str, Any]:
    """Repeat each of several operations, and find as ``find_growth`` what it leaves; a leak says whose it is.

    With ``pools`` other modules have pools that may grow in so few repetitions, as StarPU-MPI and MPI do for messages
    of ranks that are ahead. Then only what the library allocates is compared, by itself or through the C library.
    """
    findings: list[Finding] = []
    compared = 0
    of_library = (f"{find_library().name}, ", "libc.", "objects ", "file ", "threads")  # how such findings begin
    gc.collect()
    gc.freeze()  # then looking for unreachable objects, which is done for each operation, is fast
    try:
        for name, operation in operations.items():

            def repeat(count: int, call: Callable[[], object] = operation) -> None:
                for _ in range(count):
                    call()

            times = {"warm_up": warm_up, "repetitions": repetitions, "renewals": renewals}
            found = find_growth("", repeat, **times, objects_kept=OBJECTS_KEPT_EARLY)
            leaks = [leak.sentence for leak in found["findings"] if leak.sentence.startswith(of_library) or not pools]
            findings += [Finding(f"{name}: {leak}") for leak in leaks]
            compared += found["compared"]
    finally:
        gc.unfreeze()
    return {
        "compared": compared,
        "findings": findings,
        "note": f"{len(operations)} operations, {repetitions} times each",
    }


def _together(call: Callable[[], object], comm: Comm) -> Callable[[], None]:
    """Return a function after whose call no rank is ahead of another one."""

    def called() -> None:
        call()
        comm.Barrier()

    return called


def _refused(call: Callable[[], object], kind: type[StarpullmError]) -> Callable[[], None]:
    """Return a function that makes a call which has to be refused."""

    def refused() -> None:
        try:
            call()
        except kind:
            return
        raise RuntimeFailureError(f"{call}: nothing was refused, expected {kind.__name__}")

    return refused


def _of_a_model(trainer: Trainer, seed: int) -> Operations:
    batch = own_batch(trainer, seed, 0)
    outside = batch[0] + trainer.config.vocab_size

    def traced(call: Callable[[], object]) -> Callable[[], None]:
        def call_and_clear() -> None:
            call()
            trainer.clear_trace()

        return call_and_clear

    def read_a_trace() -> None:
        trainer.submit(*batch)
        trainer.trace()

    def read_a_gradient() -> None:
        trainer.submit(*batch)
        trainer.tensor("grads", "qkvw")

    return {
        "an evaluation": traced(partial(trainer.evaluate, *batch)),
        "a forward pass": traced(partial(trainer.probabilities, batch[0], 0, 0)),
        "a step whose loss nobody reads": traced(partial(trainer.submit, *batch)),
        "a trace": traced(read_a_trace),
        "reading gradients": traced(read_a_gradient),
        "a step with tokens out of range": _refused(partial(trainer.submit, outside, batch[1]), TokenRangeError),
    }


def _of_files(trainer: Trainer, directory: Path, seed: int) -> Operations:
    batch = own_batch(trainer, seed, 1)
    states = directory / "states"

    def save_while_training() -> None:
        trainer.submit(*batch)
        trainer.save_state(states, keep=1)
        trainer.submit(*batch)
        trainer.wait_saved()
        trainer.clear_trace()

    return {
        "a checkpoint": partial(trainer.save_checkpoint, directory / "model.bin"),
        "a state that is saved while steps are in flight": save_while_training,
    }


def _of_held_tasks(trainer: Trainer, seed: int) -> Operations:
    batch, observer = own_batch(trainer, seed, 0), Observer(trainer)

    def hold_and(let_go: Callable[[], object]) -> Callable[[], None]:
        def held() -> None:
            observer.hold()
            trainer.submit(*batch)
            let_go()
            trainer.wait()
            trainer.clear_trace()

        return held

    return {
        "tasks held back": hold_and(observer.release),
        "held tasks that are waited for": hold_and(trainer.wait),
        "a trace while tasks are held": hold_and(_refused(trainer.trace, StateError)),
    }


def _refused_saves(trainer: Trainer, other: Trainer, directory: Path) -> Operations:
    file, folder = directory / "file", directory / "folder"
    file.touch()
    folder.mkdir()
    impossible, locked = directory / "impossible", directory / "locked"
    trainer.save_state(locked)
    trainer.wait_saved()
    trainer.save_state(impossible)
    trainer.wait_saved()
    (impossible_file,) = training_state(impossible).path.iterdir()
    impossible_file.unlink()
    impossible_file.mkdir()

    def on_a_full_disk(save: Callable[[], object]) -> Callable[[], None]:
        def limited() -> None:
            with limited_files(1024):
                _refused(save, FileError)()

        return limited

    def save_impossible_state() -> None:
        trainer.save_state(impossible)
        _refused(trainer.wait_saved, FileError)()

    return {
        "a checkpoint in a missing folder": _refused(
            partial(trainer.save_checkpoint, directory / "missing" / "model.bin"), FileError
        ),
        "a checkpoint below a file": _refused(partial(trainer.save_checkpoint, file / "model.bin"), FileError),
        "a checkpoint in place of a folder": _refused(partial(trainer.save_checkpoint, folder), FormatError),
        "a checkpoint on a full disk": on_a_full_disk(partial(trainer.save_checkpoint, directory / "full.bin")),
        "a state on a full disk": on_a_full_disk(partial(trainer.save_state, directory / "full")),
        "a state in a missing folder": _refused(
            partial(trainer.save_state, directory / "missing" / "states"), FileError
        ),
        "a state below a file": _refused(partial(trainer.save_state, file), FileError),
        "a state in another run's folder": _refused(partial(other.save_state, locked), FileError),
        "a state whose file is a folder": save_impossible_state,
        "a state of which none is kept": _refused(partial(trainer.save_state, locked, keep=0), InvalidArgumentError),
    }


def _of_states(place: Place, golden: GoldenRecord, directory: Path, trainer: Trainer) -> Operations:
    """Describe states and resume from them: a good one, one that only its checksums show as damaged, others."""
    good, damaged, passed_over = (directory / name for name in ("good", "damaged", "passed-over"))
    trainer.save_state(good)
    trainer.wait_saved()
    (path,) = training_state(good).path.iterdir()
    state = StateFile.read(path)
    below = Path(path.parent.name, path.name)
    shutil.copytree(path.parent, damaged / path.parent.name)
    _, _, _, (values, *_) = state.entry(0)
    state.with_byte(values).write(damaged / below)
    shutil.copytree(path.parent, passed_over / path.parent.name)
    newest = passed_over / "step-999999999999"
    newest.mkdir()
    (newest / path.name).write_bytes(b"")
    resuming = partial(_open_and_close, place, golden)
    return {
        "a description of a state": partial(training_state, good),
        "a description of a folder whose newest state is damaged": partial(training_state, passed_over),
        "a description of a folder without a state": _refused(
            partial(training_state, directory / "folder"), FormatError
        ),
        "a description of no folder": _refused(partial(training_state, directory / "missing"), FileError),
        "a resumed trainer": partial(resuming, resume=good),
        "a trainer from a damaged state": _refused(partial(resuming, resume=damaged), FormatError),
        "a trainer from a folder without a state": _refused(
            partial(resuming, resume=directory / "folder"), FormatError
        ),
    }


def _of_trainers(place: Place, golden: GoldenRecord, directory: Path, seed: int) -> Operations:
    opening = partial(_open_and_close, place, golden)
    checkpoint = place.checkpoint(golden)
    truncated = directory / "truncated.bin"
    truncated.write_bytes(checkpoint.read_bytes()[:-4])
    missing = directory / "missing.bin"

    def observed(instruments: Instruments) -> Callable[[], None]:
        def observe() -> None:
            with new_trainer(place, golden, keep_activations=False, trace=True, instruments=instruments) as trainer:
                trainer.submit(*own_batch(trainer, seed, 0))
                Observer(trainer).findings()

        return observe

    sizes: dict[str, Any] = {"batch_size": golden.batch_size, "seq_len": golden.seq_len, "sub_batches": 1}
    operations: Operations = {
        "a plan": partial(make_plan, golden.model, **sizes, ranks=2, reduction="tree"),
        "a trainer": partial(opening, checkpoint),
        "a trainer from no checkpoint": _refused(partial(opening, missing), FileError),
        "a trainer from a truncated checkpoint": _refused(partial(opening, truncated), FormatError),
        "a trainer with too long sequences": _refused(
            partial(opening, checkpoint, seq_len=golden.model.max_seq_len + 1), InvalidArgumentError
        ),
        "a trainer with too many sub-batches": _refused(
            partial(opening, checkpoint, sub_batches=golden.batch_size + 1), InvalidArgumentError
        ),
        "a poisoned trainer": observed(Instruments(poison=True)),
        "a delayed trainer": observed(Instruments(max_delay_us=1)),
        "a second runtime": _refused(lambda: Runtime().close(), StateError),
    }
    if str(place.runtime.partition) == "1x1":
        operations["an audited trainer"] = observed(Instruments(audit=True))
    return operations


def _open_and_close(place: Place, golden: GoldenRecord, checkpoint: Path | None = None, **options: Any) -> None:
    sizes: dict[str, Any] = {"batch_size": golden.batch_size, "seq_len": golden.seq_len}
    Trainer(place.runtime, checkpoint, **{**sizes, **options}).close()
