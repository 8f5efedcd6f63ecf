"""Training states, starpullm's own format: what a run resumes from, in one file for each rank."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import FileError, FormatError
from starpullm.files.arrays import FLOAT32, read_array
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
from starpullm.files.model import (
    INT64_MAX,
    UNLAYERED_PARAMETERS,
    ModelConfig,
    config_problem,
    num_elements,
    num_parameters,
    parameter_shapes,
)

_VERSION: Final = 2


@dataclass(frozen=True, eq=False)
class TrainingStateContents:
    """Everything that the files of a training state contain.

    ``batches`` is the number of batches read, each of ``batch_size`` sequences of ``seq_len`` tokens over all ranks.
    ``params``, ``m`` and ``v`` have the names, shapes and order of `parameter_shapes`. ``run`` identifies the run, and
    ``data_id`` its data. ``blas`` is 1 if a BLAS computed matmuls of any step, so that the bits aren't strict.
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
    run: int
    seed: int
    data_id: int
    blas: int


_BLOCK: Final = 4096
"""Header and table, every array and the end record start at multiples of this."""

_GROUPS: Final = ("params", "m", "v")
_RATES: Final = ("learning_rate", "beta1", "beta2", "eps", "weight_decay")
_RANGES: Final = {
    "step": (0, INT64_MAX),
    "batches": (0, INT64_MAX),
    "batch_size": (1, INT64_MAX),
    "seq_len": (1, INT64_MAX),
    "blas": (0, 1),
    "tensors": (0, INT32_MAX),
}
_SIZES: Final = tuple(field.name for field in fields(ModelConfig))
_COUNTERS: Final = {
    **{"step": "<i8", "run": "<u8", "batches": "<i8", "batch_size": "<i8", "seq_len": "<i8", "seed": "<i8"},
    **{"data_id": "<u8"},
}
_SAME_IN_ALL_FILES: Final = (*_COUNTERS, *_RATES, "blas")
_HEADER: Final = np.dtype(
    [(name, "<i4") for name in ("magic", "version", *_SIZES, "rank", "num_ranks", "tensors")]
    + list(_COUNTERS.items())
    + [(name, "<f4") for name in _RATES]
    + [("blas", "<i4")],
    align=True,
)
_ENTRY: Final = np.dtype(
    [("parameter", "<i4"), ("layer", "<i4"), ("elements", "<i8"), ("positions", "<i8", (len(_GROUPS),))]
)
_CHECKSUMS: Final = np.dtype(("<u4", (len(_GROUPS),)))
"""CRC-32 of a tensor's params, m and v."""

_END: Final = np.dtype(
    {
        "names": ["magic", "version", "step", "run", "rank", "num_ranks", "fingerprint", "size"],
        "formats": ["<i4", "<i4", "<i8", "<u8", "<i4", "<i4", "<u8", "<i8"],
    }
)
_FOLDER: Final = re.compile(r"step-(\d{12}|[1-9]\d{12,18})", re.ASCII)
_FILE: Final = re.compile(r"rank-(\d{5}|[1-9]\d{5,9})-of-(\d{5}|[1-9]\d{5,9})\.state", re.ASCII)

_Key: TypeAlias = tuple[str, int]
"""Name and layer of a parameter tensor."""


class _DamagedValuesError(FormatError):
    """A complete state is damaged; no older one is taken for it."""


def read_training_state(path: StrPath) -> TrainingStateContents:
    """Read a training state that was written by any number of ranks.

    ``path`` is the folder of one state, or the folder above it, of which the newest complete state is read. Any damage,
    or a folder without a complete state, is a `FormatError`.
    """
    where = Path(path)
    names = _names_in(where)
    steps = sorted((int(match[1]) for name in names if (match := _FOLDER.fullmatch(name))), reverse=True)
    own = _FOLDER.fullmatch(where.name)
    if any(map(_FILE.fullmatch, names)) or (own and not steps):
        return _read_state(where, int(own[1]) if own else None)
    newest: FormatError | None = None
    for step in steps:
        try:
            return _read_state(where / f"step-{step:012}", step)
        except _DamagedValuesError:
            raise
        except FormatError as error:
            newest = newest or error
    raise FormatError(
        f"{where}: expected a complete training state, found "
        + (f"none (the newest: {newest})" if newest else "no folder named like step-000000000000")
    ) from newest


def _file_name(rank: int, num_ranks: int) -> str:
    return f"rank-{rank:05}-of-{num_ranks:05}.state"


def _offset(name: str) -> int:
    assert _HEADER.fields is not None
    return int(_HEADER.fields[name][1])


def _keys(config: ModelConfig) -> list[_Key]:
    return [(name, layer) for name in parameter_shapes(config) for layer in range(_num_layers(config, name))]


def _num_layers(config: ModelConfig, name: str) -> int:
    return 1 if name in UNLAYERED_PARAMETERS else config.num_layers


def _tensor(arrays: dict[str, NDArray[np.float32]], key: _Key) -> NDArray[np.float32]:
    """Return a view of one layer's tensor."""
    name, layer = key
    return arrays[name] if name in UNLAYERED_PARAMETERS else arrays[name][layer]


def _rounded_up(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _fnv1a(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def _head_size(header: np.void) -> int:
    return _rounded_up(HEADER_BYTES + int(header["tensors"]) * (_ENTRY.itemsize + _CHECKSUMS.itemsize))


def _layout(config: ModelConfig, keys: list[_Key], end: int) -> tuple[NDArray[np.void], int]:
    """Return the table of a file's tensors whose values begin at ``end``, and where they end."""
    shapes = parameter_shapes(config)
    table = np.zeros(len(keys), _ENTRY)
    for row, (name, layer) in zip(table, keys, strict=True):
        elements = num_elements(shapes[name]) // _num_layers(config, name)
        size = _rounded_up(4 * elements)
        row["parameter"], row["layer"], row["elements"] = list(shapes).index(name), layer, elements
        row["positions"] = [end + size * part for part in range(len(_GROUPS))]
        end += size * len(_GROUPS)
    return table, end


def _end_record(header: np.void, size: int, start: bytes) -> bytes:
    end = np.zeros(1, _END)
    for name in ("magic", "version", "step", "run", "rank", "num_ranks"):
        end[name] = header[name]
    end["fingerprint"] = _fnv1a(start)
    end["size"] = size
    return end.tobytes().ljust(_BLOCK, b"\0")


def _names_in(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError as error:
        raise FileError(f"{folder}: can't be listed: {reason(error)}", error.errno, str(folder)) from error


def _complete_ranks(folder: Path) -> int:
    """Return the number of ranks whose files are all in a folder."""
    found: dict[int, set[int]] = {}
    for name in _names_in(folder):
        if match := _FILE.fullmatch(name):
            found.setdefault(int(match[2]), set()).add(int(match[1]))
    complete = [ranks for ranks, files in sorted(found.items()) if files == set(range(ranks))]
    if len(complete) == 1:
        return complete[0]
    if complete:
        ranks = " and of ".join(map(str, complete))
        raise FormatError(f"{folder}: expected the files of one save, found those of {ranks} ranks")
    files = ", ".join(f"{len(files)} of {ranks}" for ranks, files in sorted(found.items()))
    raise FormatError(f"{folder}: expected the files of all ranks, found {files or 'none'}")


def _read_state(folder: Path, step: int | None) -> TrainingStateContents:
    """Read the state in a folder; ``step`` is that of the folder's name, if it has one."""
    num_ranks = _complete_ranks(folder)
    owners: dict[_Key, int] = {}
    first: np.void | None = None
    for rank in range(num_ranks):
        with reading(folder / _file_name(rank, num_ranks)) as (file, where):
            header = _read_state_header(file, where)
            expected = {"rank": rank, "num_ranks": num_ranks}
            if step is not None:
                expected["step"] = step
            if first is not None:
                expected |= {name: first[name] for name in (*_SIZES, *_SAME_IN_ALL_FILES)}
            for name, value in expected.items():
                # Compared as bits, so that a NaN equals itself.
                if header[name].tobytes() != np.array(value, header[name].dtype).tobytes():
                    raise refusal(where, _offset(name), f"{name} {value}", str(header[name]))
            if first is None:
                first = header
                config = ModelConfig(**{name: int(header[name]) for name in _SIZES})
                _check_total_size(folder, config, num_ranks)
                shapes = parameter_shapes(config).items()
                groups = {group: {name: np.empty(shape, np.float32) for name, shape in shapes} for group in _GROUPS}
            for key, places in _read_table(file, where, config, header).items():
                name, layer = key
                if owners.setdefault(key, rank) != rank:
                    raise FormatError(
                        f"{where}: expected each tensor once, found {name}[{layer}] as in rank {owners[key]}'s"
                    )
                for group, (position, checksum) in zip(_GROUPS, places, strict=True):
                    target = _tensor(groups[group], key)
                    values = read_array(file, where, FLOAT32, position, target.size, mmap=False)
                    found = zlib.crc32(values.data)
                    if checksum != found:
                        tensor = f"{group} of {name}[{layer}]"
                        raise _DamagedValuesError(
                            f"{where}, byte {position}: expected {tensor} to have the checksum {checksum:#010x}, "
                            f"found {found:#010x}: values or checksum are damaged"
                        )
                    target[...] = values.reshape(target.shape)
    assert first is not None  # there is at least one rank
    if len(owners) != len(_keys(config)):
        raise FormatError(f"{folder}: expected the model's {len(_keys(config))} tensors, found {len(owners)}")
    numbers: dict[str, Any] = {name: first[name].item() for name in _SAME_IN_ALL_FILES}
    return TrainingStateContents(config, params=groups["params"], m=groups["m"], v=groups["v"], **numbers)


def _check_total_size(folder: Path, config: ModelConfig, num_ranks: int) -> None:
    """Raise an error if the files are too small for a model, before memory is allocated for it."""
    needed = len(_GROUPS) * 4 * num_parameters(config)
    found = 0
    for rank in range(num_ranks):
        with reading(folder / _file_name(rank, num_ranks)) as (file, _):
            found += file_size(file)
    if found < needed:
        raise FormatError(
            f"{folder}: expected files of at least {needed} bytes, the tensors of their model, found {found}"
        )


def _read_state_header(file: BinaryIO, where: Path) -> np.void:
    ints = read_header(file, where, TRAINING_STATE_MAGIC)
    check_version(ints, where, (_VERSION,))
    header: np.void = np.array(ints[: _HEADER.itemsize // 4], INT32).view(_HEADER)[0]
    problem = config_problem({name: int(header[name]) for name in _SIZES})
    if problem is not None:
        name, expected, found = problem
        raise refusal(where, _offset(name), f"{name} to be {expected}", found)
    for name, (least, most) in _RANGES.items():
        if not least <= header[name] <= most:
            raise refusal(where, _offset(name), f"{name} to be from {least} to {most}", str(header[name]))
    return header


def _read_table(file: BinaryIO, where: Path, config: ModelConfig, header: np.void) -> dict[_Key, list[tuple[int, int]]]:
    """Check a file's table, size and end record; return the positions and checksums of its tensors' values."""
    size = file_size(file)
    count = int(header["tensors"])
    begin = _head_size(header)
    if size < begin + _BLOCK:
        raise refusal(where, size, f"at least {begin + _BLOCK} bytes", "the end of the file")
    file.seek(0)
    start = file.read(begin)
    table = np.frombuffer(start, _ENTRY, count, HEADER_BYTES)
    checksums = np.frombuffer(start, _CHECKSUMS, count, HEADER_BYTES + table.nbytes)
    names = list(parameter_shapes(config))
    entries: dict[_Key, list[tuple[int, int]]] = {}
    for index, row in enumerate(table):
        position = HEADER_BYTES + index * _ENTRY.itemsize
        number, layer = int(row["parameter"]), int(row["layer"])
        if not 0 <= number < len(names):
            raise refusal(where, position, f"a parameter from 0 to {len(names) - 1}", str(number))
        layers = _num_layers(config, names[number])
        if not 0 <= layer < layers:
            raise refusal(where, position + 4, f"a layer from 0 to {layers - 1}", str(layer))
        if (names[number], layer) in entries:
            raise refusal(where, position, "each tensor once", f"{names[number]}[{layer}] again")
        entries[names[number], layer] = list(zip(row["positions"].tolist(), checksums[index].tolist(), strict=True))
    expected, end = _layout(config, list(entries), begin)
    for index in range(count):
        if table[index] != expected[index]:
            position = HEADER_BYTES + index * _ENTRY.itemsize
            raise refusal(where, position, f"the entry {expected[index]}", str(table[index]))
    if size < end + _BLOCK:
        raise refusal(where, size, f"{end + _BLOCK} bytes in all", "the end of the file")
    check_end(file, where, end + _BLOCK)
    known = np.zeros((), _HEADER)
    for name in known.dtype.names or ():
        known[name] = header[name]
    head = known.tobytes().ljust(HEADER_BYTES, b"\0") + table.tobytes() + checksums.tobytes()
    if start != head.ljust(begin, b"\0"):
        raise refusal(where, 0, "zeros wherever header and table have no number", "others")
    file.seek(end)
    if file.read(_BLOCK) != _end_record(header, size, start):
        raise refusal(where, end, "an end that goes with the header", "another: one of the two is damaged")
    return entries
