"""Reads training states as docs/formats.md describes them, and refuses every byte that is another one.

No code is shared with the library, so what it writes and reads in the same wrong way is noticed.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import FormatError
from starpullm.files.model import UNLAYERED_PARAMETERS, ModelConfig, config_problem, num_elements, parameter_shapes

from .state_file import BLOCK, CHECKSUM, ENTRY, HEADER, NUMBERS, PARTS, StateFile, begin_of_values, rounded_up

_FILE: Final = re.compile(r"rank-(\d{5})-of-(\d{5})\.state", re.ASCII)
_LEAST: Final = {"step": 0, "number of batches": 0, "batch size": 1, "sequence length": 1, "number of tensors": 0}
_SIZES: Final = tuple(field.name for field in fields(ModelConfig))
_NO_NUMBERS: Final = (slice(44, 48), slice(128, HEADER))
_ATTRIBUTES: Final = {
    **{name: name.replace(" ", "_") for name in NUMBERS},
    **{"number of batches": "batches", "sequence length": "seq_len"},
}

Arrays: TypeAlias = dict[str, NDArray[np.float32]]
_Key: TypeAlias = tuple[str, int]
"""Name and layer of a parameter tensor."""


@dataclass(frozen=True, eq=False)
class TrainingStateContents:
    """What the files of a training state contain; the numbers are described in docs/formats.md."""

    config: ModelConfig
    step: int
    batches: int
    batch_size: int
    seq_len: int
    params: Arrays
    m: Arrays
    v: Arrays
    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    run: int
    seed: int
    data_id: int
    arithmetic: int


def read_training_state(path: str | Path) -> TrainingStateContents:
    """Read the state in a folder, or the newest one below it whose ranks all have a file."""
    folder = Path(path)
    if ranks := _ranks_in(folder):
        return _read_state(folder, ranks)
    for newest in sorted(folder.glob("step-*"), reverse=True):
        if ranks := _ranks_in(newest):
            return _read_state(newest, ranks)
    raise FormatError(f"{folder}: has no complete training state")


def _ranks_in(folder: Path) -> int:
    """Return of how many ranks a folder has all files; 0: of no number."""
    names = [match.groups() for path in folder.glob("rank-*") if (match := _FILE.fullmatch(path.name))]
    complete = {int(ranks) for _, ranks in names if sum(other == ranks for _, other in names) == int(ranks)}
    _require(len(complete) <= 1, folder, "holds two saves")
    return max(complete, default=0)


def _require(holds: bool, where: Path, what: str) -> None:
    if not holds:
        raise FormatError(f"{where}: {what}")


def _read_state(folder: Path, ranks: int) -> TrainingStateContents:
    paths = [folder / f"rank-{rank:05}-of-{ranks:05}.state" for rank in range(ranks)]
    named = {"step": int(folder.name[5:])} if re.fullmatch(r"step-\d{12,}", folder.name) else {}
    parts: dict[_Key, list[NDArray[np.float32]]] = {}
    first: StateFile | None = None
    for rank, path in enumerate(paths):
        file = StateFile.read(path)
        _check_numbers(path, file, {"rank": rank, "number of ranks": ranks, **named})
        first = first or file
        for same in (slice(8, 32), slice(48, 128)):
            _require(file.content[same] == first.content[same], path, f"bytes {same} differ between ranks")
        for key, values in _tensors(path, file).items():
            _require(key not in parts, path, f"{key} is there twice")
            parts[key] = values
    assert first is not None  # _ranks_in has found a file
    numbers = {_ATTRIBUTES[name]: first.number(name) for name in NUMBERS}
    config = ModelConfig(**{name: int(first.number(name)) for name in _SIZES})
    known = {field.name: numbers[field.name] for field in fields(TrainingStateContents) if field.name in numbers}
    groups: list[Arrays] = [{}, {}, {}]
    for name, shape in parameter_shapes(config).items():
        keys = [(name, layer) for layer in range(_num_layers(config, name))]
        _require(all(key in parts for key in keys), folder, f"a layer of {name} is missing")
        for part, arrays in enumerate(groups):
            arrays[name] = np.concatenate([parts[key][part] for key in keys]).reshape(shape)
    params, m, v = groups
    return TrainingStateContents(config, params=params, m=m, v=v, **known)  # type: ignore[arg-type]


def _num_layers(config: ModelConfig, name: str) -> int:
    return 1 if name in UNLAYERED_PARAMETERS else config.num_layers


def _check_numbers(path: Path, file: StateFile, expected: dict[str, int]) -> None:
    _require(file.size >= 2 * BLOCK, path, "has no room for header and end")
    for name, value in {"magic": 20261121, "version": 2, **expected}.items():
        _require(file.number(name) == value, path, f"{name} is {file.number(name)}, expected {value}")
    for name, least in _LEAST.items():
        _require(file.number(name) >= least, path, f"{name} is {file.number(name)}")
    _require(file.number("arithmetic") in (0, 1, 2), path, "arithmetic")
    problem = config_problem({name: int(file.number(name)) for name in _SIZES})
    _require(problem is None, path, f"sizes: {problem}")


def _tensors(path: Path, file: StateFile) -> dict[_Key, list[NDArray[np.float32]]]:
    """Return params, m and v of the file's tensors, in whose table, size and end everything is as it has to be."""
    config = ModelConfig(**{name: int(file.number(name)) for name in _SIZES})
    shapes, count = parameter_shapes(config), int(file.number("number of tensors"))
    begin = position = begin_of_values(count)
    _require(file.size >= begin + BLOCK, path, "has no room for its table")
    found: dict[_Key, list[NDArray[np.float32]]] = {}
    for index in range(count):
        parameter, layer, elements, positions = file.entry(index)
        _require(0 <= parameter < len(shapes), path, f"parameter {parameter}")
        name = list(shapes)[parameter]
        _require(0 <= layer < _num_layers(config, name), path, f"layer {layer} of {name}")
        _require((name, layer) not in found, path, f"{name}[{layer}] twice")
        _require(elements == num_elements(shapes[name]) // _num_layers(config, name), path, f"{elements} elements")
        size = rounded_up(4 * elements)
        places = tuple(position + size * part for part in range(len(PARTS)))
        _require(positions == places, path, f"{name}[{layer}] is at {positions}, expected {places}")
        position += size * len(PARTS)
        _require(position + BLOCK <= file.size, path, f"ends before {name}[{layer}]")
        values = [file.values(index, part) for part in range(len(PARTS))]
        checksums = [file.checksum(index, part) for part in range(len(PARTS))]
        _require(checksums == list(map(zlib.crc32, values)), path, f"checksums of {name}[{layer}]")
        found[name, layer] = [np.frombuffer(value, "<f4") for value in values]
    table_end = HEADER + count * (ENTRY + CHECKSUM * len(PARTS))
    for nothing in (*_NO_NUMBERS, slice(table_end, begin)):
        _require(not any(file.content[nothing]), path, f"bytes {nothing} aren't zeros")
    _require(file.size == position + BLOCK, path, f"{file.size} bytes, expected {position + BLOCK}")
    _require(StateFile(file.content).sealed().content == file.content, path, "the end doesn't go with the header")
    return found
