"""What is saved is what was trained, and a save that fails leaves what was there before.

Training states are compared with the trainer by the tests' own reader, which shares no code with the library.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from starpullm.checks.place import Place, limited_files
from starpullm.checks.result import Result
from starpullm.checks.training import new_trainer, own_batch
from starpullm.data.generator import generate_checkpoint
from starpullm.errors import FileError, FormatError, InvalidArgumentError, OutOfMemoryError
from starpullm.files.checkpoint import read_checkpoint
from starpullm.files.model import num_parameters
from starpullm.instruments import Instruments
from starpullm.resume import training_state
from starpullm.trainer import Trainer

from ..readers.state_file import StateFile
from ..readers.training_state import read_training_state
from .checkpoints import HEADER, opening
from .options import MODEL, TINY, B, T
from .processes import NO_FORMAT, working_folder
from .statements import Statements

_OLD = b"what was there before"
_LOCK_BYTES = 128
_SLOW_TASK_US = 5000
_LAYERS_OF_TWO_BLOCKS = 5
_FILE = "rank-00000-of-00001.state"
_THREADS = 4
_ATTRIBUTES_BYTES = 64
"""At least ``sizeof(pthread_attr_t)``."""
_TEMPORARY = ".rank-00000-of-00001.tmp"
_RATES: dict[str, Any] = {"learning_rate": 1e-3, "betas": (0.8, 0.9), "eps": 1e-7, "weight_decay": 0.25}


def saved_and_read(place: Place, *, seed: int) -> Result:
    """Save states and checkpoints at many moments, read them, and resume from them; on one rank."""
    statements = Statements("what is saved")
    with tempfile.TemporaryDirectory(dir=place.directory, prefix=NO_FORMAT) as directory:
        states = Path(directory, "states")
        options: dict[str, Any] = {"batch_size": B, "seq_len": T, "sub_batches": B, "steps_in_flight": 3, **_RATES}
        with Trainer(place.runtime, place.checkpoint(TINY), **options) as trainer:
            _check_saves_in_a_row(statements, trainer, states, seed)
            _check_checkpoints(statements, trainer, Path(directory, "model.bin"), seed)
        _check_description(statements, states)
        with Trainer(place.runtime, resume=states, batch_size=B, seq_len=T, **_RATES) as trainer:
            _check_state(statements, "after resuming", trainer, states)
            sentence = (
                f"{states / _step(4)}: holds the state of another run (run {read_training_state(states).run:#x} of 1 "
                "ranks), expected a folder without one, or with one of this run (run 0x* of 1 ranks)"
            )
            call = partial(trainer.save_state, states)
            statements.refused("a step that another run has saved", InvalidArgumentError, sentence, call)
            trainer.submit(*own_batch(trainer, seed, 4))
            trainer.save_state(states, batches=9, keep=1)
            trainer.submit(*own_batch(trainer, seed, 3))
            trainer.wait_saved()
            statements.equal("folders after keep 1", [".lock", _step(5)], _names(states))
        _check_newer_states(statements, place, states)
        _check_mark_of_blas(statements, place, states, seed)
        _check_large_table(statements, place, Path(directory), seed)
    return statements.result()


def failing_saves(place: Place, *, seed: int) -> Result:
    """Save where that is not possible; what was there before stays, and training goes on; on one rank."""
    statements = Statements("saves that fail")
    with (
        tempfile.TemporaryDirectory(dir=place.directory, prefix=NO_FORMAT) as directory,
        new_trainer(place, TINY, keep_activations=False) as trainer,
    ):
        trainer.submit(*own_batch(trainer, seed, 0))
        _check_impossible_paths(statements, trainer, Path(directory))
        _check_full_disk(statements, trainer, Path(directory))
        _check_no_thread(statements, trainer, Path(directory, "alone"))
        _check_failing_states(statements, trainer, Path(directory, "states"))
        _check_folders_in_the_way(statements, trainer, Path(directory))
        _check_what_newer_states_replace(statements, trainer, Path(directory, "replaced"))
        _check_lock(statements, place, Path(directory, "locked"))
        _check_full_disk_later(statements, place, Path(directory, "later"), seed)
        statements.allowed("a step after failed saves", partial(trainer.step, *own_batch(trainer, seed, 1)))
    return statements.result()


def _step(number: int) -> str:
    return f"step-{number:012}"


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _check_state(statements: Statements, when: str, trainer: Trainer, folder: Path) -> None:
    """State that the newest state in a folder has the trainer's tensors."""
    state = read_training_state(folder)
    for group, arrays in (("params", state.params), ("m", state.m), ("v", state.v)):
        for name in trainer.tensor_names(group):
            statements.same_bits(f"{group}/{name} {when}", trainer.tensor(group, name), arrays[name])


def _check_saves_in_a_row(statements: Statements, trainer: Trainer, states: Path, seed: int) -> None:
    for number in range(3):
        trainer.submit(*own_batch(trainer, seed, number))
    trainer.save_state(states, batches=3, seed=-3, data_id=2**64 - 1)
    trainer.wait_saved()
    _check_other_threads(statements, trainer)
    _check_state(statements, "while steps are in flight", trainer, states)
    trainer.submit(*own_batch(trainer, seed, 3))
    trainer.save_state(states, batches=4)
    trainer.evaluate(*own_batch(trainer, seed, 0))
    trainer.wait_saved()
    _check_state(statements, "before an evaluation", trainer, states)
    for batches in (5, 6):  # without a step between: the same folder is written again
        trainer.save_state(states, batches=batches, seed=-3, data_id=2**64 - 1)
    trainer.wait_saved()
    _check_state(statements, "after an evaluation, twice in a row", trainer, states)
    statements.equal("folders", [".lock", _step(3), _step(4)], _names(states))
    statements.equal("files", [_FILE], _names(states / _step(4)))


def _check_large_table(statements: Statements, place: Place, directory: Path, seed: int) -> None:
    """Save and resume a model whose tensors fill more than one block of a state's table."""
    model = replace(MODEL, num_layers=_LAYERS_OF_TWO_BLOCKS)
    checkpoint, states = directory / "deep.bin", directory / "deep"
    generate_checkpoint(checkpoint, model, seed=1)
    with Trainer(place.runtime, checkpoint, batch_size=B, seq_len=T, **_RATES) as trainer:
        trainer.submit(*own_batch(trainer, seed, 0))
        trainer.save_state(states)
        trainer.wait_saved()
        _check_state(statements, "with many layers", trainer, states)
    with Trainer(place.runtime, resume=states, batch_size=B, seq_len=T, **_RATES) as trainer:
        _check_state(statements, "with many layers, after resuming", trainer, states)


def _check_other_threads(statements: Statements, trainer: Trainer) -> None:
    """Wait again for a save that has ended, while its thread's number is that of a thread of somebody else's."""
    process = ctypes.CDLL(None)
    threads = [ctypes.c_ulong() for _ in range(_THREADS)]
    for thread in threads:  # one of them gets the memory, and so the number, of the thread that saved
        started = process.pthread_create(ctypes.byref(thread), None, process.sched_yield, None)
        statements.equal("the start of a thread", 0, started)
    statements.allowed("another wait for the same save", trainer.wait_saved)
    for thread in threads:
        statements.equal("a join of another thread", 0, process.pthread_join(thread, None))


def _check_no_thread(statements: Statements, trainer: Trainer, folder: Path) -> None:
    """Save where no thread can start, as its stack would need more than the address space; then where one can."""
    process = ctypes.CDLL(None)
    before, attributes = (ctypes.create_string_buffer(_ATTRIBUTES_BYTES) for _ in range(2))
    for buffer in (before, attributes):
        statements.equal("the settings of threads", 0, process.pthread_getattr_default_np(buffer))
    statements.equal("a stack", 0, process.pthread_attr_setstacksize(attributes, ctypes.c_size_t(2**62)))
    statements.equal("that stack for threads", 0, process.pthread_setattr_default_np(attributes))
    sentence = f"the thread that saves could not be started (error {errno.EAGAIN})"
    statements.refused("a save without a thread", OutOfMemoryError, sentence, partial(trainer.save_state, folder))
    statements.equal("the former stack", 0, process.pthread_setattr_default_np(before))
    statements.equal("names after it", [".lock"], _names(folder))
    trainer.save_state(folder)
    trainer.wait_saved()
    _check_state(statements, "after a save without a thread", trainer, folder)


def _check_checkpoints(statements: Statements, trainer: Trainer, path: Path, seed: int) -> None:
    """Save twice: the second is written over the first."""
    for number in range(2):
        trainer.save_checkpoint(path)
        found = read_checkpoint(path)
        for name in trainer.tensor_names("params"):
            statements.same_bits(f"checkpoint {number}, {name}", trainer.tensor("params", name), found.parameters[name])
        statements.equal(f"sizes of checkpoint {number}", trainer.config, found.config)
        trainer.evaluate(*own_batch(trainer, seed, 0))
    content = path.read_bytes()
    with working_folder(path.parent):
        trainer.save_checkpoint("relative.bin")
    relative = path.with_name("relative.bin")
    statements.equal("the file of a path without a folder", True, relative.read_bytes() == content)
    relative.unlink()
    statements.equal("names beside it", ["model.bin", "states"], _names(path.parent))
    statements.allowed("opening what was saved", opening(trainer.runtime, path))


def _check_description(statements: Statements, states: Path) -> None:
    found, contents = training_state(states), read_training_state(states)
    expected = {"step": 4, "batches": 6, "batch_size": B, "seq_len": T, "seed": -3, "data_id": 2**64 - 1}
    for name, value in expected.items():
        statements.equal(f"{name}, as the library reads it", value, getattr(found, name))
        statements.equal(f"{name}, as the package reads it", value, getattr(contents, name))
    statements.equal("sizes", MODEL, found.config)
    statements.equal("path", states / _step(4), found.path)
    statements.equal("ranks", 1, found.ranks)
    statements.equal("passed over", "", found.passed_over)
    statements.equal("strict", True, found.strict)
    rates = (contents.learning_rate, (contents.beta1, contents.beta2), contents.eps, contents.weight_decay)
    statements.equal("rates", rates, (found.learning_rate, found.betas, found.eps, found.weight_decay))
    given = [1e-3, 0.8, 0.9, 1e-7, 0.25]
    statements.equal(
        "rates that were given", given, [float(f"{rate:.7g}") for rate in (rates[0], *rates[1], *rates[2:])]
    )


def _check_newer_states(statements: Statements, place: Place, states: Path) -> None:
    """Claim and save into a folder with a newer state, as a run would that began before the other one saved it."""
    sentence = (
        f"{states}: holds the state after step 5, newer than step 0 of this run, expected a folder without newer states"
    )
    with new_trainer(place, TINY, keep_activations=False) as trainer:
        for what, call in (("claiming", trainer.claim_directory), ("saving into", trainer.save_state)):
            refusal = partial(call, states)
            statements.refused(f"{what} a folder with a newer state", InvalidArgumentError, sentence, refusal)
            state = states / _step(5)
            of_a_state = f"{state}: is a training state, expected the folder that holds states"
            statements.refused(f"{what} a state", InvalidArgumentError, of_a_state, partial(call, state))
            statements.equal("names in the state", [_FILE], _names(state))
        for number in (-1, 2**64, 2**64 + 5):
            statements.refused(
                f"data_id {number}",
                InvalidArgumentError,
                f"data_id: found {number}, expected an integer from 0 to 2^64 - 1",
                partial(trainer.save_state, states, data_id=number),
            )


def _check_mark_of_blas(statements: Statements, place: Place, states: Path, seed: int) -> None:
    """Resume from a state that a BLAS took part in: it stays marked, although what goes on is strict."""
    path = states / _step(5) / _FILE
    StateFile.read(path).with_numbers({"matmuls by BLAS": 1}).write(path)
    statements.equal("a marked state is strict", False, training_state(states).strict)
    with Trainer(place.runtime, resume=states, batch_size=B, seq_len=T) as trainer:
        trainer.submit(*own_batch(trainer, seed, 5))
        trainer.save_state(states)
        trainer.wait_saved()
    statements.equal("a state after a marked one is strict", False, training_state(states).strict)


def _check_impossible_paths(statements: Statements, trainer: Trainer, directory: Path) -> None:
    file, folder, link = directory / "file", directory / "folder", directory / "link"
    file.write_bytes(_OLD)
    folder.mkdir()
    link.symlink_to("nowhere")
    missing, under = directory / "missing" / "model.bin", file / "model.bin"
    for path, sentence, number in (
        (missing, f"{missing}: open folder {missing.parent}: No such file or directory", errno.ENOENT),
        (under, f"{under}: resolve: Not a directory", errno.ENOTDIR),
        (link, f"{link}: follow the symbolic link: No such file or directory", errno.ENOENT),
    ):
        statements.refused(
            f"saving to {path.name}", FileError, sentence, partial(trainer.save_checkpoint, path), number
        )
    for name, kind in ((str(folder), "a directory"), ("/dev/null", "a character device"), ("/dev", "a directory")):
        statements.refused(
            f"saving to {kind}",
            FormatError,
            f"{name}: is {kind}, expected a regular file",
            partial(trainer.save_checkpoint, name),
        )
    for name in ("", f"{directory}/new/"):
        statements.refused(
            f"saving to {name!r}",
            InvalidArgumentError,
            f"{name}: names no file, expected the path of a file",
            partial(trainer.save_checkpoint, name),
        )
    statements.equal("the file that was there", _OLD, file.read_bytes())
    statements.equal("names after refused saves", ["file", "folder", "link"], _names(directory))


def _check_full_disk(statements: Statements, trainer: Trainer, directory: Path) -> None:
    """Let a limit on the size of files stand for a full disk; it is reached in the header, a tensor and at the end."""
    path, size = directory / "file", HEADER + 4 * num_parameters(MODEL)
    for limit in (size - 1, size // 2, HEADER - 24):
        with limited_files(limit):
            statements.refused(
                f"a checkpoint with room for {limit} bytes",
                FileError,
                f"{path}: byte {limit}: write to temporary file *: File too large",
                partial(trainer.save_checkpoint, path),
                errno.EFBIG,
            )
        statements.equal(f"the file of before, {limit}", _OLD, path.read_bytes())
    statements.equal("names after full disks", ["file", "folder", "link"], _names(directory))
    with limited_files(size):
        statements.allowed(f"a checkpoint with room for {size} bytes", partial(trainer.save_checkpoint, path))
    statements.equal("its size", size, path.stat().st_size)


def _check_full_disk_later(statements: Statements, place: Place, states: Path, seed: int) -> None:
    """Let no room be left after the file was made: a slow step keeps its tensors from being written before."""
    slow = Instruments(max_delay_us=_SLOW_TASK_US)
    with new_trainer(place, TINY, keep_activations=False, trace=True, instruments=slow) as trainer:
        trainer.submit(*own_batch(trainer, seed, 0))
        trainer.save_state(states)
        with limited_files(1):
            sentence = f"{states / _step(1) / _FILE}: byte *: write to temporary file {_TEMPORARY}: File too large"
            statements.refused("a state without room later", FileError, sentence, trainer.wait_saved, errno.EFBIG)
        statements.equal("names after it", [".lock"], _names(states))
        statements.allowed("a state after it", partial(trainer.save_state, states))
        statements.allowed("the wait for the state after it", trainer.wait_saved)


def _check_failing_states(statements: Statements, trainer: Trainer, states: Path) -> None:
    trainer.save_state(states)
    trainer.wait_saved()
    path = states / _step(1) / _FILE
    before, size = path.read_bytes(), path.stat().st_size
    with limited_files(size - 1):
        statements.refused(
            "a state without room",
            FileError,
            f"{path}: reserve {size} bytes for temporary file {_TEMPORARY}: File too large",
            partial(trainer.save_state, states),
            errno.EFBIG,
        )
    statements.equal("the state of before", before, path.read_bytes())
    path.unlink()
    path.mkdir()
    sentence = f"{path}: rename temporary file {_TEMPORARY} to it: Is a directory"
    for when, call in (("the wait", trainer.wait_saved), ("the next save", partial(trainer.save_state, states))):
        trainer.save_state(states)
        statements.refused(f"a failed save, told by {when}", FileError, sentence, call, errno.EISDIR)
        statements.allowed("a failure is told once", trainer.wait_saved)
    statements.equal("names after failed states", [_FILE], _names(path.parent))
    path.rmdir()
    statements.allowed("a state after failures", partial(trainer.save_state, states))
    statements.allowed("the wait for it", trainer.wait_saved)
    statements.equal("the state after failures", before, path.read_bytes())


def _check_folders_in_the_way(statements: Statements, trainer: Trainer, directory: Path) -> None:
    """Save states where something else has the name of what has to be written."""
    held, root = directory / "held", directory / "blocked"
    (held / ".lock").mkdir(parents=True)
    file = directory / "file"
    for what, path, sentence, number in (
        (
            "no folder above",
            directory / "missing" / "states",
            "make the folder: No such file or directory",
            errno.ENOENT,
        ),
        ("a file", file, "open the folder: Not a directory", errno.ENOTDIR),
        ("a folder as .lock", held, "open its .lock: Is a directory", errno.EISDIR),
    ):
        statements.refused(what, FileError, f"{path}: {sentence}", partial(trainer.save_state, path), number)
    for room, sentence, number in (
        (0, "File too large", errno.EFBIG),
        (_LOCK_BYTES - 1, "No space left on device", errno.ENOSPC),
    ):
        with limited_files(room):
            call = partial(trainer.save_state, root)
            statements.refused(
                f"a .lock of {room} bytes", FileError, f"{root}: write its .lock: {sentence}", call, number
            )
    state = root / _step(1)
    state.write_bytes(_OLD)
    sentence = f"{state}: open the folder: Not a directory"
    statements.refused("a file as folder", FileError, sentence, partial(trainer.save_state, root), errno.ENOTDIR)
    state.unlink()
    (state / _TEMPORARY).mkdir(parents=True)
    sentence = f"{state / _FILE}: create temporary file {_TEMPORARY} in its folder: Is a directory"
    statements.refused("a folder as file", FileError, sentence, partial(trainer.save_state, root), errno.EISDIR)
    statements.equal("names after these", [_TEMPORARY], _names(state))


def _check_what_newer_states_replace(statements: Statements, trainer: Trainer, root: Path) -> None:
    """Save where older folders hold more than states: what isn't a state stays, and what can't be removed is told."""
    older, own = root / _step(0), root / _step(1)

    def saved(what: str, keep: int = 1, sentence: str = "", number: int | None = None) -> None:
        statements.allowed(f"saving beside {what}", partial(trainer.save_state, root, keep=keep))
        if sentence:
            statements.refused(f"the wait beside {what}", FileError, sentence, trainer.wait_saved, number)
        else:
            statements.allowed(f"the wait beside {what}", trainer.wait_saved)

    older.mkdir(parents=True)
    for name in (_FILE, _TEMPORARY, "notes"):
        (older / name).write_bytes(_OLD)
    saved("notes in an older state")
    statements.equal("what is left of it", ["notes"], _names(older))
    (older / "notes").unlink()
    newer = root / _step(9)
    newer.mkdir()
    saved("an empty older folder and an empty newer one", keep=2)
    statements.equal("states after incomplete ones", [".lock", own.name, newer.name], _names(root))
    newer.rmdir()
    older.mkdir()
    (older / _FILE).mkdir()
    saved("a folder as file", sentence=f"{older}: remove {_FILE}: Is a directory", number=errno.EISDIR)
    (older / _FILE).rmdir()
    (older / _FILE).symlink_to(_FILE)
    sentence = f"{older / _FILE}: open: Too many levels of symbolic links"
    saved("a link to itself", keep=2, sentence=sentence, number=errno.ELOOP)
    (older / _FILE).unlink()
    older.rmdir()
    older.symlink_to(own.name)
    saved("a link to a state")
    statements.equal("the link is one", True, older.is_symlink())
    older.unlink()
    statements.equal("states after these", [".lock", own.name], _names(root))


def _check_lock(statements: Statements, place: Place, folder: Path) -> None:
    """Another trainer is another run."""
    holder = f"process {os.getpid()} on {socket.gethostname()[:64]}"
    sentence = f"{folder}: another run is saving into this folder ({holder}): Device or resource busy"
    with new_trainer(place, TINY, keep_activations=False) as second:
        with new_trainer(place, TINY, keep_activations=False) as first:
            statements.allowed("the first run's claim", partial(first.claim_directory, folder))
            for what, call in (("save", second.save_state), ("claim", second.claim_directory)):
                statements.refused(f"another run's {what}", FileError, sentence, partial(call, folder), errno.EBUSY)
            statements.allowed("the first run's save", partial(first.save_state, folder))
            sentence = f"{folder}: another run is saving into this folder: Device or resource busy"
            for damaged in (b"without a line", b"without a number\n"):
                (folder / ".lock").write_bytes(damaged)
                call = partial(second.save_state, folder)
                statements.refused(f"another run's save, .lock {damaged!r}", FileError, sentence, call, errno.EBUSY)
            statements.allowed("the first run's second save", partial(first.save_state, folder))
        statements.allowed("the other run's claim after the first has ended", partial(second.claim_directory, folder))
        second.step(*own_batch(second, 1, 0))
        statements.allowed("the other run's save after the first has ended", partial(second.save_state, folder))
        statements.allowed("the wait for it", second.wait_saved)
