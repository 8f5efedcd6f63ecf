"""Training states that are refused: incomplete and damaged ones, and files that do not go together."""

from __future__ import annotations

import errno
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from starpullm.errors import FileError, FormatError, InvalidArgumentError, StarpullmError
from starpullm.files.model import parameter_shapes
from starpullm.resume import training_state
from starpullm.trainer import Trainer

from ..readers.state_file import BLOCK, ENTRY, HEADER, NUMBERS, StateFile
from .refusals import refused
from .sizes import INT64_MAX, MODEL, TENSORS, batch
from .test_checkpoints import SIZES

pytestmark = [pytest.mark.child("one worker", preloads="allocations"), pytest.mark.usefixtures("nothing_left")]

STEP = "step-000000000001"
FILE = "rank-00000-of-00001.state"
NAMES = list(parameter_shapes(MODEL))
_FIRST_AND_LAST = (0, 2, TENSORS - 1)
_LONGEST_PATH = 1023

LEAST = {"step": 0, "number of batches": 0, "batch size": 1, "sequence length": 1, "number of ranks": 1, "rank": 0}
LEAST |= {"number of tensors": 0}

HEADERS: list[tuple[dict[str, int], str]] = [
    *(({name: least - 1}, f"{name} is {least - 1}, expected at least {least}") for name, least in LEAST.items()),
    *(({name: 0}, f"{name} is 0, expected at least 1") for name in SIZES),
    *(({"arithmetic": value}, f"arithmetic is {value}, expected 0 to 2") for value in (-1, 3)),
    ({"rank": 1}, "rank is 1, expected less than the number of ranks (1)"),
    ({"step": 5}, "byte 48: the header has 0x00000005, expected 0x00000001 (by its name)"),
    ({"number of ranks": 2}, "byte 36: the header has 0x00000002, expected 0x00000001 (by its name)"),
    # A model of 2^62 bytes.
    ({"channels": 2**28}, f"the params, m and v of {TENSORS} tensors are too large, expected at most {INT64_MAX}"),
    *(({"version": version}, f"byte 4: version is {version}, expected 2") for version in (0, 1, 3)),
    *(({"magic": magic}, f"byte 0: magic number is {magic}, expected 20261121") for magic in (0, 20240326)),
]

ENTRIES: list[tuple[int, int, int, str]] = [
    *(
        (0, number, 0, f"byte {HEADER}: parameter is number {number}, expected 0 to {len(NAMES) - 1}")
        for number in (-1, len(NAMES))
    ),
    *((0, 0, layer, f"byte {HEADER + 4}: layer of wte is {layer}, expected 0 to 0") for layer in (-1, 1)),
    (
        *(TENSORS - 1, NAMES.index("lnfb"), 1),
        f"byte {HEADER + ENTRY * (TENSORS - 1) + 4}: layer of lnfb is 1, expected 0 to 0",
    ),
]
"""Entries of the table: which one, its parameter, its layer, and what is said of it."""

OF_ALL_RANKS = {name: position for name, (position, _) in NUMBERS.items()}
for name in ("magic", "version", "rank", "number of ranks", "number of tensors", "step"):
    del OF_ALL_RANKS[name]
OTHERS = {"vocab_size": 60, "num_heads": 1, "channels": 32, "run": 15, "seed": 7, "data id": 2**63 - 5}
"""Numbers that a state of the model could have, where twice the number and 1 could not be."""


class States:
    """A folder with one state, which is good until its files are changed."""

    def __init__(self, root: Path, good: StateFile, train: Callable[..., Trainer]) -> None:
        self.root, self.good = root, good
        self.state = root / STEP
        self.path = self.state / FILE
        self._train = train
        self.state.mkdir(parents=True)
        good.write(self.path)

    def file(self, rank: int, ranks: int) -> Path:
        """Return the path of a rank's file."""
        return self.state / f"rank-{rank:05}-of-{ranks:05}.state"

    def resume(self, path: Path | None = None) -> None:
        """Resume from a path, by default from the state."""
        self._train(resume=path or self.state).close()

    def refused(self, start: str, *parts: str, path: Path | None = None) -> None:
        """Fail unless resuming is refused with this start of a sentence."""
        with refused(FormatError, start, *parts):
            self.resume(path)

    def refused_file(self, file: StateFile, start: str, size: int | None = None) -> None:
        """Write another file; what is said of it begins with its path."""
        file.write(self.path, size)
        self.refused(f"{self.path}: {start}")

    def write_pair(self, *files: StateFile) -> None:
        """Write the files of two ranks instead of the only one's."""
        self.path.unlink()
        for rank, file in enumerate(files):
            file.write(self.file(rank, 2))


@pytest.fixture(scope="module")
def good(train: Callable[..., Trainer], tmp_path_factory: pytest.TempPathFactory) -> StateFile:
    """The file of the only rank."""
    root = tmp_path_factory.mktemp("states")
    with train() as trainer:
        trainer.submit(*batch(0))
        trainer.save_state(root, batches=3, seed=-4, data_id=2**64 - 5)
        trainer.wait_saved()
    return StateFile.read(root / STEP / FILE)


@pytest.fixture
def states(tmp_path: Path, good: StateFile, train: Callable[..., Trainer]) -> States:
    """A folder with one state; a path that is taken for a format would change."""
    return States(tmp_path / "100%d%s ", good, train)


@pytest.fixture
def pair(good: StateFile) -> tuple[StateFile, StateFile]:
    """The files of two ranks: the first has all tensors, the second none."""
    return good.with_numbers({"number of ranks": 2}), good.without_tensors({"number of ranks": 2, "rank": 1})


def incomplete(state: Path) -> str:
    return f"{state}: incomplete: no file named like {FILE} is there"


def test_good_state(states: States) -> None:
    states.resume()
    states.resume(states.root)


@pytest.mark.parametrize(("numbers", "start"), HEADERS, ids=[str(numbers)[1:-1] for numbers, _ in HEADERS])
def test_header(states: States, numbers: dict[str, int], start: str) -> None:
    states.refused_file(states.good.with_numbers(numbers), start)


@pytest.mark.parametrize("change", [-1, -BLOCK, 8])
def test_file_of_another_size(states: States, change: int) -> None:
    size = states.good.size
    start = f"the file is {size + change} bytes, expected {size} (params, m and v of {TENSORS} tensors)"
    states.refused_file(states.good, start, size + change)


@pytest.mark.parametrize(
    ("size", "least", "what"),
    [
        (BLOCK, 2 * BLOCK, f"header, table of {TENSORS} tensors and end"),
        (HEADER - 1, HEADER, "the header of a training state"),
    ],
)
def test_file_without_table_or_header(states: States, size: int, least: int, what: str) -> None:
    states.refused_file(states.good, f"the file is {size} bytes, expected at least {least} ({what}): truncated", size)


@pytest.mark.parametrize(("index", "parameter", "layer", "start"), ENTRIES)
def test_entry_of_the_table(states: States, index: int, parameter: int, layer: int, start: str) -> None:
    states.refused_file(states.good.with_entry(index, parameter, layer), start)


def test_tensor_twice(states: States) -> None:
    states.good.with_entry(TENSORS - 1, NAMES.index("lnfw"), 0).write(states.path)
    states.refused(f"{states.state}: lnfw[0] is in the files of rank 0 and of rank 0,")


@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize("index", _FIRST_AND_LAST)
def test_bit_of_a_tensor(states: States, index: int, part: int) -> None:
    group = ("params", "m", "v")[part]
    parameter, layer, _, positions = states.good.entry(index)
    changed = states.good.with_byte(positions[part] + 5)
    expected, found = (zlib.crc32(file.values(index, part)) for file in (states.good, changed))
    what = f"{group} of {NAMES[parameter]}[{layer}] have the checksum {found:#010x}, expected {expected:#010x}"
    states.refused_file(changed, f"byte {positions[part]}: {what}")


@pytest.mark.parametrize("where", ["end", "header or table"])
def test_bit_of_what_is_no_tensor(states: States, where: str) -> None:
    position = states.good.size - BLOCK + 8 if where == "end" else 128
    changed = states.good.with_byte(position)
    found, expected = (file.word(position) for file in (changed, states.good))
    states.refused_file(changed, f"byte {position}: the {where} has {found:#010x}, expected {expected:#010x} (by the ")


# ---- Files of several ranks ----


@pytest.mark.parametrize("name", OF_ALL_RANKS)
def test_number_that_differs_between_ranks(states: States, pair: tuple[StateFile, StateFile], name: str) -> None:
    first, second = pair
    old = first.number(name)
    new = OTHERS.get(name, 2 * old + 1)
    changed = second.with_numbers({name: new})
    position = OF_ALL_RANKS[name]
    difference = f"byte {position}: {name} is {new}, expected {old}"
    if name not in SIZES:
        byte = next(at for at in (position, position + 4) if changed.word(at) != first.word(at))
        difference = f"byte {byte}: the header has {changed.word(byte):#010x}, expected {first.word(byte):#010x}"
    states.write_pair(first, changed)
    states.refused(f"{states.file(1, 2)}: {difference} (as in rank 0's file)")


def test_files_of_two_ranks(states: States, pair: tuple[StateFile, StateFile]) -> None:
    states.write_pair(*pair)
    states.resume()
    states.good.write(states.path)
    states.refused(f"{states.state}: the files of 1 ranks are there and those of 2,")


def test_no_tensor_at_all(states: States, pair: tuple[StateFile, StateFile]) -> None:
    states.write_pair(states.good.without_tensors({"number of ranks": 2}), pair[1])
    states.refused(f"{states.state}: its files have 0 tensors, expected the model's {TENSORS}")


def test_rank_0_twice(states: States, pair: tuple[StateFile, StateFile]) -> None:
    states.write_pair(pair[0], pair[0])
    states.refused(f"{states.file(1, 2)}: byte 32: rank is 0, expected 1 (by its name)")


def test_one_file_of_three(states: States) -> None:
    states.path.rename(states.file(0, 3))
    missing = f"{states.state}: incomplete: rank-00001-of-00003.state is missing (1 of 3 files are there)"
    states.refused(missing)
    states.refused(f"{states.root}: no training state in it is complete (the newest: {missing})", path=states.root)


# ---- Folders ----


def test_newer_state_that_is_incomplete(states: States) -> None:
    newer = states.root / "step-000000000009"
    newer.mkdir()
    (newer / ".rank-00000-of-00001.tmp").write_bytes(b"half written")
    states.resume(states.root)
    assert training_state(states.root).passed_over == incomplete(newer)
    states.refused(incomplete(newer), path=newer)
    shutil.copy(states.path, newer / "rank-00001-of-00002.state")
    half = f"{newer}: incomplete: rank-00000-of-00002.state is missing (1 of 2 files are there)"
    assert training_state(states.root).passed_over == half


def test_several_newer_states(states: States) -> None:
    newer, newest = (states.root / f"step-{number:012}" for number in (9, 10))
    for folder in (newer, newest):
        folder.mkdir()
    assert training_state(states.root).passed_over == incomplete(newest)
    for folder in (newer, newest):
        (folder / FILE).symlink_to("nowhere")
    gone = training_state(states.root)
    assert (gone.path, gone.passed_over) == (states.state, "")


def test_folders_of_other_names(states: States) -> None:
    """A state may be in a folder without a step, or be one in a folder that is named like a state."""
    best, inside = states.root / "best", states.root / "step-000000000009" / STEP
    for folder in (best, inside):
        shutil.copytree(states.state, folder)
    states.resume(best)
    assert training_state(inside.parent).path == inside


def test_names_that_are_not_a_state_s(states: States) -> None:
    for name in ("step-9", "step-00000000000x", "step--00000000009", "steps"):
        (states.root / name).mkdir()
    for name in ("rank-0-of-1.state", "rank-00001-of-00001.state", f"{FILE}.old", "rank--0001-of-00001"):
        (states.state / name).write_bytes(b"")
    assert training_state(states.root).path == states.state


def test_more_positions_than_the_model_has(states: States, train: Callable[..., Trainer]) -> None:
    longest = MODEL.max_seq_len
    with refused(InvalidArgumentError, f"seq_len: found {longest + 1}, expected 1 to {longest}", str(states.root)):
        train(resume=states.root, seq_len=longest + 1).close()


def test_longest_path(states: States) -> None:
    root = str(states.root)
    root += "/" * (_LONGEST_PATH - len(f"/{STEP}") - len(root))
    assert training_state(root).path == states.state
    with refused(InvalidArgumentError, f"path: found {_LONGEST_PATH + 1} characters, expected at most {_LONGEST_PATH}"):
        training_state(f"{root}/")


@pytest.mark.parametrize(
    ("name", "kind", "sentence", "number"),
    [
        (f"{STEP}/{FILE}", FileError, "expected a folder of training states, found a file", errno.ENOTDIR),
        ("step-000000000002", FileError, "open the folder: No such file or directory", errno.ENOENT),
        (
            "empty",
            FormatError,
            "has no training state, expected a folder named like step-000000000000 with files",
            None,
        ),
    ],
    ids=["a file", "no folder", "an empty folder"],
)
def test_no_state(states: States, name: str, kind: type[StarpullmError], sentence: str, number: int | None) -> None:
    (states.root / "empty").mkdir()
    path = states.root / name
    with refused(kind, f"{path}: {sentence}", errno=number):
        states.resume(path)
