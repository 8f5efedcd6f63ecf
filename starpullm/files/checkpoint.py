"""llm.c's model checkpoint: a model's sizes and its float32 parameters."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import InvalidArgumentError
from starpullm.files.arrays import FLOAT32, bytes_of, read_array
from starpullm.files.atomic import atomic_write
from starpullm.files.header import (
    HEADER_BYTES,
    StrPath,
    check_size,
    header_bytes,
    read_header,
    reading,
    refusal,
)
from starpullm.files.kinds import CHECKPOINT
from starpullm.files.model import (
    ModelConfig,
    config_problem,
    num_elements,
    num_parameters,
    parameter_shapes,
    tensor_sections,
)

CHECKPOINT_VERSION: Final = 3
CHECKPOINT_VERSION_BFLOAT16: Final = 5


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model: its sizes and its parameters.

    The parameters have the names, shapes and order of `parameter_shapes`. Missing or unknown names, other shapes and
    other dtypes than float32 raise `InvalidArgumentError`.
    """

    config: ModelConfig
    parameters: dict[str, NDArray[np.float32]]

    def __post_init__(self) -> None:
        """Check names, shapes and dtypes of the parameters, and bring them into the file's order."""
        shapes, given = parameter_shapes(self.config), self.parameters
        missing = [name for name in shapes if name not in given]
        unknown = [name for name in given if name not in shapes]
        if missing or unknown:
            found = (f"{word} {', '.join(names)}" for word, names in (("no", missing), ("also", unknown)) if names)
            raise InvalidArgumentError(f"parameters: expected {', '.join(shapes)}, found {' and '.join(found)}")
        for name, shape in shapes.items():
            array = given[name]
            if array.shape != shape or array.dtype != FLOAT32:
                raise InvalidArgumentError(
                    f"parameters, {name}: expected {FLOAT32} {shape}, found {array.dtype} {array.shape}"
                )
        object.__setattr__(self, "parameters", {name: given[name] for name in shapes})


def checkpoint_config(path: StrPath) -> ModelConfig:
    """Read the model's sizes from a checkpoint, and check that the file has the size that follows from them."""
    with reading(path, CHECKPOINT) as (file, where):
        return _read_checkpoint_header(file, where)


def read_checkpoint(path: StrPath, *, mmap: bool = False) -> Checkpoint:
    """Read a model checkpoint; with `mmap`, the parameters are read-only views of the mapped file."""
    with reading(path, CHECKPOINT) as (file, where):
        config = _read_checkpoint_header(file, where)
        body = read_array(file, where, FLOAT32, HEADER_BYTES, num_parameters(config), mmap=mmap)
        shapes = parameter_shapes(config)
        parts = np.split(body, np.cumsum([num_elements(shape) for shape in shapes.values()])[:-1])
        return Checkpoint(config, {name: part.reshape(shapes[name]) for name, part in zip(shapes, parts, strict=True)})


def checkpoint_header(config: ModelConfig) -> bytes:
    """Return the header of a checkpoint, 1024 bytes."""
    return header_bytes(CHECKPOINT, CHECKPOINT_VERSION, *astuple(config))


def write_checkpoint(path: StrPath, checkpoint: Checkpoint) -> None:
    """Write a model checkpoint; after a failure an existing file is unchanged."""
    with atomic_write(path) as file:
        file.write(checkpoint_header(checkpoint.config))
        for array in checkpoint.parameters.values():
            file.write(bytes_of(array, FLOAT32))


def _read_checkpoint_header(file: BinaryIO, where: Path) -> ModelConfig:
    header = read_header(file, where, CHECKPOINT)
    if header[1] != CHECKPOINT_VERSION:
        more = " (bfloat16), which isn't supported" if header[1] == CHECKPOINT_VERSION_BFLOAT16 else ""
        raise refusal(where, 4, f"version {CHECKPOINT_VERSION} (float32)", f"version {header[1]}{more}")
    names = [field.name for field in fields(ModelConfig)]
    sizes = dict(zip(names, header[2:], strict=False))
    problem = config_problem(sizes)
    if problem is not None:
        name, expected, found = problem
        raise refusal(where, 8 + 4 * names.index(name), f"{name} to be {expected}", found)
    config = ModelConfig(**sizes)
    check_size(file, where, tensor_sections(config))
    return config
