"""Training states that are refused: incomplete and damaged ones, and files that do not go together."""

from __future__ import annotations

import errno
import shutil
import tempfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from starpullm.checks.place import Place
from starpullm.checks.result import Result
from starpullm.checks.training import new_trainer, own_batch
from starpullm.errors import FileError, FormatError, InvalidArgumentError, StarpullmError
from starpullm.files.model import parameter_shapes
from starpullm.resume import training_state
from starpullm.trainer import Trainer

from ..readers.state_file import BLOCK, ENTRY, HEADER, NUMBERS, StateFile
from .checkpoints import SIZES
from .options import MODEL, TINY, B, T
from .processes import NO_FORMAT
from .statements import Statements

_STEPS = 1
_GROUPS = ("params", "m", "v")
_TENSORS = 4 + 12 * TINY.model.num_layers
_MORE = "expected a folder named like step-000000000000 with files named like rank-00000-of-00001.state"


class _Folder:
    """A folder with one state, and what is stated of resuming from it."""

    def __init__(self, place: Place, statements: Statements, root: Path, good: StateFile) -> None:
        self.root, self.good = root, good
        self.state = root / f"step-{_STEPS:012}"
        self.path = self.file(0, 1)
        self.statements = statements
        self._resume = partial(Trainer, place.runtime, batch_size=B, seq_len=T)

    def file(self, rank: int, ranks: int) -> Path:
        """Return the path of a rank's file."""
        return self.state / f"rank-{rank:05}-of-{ranks:05}.state"

    def opening(self, path: Path | str, **options: Any) -> Callable[[], Trainer]:
        """Return a function that resumes from a path."""
        return partial(self._resume, resume=path, **options)

    def refused(self, what: str, sentence: str, kind: type[StarpullmError] = FormatError) -> None:
        """State that resuming from the state's own folder is refused."""
        self.statements.refused(what, kind, sentence, self.opening(self.state))

    def refused_file(self, what: str, file: StateFile, sentence: str, size: int | None = None) -> None:
        """State the same with another file of the only rank; the sentence begins with the file's path."""
        file.write(self.path, size)
        self.refused(what, f"{self.path}: {sentence}")

    def refused_pair(self, what: str, files: tuple[StateFile, StateFile], sentence: str) -> None:
        """State the same with the files of two ranks; the sentence is complete."""
        self.clear()
        for rank, file in enumerate(files):
            file.write(self.file(rank, 2))
        self.refused(what, sentence)
        self.clear()

    def clear(self) -> None:
        """Remove the files."""
        for path in self.state.iterdir():
            path.unlink()


def damaged_states(place: Place, *, seed: int) -> Result:
    """Resume from states that are as they should be, and from ones that are not, on one rank."""
    statements = Statements("damaged training states")
    with tempfile.TemporaryDirectory(dir=place.directory, prefix=NO_FORMAT) as directory:
        root = Path(directory)
        with new_trainer(place, TINY, keep_activations=False) as trainer:
            trainer.submit(*own_batch(trainer, seed, 0))
            trainer.save_state(root, batches=3, seed=-4, data_id=2**64 - 5)
            trainer.wait_saved()
        state = root / f"step-{_STEPS:012}"
        good = StateFile.read(state / "rank-00000-of-00001.state")
        folder = _Folder(place, statements, root, good)
        _check_numbers(folder)
        _check_table_and_values(folder)
        _check_pairs(folder)
        good.write(folder.path)
        statements.allowed("a good state by its own folder", folder.opening(state))
        statements.allowed("a good state by the folder above it", folder.opening(root))
        _check_folders(statements, folder)
    return statements.result()


def _check_numbers(folder: _Folder) -> None:
    for name, least in (
        ("step", 0),
        ("number of batches", 0),
        ("batch size", 1),
        ("sequence length", 1),
        ("number of ranks", 1),
        ("rank", 0),
        ("number of tensors", 0),
    ):
        changed = folder.good.with_numbers({name: least - 1})
        folder.refused_file(f"{name} {least - 1}", changed, f"{name} is {least - 1}, expected at least {least}")
    for name in SIZES:
        changed = folder.good.with_numbers({name: 0})
        folder.refused_file(f"{name} 0", changed, f"{name} is 0, expected at least 1")
    for value in (-1, 2):
        changed = folder.good.with_numbers({"matmuls by BLAS": value})
        folder.refused_file(f"BLAS {value}", changed, f"matmuls by BLAS is {value}, expected 0 or 1")
    sentence = "rank is 1, expected less than the number of ranks (1)"
    folder.refused_file("rank 1 of 1", folder.good.with_numbers({"rank": 1}), sentence)
    sentence = f"byte 48: the header has 0x00000005, expected {_STEPS:#010x} (by its name)"
    folder.refused_file("another step", folder.good.with_numbers({"step": 5}), sentence)
    sentence = "byte 36: the header has 0x00000002, expected 0x00000001 (by its name)"
    folder.refused_file("another number of ranks", folder.good.with_numbers({"number of ranks": 2}), sentence)
    sentence = f"the params, m and v of {_TENSORS} tensors are too large, expected at most {2**63 - 1} bytes"
    folder.refused_file("a model of 2^62 bytes", folder.good.with_numbers({"channels": 2**28}), sentence)
    for version in (0, 1, 3):
        changed = folder.good.with_numbers({"version": version})
        sentence = f"byte 4: version is {version}, expected 2 (a training state)"
        folder.refused_file(f"version {version}", changed, sentence)
    for magic in (0, 20240326):
        sentence = f"byte 0: magic number is {magic}, expected 20261121 (a training state)"
        folder.refused_file(f"magic number {magic}", folder.good.with_numbers({"magic": magic}), sentence)


def _check_table_and_values(folder: _Folder) -> None:
    good, names = folder.good, list(parameter_shapes(TINY.model))
    follows = f"params, m and v of {_TENSORS} tensors"
    for size in (good.size - 1, good.size - BLOCK):
        sentence = (
            f"the file is {size} bytes, expected {good.size} ({follows}): truncated, {good.size - size} bytes are "
        )
        folder.refused_file(f"{size} bytes", good, sentence + "missing", size)
    sentence = f"the file is {good.size + 8} bytes, expected {good.size} ({follows}): too long by 8 bytes"
    folder.refused_file("8 bytes more", good, sentence, good.size + 8)
    sentence = (
        f"the file is {BLOCK} bytes, expected at least {2 * BLOCK} (header, table of {_TENSORS} tensors and end): "
    )
    folder.refused_file("no end", good, sentence + "truncated", BLOCK)
    sentence = (
        f"the file is {HEADER - 1} bytes, expected at least {HEADER} (the header of a training state): truncated, at "
    )
    folder.refused_file("no header", good, sentence + "least 1 bytes are missing", HEADER - 1)
    for number in (-1, len(names)):
        sentence = f"byte {HEADER}: parameter is number {number}, expected 0 to {len(names) - 1}"
        folder.refused_file(f"parameter {number}", good.with_entry(0, number, 0), sentence)
    for layer in (-1, 1):
        sentence = f"byte {HEADER + 4}: layer of wte is {layer}, expected 0 to 0"
        folder.refused_file(f"layer {layer} of wte", good.with_entry(0, 0, layer), sentence)
    last = _TENSORS - 1  # lnfb
    sentence = f"byte {HEADER + ENTRY * last + 4}: layer of lnfb is 1, expected 0 to 0"
    folder.refused_file("layer 1 of lnfb", good.with_entry(last, good.entry(last)[0], 1), sentence)
    good.with_entry(last, names.index("lnfw"), 0).write(folder.path)
    sentence = f"{folder.state}: lnfw[0] is in the files of rank 0 and of rank 0, expected each tensor once"
    folder.refused("a tensor twice", sentence)
    for index in (0, 2, last):
        parameter, layer, _, positions = good.entry(index)
        for part, group in enumerate(_GROUPS):
            changed = good.with_byte(positions[part] + 5)
            expected, found = zlib.crc32(good.values(index, part)), zlib.crc32(changed.values(index, part))
            folder.refused_file(
                f"a bit of {group} of {names[parameter]}[{layer}]",
                changed,
                f"byte {positions[part]}: {group} of {names[parameter]}[{layer}] have the checksum {found:#010x}, "
                f"expected {expected:#010x}: values or checksum are damaged",
            )
    end = good.size - BLOCK
    for what, position, where in (("the end", end + 8, "end"), ("the header's zeros", 128, "header or table")):
        word = position - position % 4
        changed = good.with_byte(position)
        found, expected = changed.word(word), good.word(word)
        folder.refused_file(
            f"a bit of {what}",
            changed,
            f"byte {word}: the {where} has {found:#010x}, expected {expected:#010x} (by the header: one of the "
            "two is damaged)",
        )


_OTHERS = {"vocab_size": 60, "num_heads": 1, "channels": 32, "run": 15, "seed": 7, "data id": 2**63 - 5}
"""Numbers that a state of `TINY` could have, where twice the number and 1 could not be."""


def _check_pairs(folder: _Folder) -> None:
    """Two files stand for two ranks: the first has all tensors, the second none."""
    first = folder.good.with_numbers({"number of ranks": 2})
    second = folder.good.without_tensors({"number of ranks": 2, "rank": 1})
    path = folder.file(1, 2)
    for name, (position, _) in NUMBERS.items():
        if name in ("magic", "version", "rank", "number of ranks", "number of tensors", "step"):
            continue
        old = first.number(name)
        new = _OTHERS.get(name, 2 * old + 1)
        changed = second.with_numbers({name: new})
        if name in SIZES:
            difference = f"byte {position}: {name} is {new}, expected {old}"
        else:
            byte = next(at for at in (position, position + 4) if changed.word(at) != first.word(at))
            difference = f"byte {byte}: the header has {changed.word(byte):#010x}, expected {first.word(byte):#010x}"
        sentence = f"{path}: {difference} (as in rank 0's file)"
        folder.refused_pair(f"{name} that differs between ranks", (first, changed), sentence)
    empty = folder.good.without_tensors({"number of ranks": 2})
    sentence = f"{folder.state}: its files have 0 tensors, expected the model's {_TENSORS}"
    folder.refused_pair("no tensor at all", (empty, second), sentence)
    sentence = f"{path}: byte 32: rank is 0, expected 1 (by its name)"
    folder.refused_pair("rank 0 twice", (first, first), sentence)
    for rank, file in enumerate((first, second)):
        file.write(folder.file(rank, 2))
    folder.statements.allowed("the files of two ranks", folder.opening(folder.state))
    folder.good.write(folder.path)
    sentence = f"{folder.state}: the files of 1 ranks are there and those of 2, expected those of one save"
    folder.refused("the files of two saves", sentence)
    folder.clear()


def _check_folders(statements: Statements, folder: _Folder) -> None:
    root, state = folder.root, folder.state
    newer = root / "step-000000000009"
    newer.mkdir()
    (newer / ".rank-00000-of-00001.tmp").write_bytes(b"half written")
    statements.allowed("an older state than an incomplete one", folder.opening(root))
    incomplete = f"{newer}: incomplete: no file named like rank-00000-of-00001.state is there"
    statements.equal("what was passed over", incomplete, training_state(root).passed_over)
    _check_other_names(statements, folder)
    _check_other_places(statements, folder, newer)
    shutil.copy(folder.path, newer / "rank-00001-of-00002.state")
    half = f"{newer}: incomplete: rank-00000-of-00002.state is missing (1 of 2 files are there)"
    statements.equal("what was passed over of two ranks", half, training_state(root).passed_over)
    (newer / "rank-00001-of-00002.state").unlink()
    statements.refused("a folder without files", FormatError, incomplete, folder.opening(newer))
    shutil.rmtree(newer)
    folder.path.rename(folder.file(0, 3))
    missing = f"{state}: incomplete: rank-00001-of-00003.state is missing (1 of 3 files are there)"
    folder.refused("one file of three", missing)
    sentence = f"{root}: no training state in it is complete (the newest: {missing})"
    statements.refused("no complete state", FormatError, sentence, folder.opening(root))
    file = folder.file(0, 3)
    sentence = f"{file}: expected a folder of training states, found a file of a training state"
    statements.refused("a file", FileError, sentence, folder.opening(file), errno.ENOTDIR)
    shutil.rmtree(state)
    sentence = f"{root}: has no training state, {_MORE}"
    statements.refused("an empty folder", FormatError, sentence, folder.opening(root))
    statements.refused(
        "no folder",
        FileError,
        f"{state}: open the folder: No such file or directory",
        folder.opening(state),
        errno.ENOENT,
    )


def _check_other_places(statements: Statements, folder: _Folder, incomplete: Path) -> None:
    """Resume from a state in a folder of another name, and where several newer ones are incomplete, or gone."""
    root, best = folder.root, folder.root / "best"
    best.mkdir()
    folder.good.write(best / folder.path.name)
    statements.allowed("a state in a folder without a step", folder.opening(best))
    shutil.rmtree(best)
    inside = incomplete / folder.state.name
    shutil.copytree(folder.state, inside)
    statements.equal("a state in a folder named like one", inside, training_state(incomplete).path)
    shutil.rmtree(inside)
    newest = root / "step-000000000010"
    newest.mkdir()
    sentence = f"{newest}: incomplete: no file named like rank-00000-of-00001.state is there"
    statements.equal("what was passed over first", sentence, training_state(root).passed_over)
    for path in (newest, incomplete):
        (path / folder.path.name).symlink_to("nowhere")
    gone = training_state(root)
    statements.equal("a state older than ones that are gone", (folder.state, ""), (gone.path, gone.passed_over))
    (incomplete / folder.path.name).unlink()
    shutil.rmtree(newest)


def _check_other_names(statements: Statements, folder: _Folder) -> None:
    """State that what isn't named exactly like a state or a rank's file is passed over, and how long a path may be."""
    others = [folder.root / name for name in ("step-9", "step-00000000000x", "step--00000000009", "steps")]
    for path in others:
        path.mkdir()
    files = ("rank-0-of-1.state", "rank-00001-of-00001.state", "rank-00000-of-00001.state.old", "rank--0001-of-00001")
    for path in (folder.state / name for name in files):
        path.write_bytes(b"")
        others.append(path)
    longest = MODEL.max_seq_len
    statements.refused(
        "more positions than the state's model has",
        InvalidArgumentError,
        f"seq_len: found {longest + 1}, expected 1 to {longest}, the longest sequence that {folder.root} has positions "
        "for",
        folder.opening(folder.root, seq_len=longest + 1),
    )
    statements.equal("the state beside other names", folder.state, training_state(folder.root).path)
    for path in others:
        path.rmdir() if path.is_dir() else path.unlink()
    longest = 1023
    for more in (0, 1):
        length = longest + more
        name = f"/{folder.state.name}"
        root = str(folder.root)
        root += "/" * (length - len(name) - len(root))
        if more:
            sentence = f"path: found {length} characters, expected at most {longest}"
            statements.refused(f"a path of {length}", InvalidArgumentError, sentence, partial(training_state, root))
        else:
            statements.equal(f"a path of {length}", folder.state, training_state(root).path)
