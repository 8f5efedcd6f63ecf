"""Training states, starpullm's own format: what a run resumes from, in one file per rank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import (
    FileError,
    FormatError,
    InvalidArgumentError,
)
from starpullm.files.arrays import FLOAT32, bytes_of, read_array
from starpullm.files.atomic import atomic_write, sync_directory
from starpullm.files.header import (
    HEADER_BYTES,
    INT32,
    INT32_MAX,
    TRAINING_STATE_MAGIC,
    StrPath,
    check_end,
    check_version,
    file_size,
    read_header,
    reading,
    reason,
    refusal,
)
from starpullm.files.model import ModelConfig, checked_tensors, config_problem, num_elements, parameter_shapes

__all__ = ["TrainingState", "read_training_state", "write_training_state"]

TRAINING_STATE_VERSION: Final = 1


@dataclass(frozen=True, eq=False)
class TrainingState:
    """Everything that a run resumes from, after a step.

    Parameters
    ----------
    config
        The model's sizes.
    step
        Number of updates that led to it.
    batches
        Data position: number of batches taken, by all ranks together.
    batch_size, seq_len
        B and T of such a batch.
    params, m, v
        Name to float32 array, with the names, shapes and order of `parameter_shapes`.
    learning_rate, beta1, beta2, eps, weight_decay
        Of the updates so far; rounded to float32.
    run
        The run's own number, from 0 to 2^64 - 1.
    seed
        What generated tokens follow from, an int64.
    data_id
        Fingerprint of the data, from 0 to 2^64 - 1; 0 if there is none.
    blas
        1 if a BLAS computed the matmuls of some of its steps, so that its bits aren't strict; else 0.

    Raises
    ------
    InvalidArgumentError
        If a number is out of range, a name is missing or unknown, or an array has another shape or dtype.
    """

    config: ModelConfig
    step: int
    batches: int
    batch_size: int
    seq_len: int
    params: dict[str, NDArray[np.float32]]
    m: dict[str, NDArray[np.float32]]
    v: dict[str, NDArray[np.float32]]
    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    run: int = 0
    seed: int = 0
    data_id: int = 0
    blas: int = 0

    def __post_init__(self) -> None:
        """Check the numbers' ranges and bring the arrays into the file's order."""
        for name, least, end in _STATE_RANGES:
            value = getattr(self, name)
            if not least <= value < end:
                raise InvalidArgumentError(
                    f"training state, {name}: expected a number from {least} to {end - 1}, found {value}"
                )
        for name in _STATE_FLOATS:
            object.__setattr__(self, name, float(np.float32(getattr(self, name))))
        for group in _STATE_GROUPS:
            object.__setattr__(self, group, checked_tensors(self.config, getattr(self, group), group))


_STATE_BLOCK: Final = 4096
_STATE_GROUPS: Final = ("params", "m", "v")
_STATE_FLOATS: Final = ("learning_rate", "beta1", "beta2", "eps", "weight_decay")
_STATE_RANGES: Final = (
    ("step", 0, 2**63),
    ("batches", 0, 2**63),
    ("batch_size", 1, 2**63),
    ("seq_len", 1, 2**63),
    ("run", 0, 2**64),
    ("seed", -(2**63), 2**63),
    ("data_id", 0, 2**64),
    ("blas", 0, 2),
)
_STATE_SHARED: Final = ("step", "run", "batches", "batch_size", "seq_len", "seed", "data_id", *_STATE_FLOATS, "blas")
_CONFIG_NAMES: Final = (
    "max_seq_len",
    "vocab_size",
    "num_layers",
    "num_heads",
    "channels",
    "padded_vocab_size",
)
_STATE_NAMES: Final[tuple[str, ...]] = (
    "magic",
    "version",
    *_CONFIG_NAMES,
    "rank",
    "num_ranks",
    "tensors",
    *_STATE_SHARED,
)
_STATE_OFFSETS: Final[tuple[int, ...]] = (*range(0, 44, 4), *range(48, 104, 8), *range(104, 128, 4))
_STATE_HEADER: Final = np.dtype(
    {
        "names": _STATE_NAMES,
        "formats": ["<i4"] * 11 + ["<i8", "<u8", "<i8", "<i8", "<i8", "<i8", "<u8"] + ["<f4"] * 5 + ["<i4"],
        "offsets": _STATE_OFFSETS,
        "itemsize": HEADER_BYTES,
    }
)
_STATE_ENTRY: Final = np.dtype(
    [("parameter", "<i4"), ("layer", "<i4"), ("elements", "<i8"), ("positions", "<i8", (len(_STATE_GROUPS),))]
)
_STATE_END: Final = np.dtype(
    {
        "names": ["magic", "version", "step", "run", "rank", "num_ranks", "fingerprint", "size"],
        "formats": ["<i4", "<i4", "<i8", "<u8", "<i4", "<i4", "<u8", "<i8"],
        "offsets": [0, 4, 8, 16, 24, 28, 32, 40],
        "itemsize": _STATE_BLOCK,
    }
)
_STATE_FOLDER: Final = re.compile(r"step-(\d{12}|[1-9]\d{12,18})", re.ASCII)
_STATE_FILE: Final = re.compile(r"rank-(\d{5}|[1-9]\d{5,9})-of-(\d{5}|[1-9]\d{5,9})\.state", re.ASCII)
_Entry: TypeAlias = tuple[str, int]
"""Name and layer of one tensor in a training state's file."""


def read_training_state(path: StrPath) -> TrainingState:
    """Read a training state, whichever number of ranks wrote it.

    Parameters
    ----------
    path
        The folder of one state, or the one above it: then the newest complete state is read.

    Raises
    ------
    FormatError
        If there is no complete state, or a file's content isn't what the format says.
    FileError
        If a file can't be read.
    OutOfMemoryError
        If there is no memory for the tensors.
    """
    where = Path(path)
    names = _names_in(where)
    steps = sorted((int(match[1]) for name in names if (match := _STATE_FOLDER.fullmatch(name))), reverse=True)
    own = _STATE_FOLDER.fullmatch(where.name)
    if any(map(_STATE_FILE.fullmatch, names)) or (own and not steps):
        return _read_state(where, int(own[1]) if own else None)
    newest: FormatError | None = None
    for step in steps:
        try:
            return _read_state(where / f"step-{step:012}", step)
        except FormatError as error:
            newest = newest or error
    raise FormatError(
        f"{where}: expected a complete training state, found "
        + (f"none (the newest: {newest})" if newest else "no folder named like step-000000000000")
    ) from newest


def write_training_state(root: StrPath, state: TrainingState, *, num_ranks: int = 1) -> Path:
    """Write a training state and return its folder; rank r of R gets every R-th tensor, from the r-th on.

    Parameters
    ----------
    root
        The folder that holds the states; it and the state's own are made as needed.
    state
        The state.
    num_ranks
        R, the number of files.

    Raises
    ------
    InvalidArgumentError
        If `num_ranks` isn't positive.
    FileError
        If a file can't be written; a complete state needs all of them.
    """
    if not 1 <= num_ranks <= INT32_MAX:
        raise InvalidArgumentError(f"num_ranks: expected a number from 1 to {INT32_MAX}, found {num_ranks}")
    folder = Path(root) / f"step-{state.step:012}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sync_directory(folder.parent)
    except OSError as error:
        raise FileError(f"{folder}: can't be made: {reason(error)}", error.errno, str(folder)) from error
    layers = {name: state.config.num_layers if _layered(name) else 1 for name in parameter_shapes(state.config)}
    entries = [(name, layer) for name, count in layers.items() for layer in range(count)]
    for rank in range(num_ranks):
        with atomic_write(folder / _state_file_name(rank, num_ranks)) as file:
            for piece in _state_pieces(state, rank, num_ranks, entries[rank::num_ranks]):
                file.write(piece)
    return folder


def _state_file_name(rank: int, num_ranks: int) -> str:
    return f"rank-{rank:05}-of-{num_ranks:05}.state"


def _state_offset(name: str) -> int:
    return _STATE_OFFSETS[_STATE_NAMES.index(name)]


def _layered(name: str) -> bool:
    return name not in ("wte", "wpe", "lnfw", "lnfb")


def _layer_shape(config: ModelConfig, name: str) -> tuple[int, ...]:
    shape = parameter_shapes(config)[name]
    return shape[1:] if _layered(name) else shape


def _of_layer(array: NDArray[np.float32], name: str, layer: int) -> NDArray[np.float32]:
    """Return a view of one layer's tensor."""
    return array[layer] if _layered(name) else array


def _blocks(size: int) -> int:
    return -(-size // _STATE_BLOCK) * _STATE_BLOCK


def _fingerprint(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def _state_layout(config: ModelConfig, entries: list[_Entry]) -> tuple[NDArray[np.void], int, int]:
    """Return the table, where the values begin and where they end."""
    numbers = {name: number for number, name in enumerate(parameter_shapes(config))}
    table = np.zeros(len(entries), _STATE_ENTRY)
    begin = end = _blocks(HEADER_BYTES + table.nbytes)
    for row, (name, layer) in zip(table, entries, strict=True):
        elements = num_elements(_layer_shape(config, name))
        room = _blocks(4 * elements)
        positions = [end + room * part for part in range(len(_STATE_GROUPS))]
        row["parameter"], row["layer"], row["elements"], row["positions"] = numbers[name], layer, elements, positions
        end += room * len(_STATE_GROUPS)
    return table, begin, end


def _state_end(header: np.void, size: int, start: bytes) -> bytes:
    end = np.zeros(1, _STATE_END)
    for name in ("magic", "version", "step", "run", "rank", "num_ranks"):
        end[name] = header[name]
    end["fingerprint"] = _fingerprint(start)
    end["size"] = size
    return end.tobytes()


def _state_pieces(state: TrainingState, rank: int, num_ranks: int, entries: list[_Entry]) -> Iterator[bytes]:
    table, begin, end = _state_layout(state.config, entries)
    header = np.zeros(1, _STATE_HEADER)
    header["magic"], header["version"] = TRAINING_STATE_MAGIC, TRAINING_STATE_VERSION
    header["rank"], header["num_ranks"], header["tensors"] = rank, num_ranks, len(entries)
    for name in _CONFIG_NAMES:
        header[name] = getattr(state.config, name)
    for name in _STATE_SHARED:
        header[name] = getattr(state, name)
    start = (header.tobytes() + table.tobytes()).ljust(begin, b"\0")
    yield start
    for name, layer in entries:
        for group in _STATE_GROUPS:
            data = bytes(bytes_of(_of_layer(getattr(state, group)[name], name, layer), FLOAT32))
            yield data.ljust(_blocks(len(data)), b"\0")
    yield _state_end(header[0], end + _STATE_BLOCK, start)


def _names_in(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError as error:
        raise FileError(f"{folder}: can't be listed: {reason(error)}", error.errno, str(folder)) from error


def _ranks_of_state(folder: Path) -> int:
    """Return the number of ranks whose files are all there."""
    found: dict[int, set[int]] = {}
    for name in _names_in(folder):
        if match := _STATE_FILE.fullmatch(name):
            found.setdefault(int(match[2]), set()).add(int(match[1]))
    complete = [ranks for ranks, files in sorted(found.items()) if files == set(range(ranks))]
    if len(complete) == 1:
        return complete[0]
    if complete:
        raise FormatError(
            f"{folder}: expected the files of one save, found those of "
            + " and of ".join(map(str, complete))
            + " ranks"
        )
    files = ", ".join(f"{len(files)} of {ranks}" for ranks, files in sorted(found.items()))
    raise FormatError(f"{folder}: expected the files of all ranks, found {files or 'none'}")


def _read_state(folder: Path, step: int | None) -> TrainingState:
    """Read the state in a folder; `step` is that of its name."""
    num_ranks = _ranks_of_state(folder)
    tensors: dict[str, dict[str, NDArray[np.float32]]] = {}
    owners: dict[_Entry, int] = {}
    first: np.void | None = None
    for rank in range(num_ranks):
        with reading(folder / _state_file_name(rank, num_ranks)) as (file, where):
            header = _read_state_header(file, where)
            expected = {"rank": rank, "num_ranks": num_ranks}
            if step is not None:
                expected["step"] = step
            if first is not None:
                expected |= {name: first[name] for name in (*_CONFIG_NAMES, *_STATE_SHARED)}
            for name, value in expected.items():
                # As bits: two NaNs are the same here.
                if header[name].tobytes() != np.array(value, header[name].dtype).tobytes():
                    raise refusal(where, _state_offset(name), f"{name} {value}", str(header[name]))
            config = ModelConfig(**{name: int(header[name]) for name in _CONFIG_NAMES})
            entries = _read_state_table(file, where, config, header)
            if first is None:
                first = header
                for group in _STATE_GROUPS:
                    tensors[group] = {
                        name: np.empty(shape, np.float32) for name, shape in parameter_shapes(config).items()
                    }
            for (name, layer), positions in entries:
                if owners.setdefault((name, layer), rank) != rank:
                    raise FormatError(
                        f"{where}: expected each tensor once, found {name}[{layer}] as in rank {owners[name, layer]}'s"
                    )
                for group, position in zip(_STATE_GROUPS, positions, strict=True):
                    target = _of_layer(tensors[group][name], name, layer)
                    values = read_array(file, where, FLOAT32, position, target.size, mmap=False)
                    target[...] = values.reshape(target.shape)
    assert first is not None  # there is at least one rank
    expected_tensors = sum(config.num_layers if _layered(name) else 1 for name in parameter_shapes(config))
    if len(owners) != expected_tensors:
        raise FormatError(f"{folder}: expected the model's {expected_tensors} tensors, found {len(owners)}")
    numbers: dict[str, Any] = {name: first[name].item() for name in _STATE_SHARED}
    return TrainingState(config, params=tensors["params"], m=tensors["m"], v=tensors["v"], **numbers)


def _read_state_header(file: BinaryIO, where: Path) -> np.void:
    ints = read_header(file, where, TRAINING_STATE_MAGIC)
    check_version(ints, where, (TRAINING_STATE_VERSION,))
    header: np.void = np.array(ints, INT32).view(_STATE_HEADER)[0]
    sizes = {name: int(header[name]) for name in _CONFIG_NAMES}
    problem = config_problem(sizes)
    if problem is not None:
        name, expected, found = problem
        raise refusal(where, 8 + 4 * _CONFIG_NAMES.index(name), f"{name} to be {expected}", found)
    for name, least, _ in (*_STATE_RANGES, ("tensors", 0, 0)):
        if header[name] < least:
            raise refusal(where, _state_offset(name), f"{name} to be at least {least}", str(header[name]))
    return header


def _read_state_table(
    file: BinaryIO, where: Path, config: ModelConfig, header: np.void
) -> list[tuple[_Entry, list[int]]]:
    """Check the file's table, size and end, and return its tensors with the positions of their parts."""
    size = file_size(file)
    count = int(header["tensors"])
    begin = _blocks(HEADER_BYTES + count * _STATE_ENTRY.itemsize)
    if size < begin + _STATE_BLOCK:
        raise refusal(where, size, f"at least {begin + _STATE_BLOCK} bytes", "the end of the file")
    file.seek(0)
    start = file.read(begin)
    table = np.frombuffer(start, _STATE_ENTRY, count, HEADER_BYTES)
    names = list(parameter_shapes(config))
    entries: dict[_Entry, list[int]] = {}
    for index, row in enumerate(table):
        position = HEADER_BYTES + index * _STATE_ENTRY.itemsize
        number, layer = int(row["parameter"]), int(row["layer"])
        if not 0 <= number < len(names):
            raise refusal(where, position, f"a parameter from 0 to {len(names) - 1}", str(number))
        layers = config.num_layers if _layered(names[number]) else 1
        if not 0 <= layer < layers:
            raise refusal(where, position + 4, f"a layer from 0 to {layers - 1}", str(layer))
        if (names[number], layer) in entries:
            raise refusal(where, position, "each tensor once", f"{names[number]}[{layer}] again")
        entries[names[number], layer] = [int(value) for value in row["positions"]]
    expected, _, end = _state_layout(config, list(entries))
    for index in range(count):
        if table[index] != expected[index]:
            position = HEADER_BYTES + index * _STATE_ENTRY.itemsize
            raise refusal(where, position, f"the entry {expected[index]}", str(table[index]))
    if size < end + _STATE_BLOCK:
        raise refusal(where, size, f"{end + _STATE_BLOCK} bytes in all", "the end of the file")
    check_end(file, where, end + _STATE_BLOCK)
    file.seek(end)
    if file.read(_STATE_BLOCK) != _state_end(header, size, start):
        raise refusal(where, end, "an end that goes with the header", "another: one of the two is damaged")
    return list(entries.items())
