"""What is saved is what was trained, and a save that fails leaves what was there before.

Training states are compared with the trainer by the tests' own reader, which shares no code with the library.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from starpullm.checks.bits import compare_bits
from starpullm.checks.check_context import limited_files
from starpullm.data.generator import generate_checkpoint
from starpullm.errors import FileError, FormatError, InvalidArgumentError, OutOfMemoryError
from starpullm.files.checkpoint import read_checkpoint
from starpullm.files.model import num_parameters
from starpullm.instruments import Instruments
from starpullm.resume import training_state
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer

from ..children import names_in
from ..readers.state_file import StateFile
from ..readers.training_state import read_training_state
from .refusals import refused
from .sizes import MODEL, B, T, batch
from .test_checkpoints import HEADER

pytestmark = [pytest.mark.child("one worker", preloads="allocations"), pytest.mark.usefixtures("nothing_left")]

Train = Callable[..., Trainer]

FILE = "rank-00000-of-00001.state"
TEMPORARY = ".rank-00000-of-00001.tmp"
OLD = b"what was there before"
RATES: dict[str, Any] = {"learning_rate": 1e-3, "betas": (0.8, 0.9), "eps": 1e-7, "weight_decay": 0.25}

_LOCK_BYTES = 128
_SLOW_TASK_US = 5000
_LAYERS_OF_TWO_BLOCKS = 5
_THREADS = 4
_ATTRIBUTES_BYTES = 64
"""At least ``sizeof(pthread_attr_t)``."""


def step(number: int) -> str:
    return f"step-{number:012}"


def save(trainer: Trainer, folder: Path, **options: Any) -> None:
    trainer.save_state(folder, **options)
    trainer.wait_saved()


def assert_saved(trainer: Trainer, folder: Path) -> None:
    """Fail unless the newest state in a folder has the trainer's tensors."""
    state = read_training_state(folder)
    for group, arrays in (("params", state.params), ("m", state.m), ("v", state.v)):
        for name in trainer.tensor_names(group):
            assert compare_bits(trainer.tensor(group, name), arrays[name]) is None, f"{group}/{name}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder; a path that is taken for a format would change."""
    folder = tmp_path / "100%d%s "
    folder.mkdir()
    return folder


@pytest.fixture
def trainer(train: Train) -> Iterator[Trainer]:
    """One that has submitted a step."""
    with train() as trainer:
        trainer.submit(*batch(0))
        yield trainer


@pytest.fixture
def saved(train: Train, folder: Path) -> Path:
    """Return a folder with the states after steps 3 and 4, of six batches."""
    states = folder / "states"
    with train(sub_batches=B, steps_in_flight=3, keep_activations=True, **RATES) as trainer:
        for number in range(3):
            trainer.submit(*batch(number))
        save(trainer, states, batches=3, seed=-3, data_id=2**64 - 1)
        assert_saved(trainer, states)
        trainer.submit(*batch(3))
        trainer.save_state(states, batches=4)
        trainer.evaluate(*batch(0))
        trainer.wait_saved()
        assert_saved(trainer, states)
        for batches in (5, 6):  # without a step between: the same folder is written again
            trainer.save_state(states, batches=batches, seed=-3, data_id=2**64 - 1)
        trainer.wait_saved()
        assert_saved(trainer, states)
    return states


# ---- What is saved ----


def test_description(saved: Path) -> None:
    assert names_in(saved) == [".lock", step(3), step(4)]
    assert names_in(saved / step(4)) == [FILE]
    found, contents = training_state(saved), read_training_state(saved)
    expected = {"step": 4, "batches": 6, "batch_size": B, "seq_len": T, "seed": -3, "data_id": 2**64 - 1}
    for description in (found, contents):
        assert {name: getattr(description, name) for name in expected} == expected
    assert (found.config, found.path, found.ranks, found.passed_over) == (MODEL, saved / step(4), 1, "")
    assert found.arithmetic == "strict"
    rates = [contents.learning_rate, contents.beta1, contents.beta2, contents.eps, contents.weight_decay]
    assert [found.learning_rate, *found.betas, found.eps, found.weight_decay] == rates
    assert [float(f"{rate:.7g}") for rate in rates] == [1e-3, 0.8, 0.9, 1e-7, 0.25]


def test_resuming(train: Train, saved: Path) -> None:
    with train(resume=saved, **RATES) as trainer:
        assert_saved(trainer, saved)
        run = f"{read_training_state(saved).run:#x}"
        start = f"{saved / step(4)}: holds the state of another run (run {run} of 1 ranks)"
        with refused(InvalidArgumentError, start, "or with one of this run (run 0x"):
            trainer.save_state(saved)
        trainer.submit(*batch(4))
        trainer.save_state(saved, batches=9, keep=1)
        trainer.submit(*batch(3))
        trainer.wait_saved()
    assert names_in(saved) == [".lock", step(5)]


def test_table_of_two_blocks(runtime: Runtime, folder: Path) -> None:
    checkpoint, states = folder / "deep.bin", folder / "deep"
    generate_checkpoint(checkpoint, replace(MODEL, num_layers=_LAYERS_OF_TWO_BLOCKS), seed=1)
    with Trainer(runtime, checkpoint, batch_size=B, seq_len=T, **RATES) as trainer:
        trainer.submit(*batch(0))
        save(trainer, states)
        assert_saved(trainer, states)
    with Trainer(runtime, resume=states, batch_size=B, seq_len=T, **RATES) as trainer:
        assert_saved(trainer, states)


def test_mark_of_blas(train: Train, saved: Path) -> None:
    """A state that a BLAS took part in stays marked, although what goes on is strict."""
    path = saved / step(4) / FILE
    StateFile.read(path).with_numbers({"arithmetic": 1}).write(path)
    assert training_state(saved).arithmetic == "none"
    with train(resume=saved) as trainer:
        trainer.submit(*batch(5))
        save(trainer, saved)
    assert training_state(saved).step == 5
    assert training_state(saved).arithmetic == "none"


def test_checkpoints(trainer: Trainer, folder: Path, monkeypatch: pytest.MonkeyPatch, runtime: Runtime) -> None:
    """The second is written over the first."""
    path = folder / "model.bin"
    for _ in range(2):
        trainer.save_checkpoint(path)
        found = read_checkpoint(path)
        assert found.config == trainer.config
        for name in trainer.tensor_names("params"):
            assert compare_bits(trainer.tensor("params", name), found.parameters[name]) is None, name
        trainer.evaluate(*batch(0))
    monkeypatch.chdir(folder)
    trainer.save_checkpoint("relative.bin")
    assert (folder / "relative.bin").read_bytes() == path.read_bytes()
    assert names_in(folder) == ["model.bin", "relative.bin"]
    Trainer(runtime, path, batch_size=B, seq_len=T).close()


def test_wait_while_other_threads_run(trainer: Trainer, folder: Path) -> None:
    """Wait again for a save that has ended, while its thread's number is that of a thread of somebody else's."""
    save(trainer, folder)
    process = ctypes.CDLL(None)
    threads = [ctypes.c_ulong() for _ in range(_THREADS)]
    for thread in threads:  # one of them gets the memory, and so the number, of the thread that saved
        assert process.pthread_create(ctypes.byref(thread), None, process.sched_yield, None) == 0
    trainer.wait_saved()
    assert [process.pthread_join(thread, None) for thread in threads] == [0] * _THREADS


# ---- Paths and folders where nothing can be saved ----


@pytest.mark.parametrize(
    ("name", "sentence", "number"),
    [
        ("missing/model.bin", "open folder {folder}/missing: No such file or directory", errno.ENOENT),
        ("file/model.bin", "resolve: Not a directory", errno.ENOTDIR),
        ("link", "follow the symbolic link: No such file or directory", errno.ENOENT),
    ],
)
def test_path_that_leads_nowhere(trainer: Trainer, folder: Path, name: str, sentence: str, number: int) -> None:
    (folder / "file").write_bytes(OLD)
    (folder / "link").symlink_to("nowhere")
    path = folder / name
    with refused(FileError, f"{path}: {sentence.format(folder=folder)}", errno=number):
        trainer.save_checkpoint(path)
    assert (folder / "file").read_bytes() == OLD
    assert names_in(folder) == ["file", "link"]


@pytest.mark.parametrize(("name", "kind"), [("", "a directory"), ("/dev/null", "a character device")])
def test_path_of_no_regular_file(trainer: Trainer, folder: Path, name: str, kind: str) -> None:
    path = folder / name
    with refused(FormatError, f"{path}: is {kind}, expected a regular file"):
        trainer.save_checkpoint(path)
    assert names_in(folder) == []


@pytest.mark.parametrize("name", ["", "/nowhere/new/"])
def test_path_that_names_no_file(trainer: Trainer, name: str) -> None:
    with refused(InvalidArgumentError, f"{name}: names no file, expected the path of a file"):
        trainer.save_checkpoint(name)


@pytest.mark.parametrize(
    ("name", "sentence", "number"),
    [
        ("missing/states", "make the folder: No such file or directory", errno.ENOENT),
        ("file", "open the folder: Not a directory", errno.ENOTDIR),
        ("held", "open its .lock: Is a directory", errno.EISDIR),
    ],
)
def test_folder_that_is_none(trainer: Trainer, folder: Path, name: str, sentence: str, number: int) -> None:
    (folder / "file").write_bytes(OLD)
    (folder / "held" / ".lock").mkdir(parents=True)
    with refused(FileError, f"{folder / name}: {sentence}", errno=number):
        trainer.save_state(folder / name)


def test_something_else_in_place_of_a_state(trainer: Trainer, folder: Path) -> None:
    state = folder / step(1)
    state.write_bytes(OLD)
    with refused(FileError, f"{state}: open the folder: Not a directory", errno=errno.ENOTDIR):
        trainer.save_state(folder)
    state.unlink()
    (state / TEMPORARY).mkdir(parents=True)
    start = f"{state / FILE}: create temporary file {TEMPORARY} in its folder: Is a directory"
    with refused(FileError, start, errno=errno.EISDIR):
        trainer.save_state(folder)
    assert names_in(state) == [TEMPORARY]


def test_folder_with_a_newer_state(train: Train, saved: Path) -> None:
    """As a run would save that began before the other one saved it."""
    with train() as trainer:
        for call in (trainer.claim_directory, trainer.save_state):
            with refused(
                InvalidArgumentError, f"{saved}: holds the state after step 4, newer than step 0 of this run,"
            ):
                call(saved)
            with refused(
                InvalidArgumentError, f"{saved / step(4)}: is a training state, expected the folder that holds"
            ):
                call(saved / step(4))
            assert names_in(saved / step(4)) == [FILE]


@pytest.mark.parametrize("number", [-1, 2**64, 2**64 + 5])
def test_data_id(trainer: Trainer, folder: Path, number: int) -> None:
    with refused(InvalidArgumentError, f"data_id: found {number}, expected an integer from 0 to 2^64 - 1"):
        trainer.save_state(folder, data_id=number)


# ---- Full disks, for which a limit on the size of files stands, and what else is missing ----

CHECKPOINT_BYTES = HEADER + 4 * num_parameters(MODEL)


@pytest.mark.parametrize("limit", [CHECKPOINT_BYTES - 1, CHECKPOINT_BYTES // 2, HEADER - 24])
def test_checkpoint_on_a_full_disk(trainer: Trainer, folder: Path, limit: int) -> None:
    """The limit is reached at the end, in a tensor and in the header."""
    path = folder / "file"
    path.write_bytes(OLD)
    start = f"{path}: byte {limit}: write to temporary file "
    with limited_files(limit), refused(FileError, start, errno=errno.EFBIG):
        trainer.save_checkpoint(path)
    assert path.read_bytes() == OLD
    assert names_in(folder) == ["file"]
    with limited_files(CHECKPOINT_BYTES):
        trainer.save_checkpoint(path)
    assert path.stat().st_size == CHECKPOINT_BYTES


def test_state_on_a_full_disk(trainer: Trainer, folder: Path) -> None:
    save(trainer, folder)
    path = folder / step(1) / FILE
    before = path.read_bytes()
    with limited_files(len(before) - 1):
        start = f"{path}: reserve {len(before)} bytes for temporary file {TEMPORARY}: File too large"
        with refused(FileError, start, errno=errno.EFBIG):
            trainer.save_state(folder)
    assert path.read_bytes() == before


def test_disk_that_is_full_later(train: Train, folder: Path) -> None:
    """There is room when the file is made; a slow step keeps its tensors from being written before."""
    with train(trace=True, instruments=Instruments(max_delay_us=_SLOW_TASK_US)) as trainer:
        trainer.submit(*batch(0))
        trainer.save_state(folder)
        with limited_files(1), refused(FileError, f"{folder / step(1) / FILE}: byte ", TEMPORARY, errno=errno.EFBIG):
            trainer.wait_saved()
        assert names_in(folder) == [".lock"]
        save(trainer, folder)


@pytest.mark.parametrize(
    ("room", "sentence", "number"),
    [(0, "File too large", errno.EFBIG), (_LOCK_BYTES - 1, "No space left on device", errno.ENOSPC)],
)
def test_lock_on_a_full_disk(trainer: Trainer, folder: Path, room: int, sentence: str, number: int) -> None:
    with limited_files(room), refused(FileError, f"{folder}: write its .lock: {sentence}", errno=number):
        trainer.save_state(folder)


@pytest.mark.parametrize("when", ["the wait", "the next save"])
def test_failure_is_told_once(trainer: Trainer, folder: Path, when: str) -> None:
    path = folder / step(1) / FILE
    path.mkdir(parents=True)
    trainer.save_state(folder)
    with refused(FileError, f"{path}: rename temporary file {TEMPORARY} to it: Is a directory", errno=errno.EISDIR):
        trainer.wait_saved() if when == "the wait" else trainer.save_state(folder)
    trainer.wait_saved()
    assert names_in(path.parent) == [FILE]
    path.rmdir()
    save(trainer, folder)
    assert_saved(trainer, folder)
    trainer.step(*batch(1))


def test_no_thread_to_save(trainer: Trainer, folder: Path) -> None:
    """Its stack would need more than the address space."""
    process = ctypes.CDLL(None)
    before, attributes = (ctypes.create_string_buffer(_ATTRIBUTES_BYTES) for _ in range(2))
    assert [process.pthread_getattr_default_np(buffer) for buffer in (before, attributes)] == [0, 0]
    assert process.pthread_attr_setstacksize(attributes, ctypes.c_size_t(2**62)) == 0
    assert process.pthread_setattr_default_np(attributes) == 0
    try:
        with refused(OutOfMemoryError, f"the thread that saves could not be started (error {errno.EAGAIN})"):
            trainer.save_state(folder)
    finally:
        assert process.pthread_setattr_default_np(before) == 0
    assert names_in(folder) == [".lock"]
    save(trainer, folder)
    assert_saved(trainer, folder)


# ---- What newer states replace, and other runs ----


def test_what_is_no_state_stays(trainer: Trainer, folder: Path) -> None:
    older = folder / step(0)
    older.mkdir()
    for name in (FILE, TEMPORARY, "notes"):
        (older / name).write_bytes(OLD)
    save(trainer, folder, keep=1)
    assert names_in(older) == ["notes"]


def test_empty_folders(trainer: Trainer, folder: Path) -> None:
    for number in (0, 9):
        (folder / step(number)).mkdir()
    save(trainer, folder, keep=2)
    assert names_in(folder) == [".lock", step(1), step(9)]


@pytest.mark.parametrize(
    ("keep", "sentence", "number"),
    [
        (1, "{older}: remove {file}: Is a directory", errno.EISDIR),
        (2, "{older}/{file}: open: Too many levels of symbolic links", errno.ELOOP),
    ],
    ids=["a folder as file", "a link to itself"],
)
def test_what_can_t_be_removed(trainer: Trainer, folder: Path, keep: int, sentence: str, number: int) -> None:
    older = folder / step(0)
    older.mkdir()
    (older / FILE).mkdir() if keep == 1 else (older / FILE).symlink_to(FILE)
    trainer.save_state(folder, keep=keep)
    with refused(FileError, sentence.format(older=older, file=FILE), errno=number):
        trainer.wait_saved()


def test_link_to_a_state(trainer: Trainer, folder: Path) -> None:
    (folder / step(0)).symlink_to(step(1))
    save(trainer, folder, keep=1)
    assert (folder / step(0)).is_symlink()
    assert names_in(folder) == [".lock", step(0), step(1)]


def test_folder_of_another_run(train: Train, folder: Path) -> None:
    """Another trainer is another run."""
    another = f"{folder}: another run is saving into this folder"
    with train() as second:
        with train() as first:
            first.claim_directory(folder)
            for call in (second.save_state, second.claim_directory):
                holder = f" (process {os.getpid()} on {socket.gethostname()[:64]}): Device or resource busy"
                with refused(FileError, another + holder, errno=errno.EBUSY):
                    call(folder)
            first.save_state(folder)
            for damaged in (b"without a line", b"without a number\n"):
                (folder / ".lock").write_bytes(damaged)
                with refused(FileError, f"{another}: Device or resource busy", errno=errno.EBUSY):
                    second.save_state(folder)
            first.save_state(folder)
        second.claim_directory(folder)
        second.step(*batch(0))
        save(second, folder)
