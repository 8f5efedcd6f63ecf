"""Between llm.c's checkpoints and GPT-2 models in Hugging Face's layout, one tensor of one layer at a time.

The values keep their bits. Three things differ: llm.c keeps the layers of a parameter together, its matrices are
(output, input) where Hugging Face's Conv1D has (input, output), and it pads wte to Vp rows.

Size letters: C channels, L layers, V vocabulary, Vp padded vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import FormatError
from starpullm.files import hugging_face
from starpullm.files.arrays import FLOAT32, bytes_of, read_array
from starpullm.files.atomic import atomic_folder, atomic_write, require_space
from starpullm.files.checkpoint import checkpoint_config, checkpoint_header
from starpullm.files.header import HEADER_BYTES, StrPath, reading
from starpullm.files.hugging_face import HuggingFaceModel
from starpullm.files.kinds import SAFETENSORS, kind_of
from starpullm.files.model import (
    UNLAYERED_PARAMETERS,
    ModelConfig,
    num_elements,
    num_parameters,
    padded_vocab,
    parameter_shapes,
    tensor_sections,
)
from starpullm.files.safetensors import StoredTensor, header_of, read_values

_PIECE: Final = 1 << 22
"""Values at a time of what isn't transposed, 16 MB. A matrix of one layer is transposed as a whole."""


@dataclass(frozen=True)
class Conversion:
    """What has been written: the model's sizes, and how many padding rows of wte were dropped although not all 0."""

    config: ModelConfig
    dropped_rows: int = 0


def from_hugging_face(source: StrPath, out: StrPath, *, padded_vocab_size: int | None = None) -> Conversion:
    """Write a model in Hugging Face's layout as llm.c's checkpoint; values become float32, which holds them exactly.

    ``source`` is the model's folder, or its safetensors or index file, with config.json beside it. After a failure an
    existing file ``out`` is unchanged. ``padded_vocab_size`` is Vp, by default V rounded up to a multiple of 128, as in
    llm.c; the rows of wte after V are 0.

    `FormatError` is raised if the model isn't one that llm.c computes, or if its files are damaged, and
    `InvalidArgumentError` if Vp is less than V.
    """
    model = hugging_face.open_model(source)
    if model.head is not None:
        _check_tied(model.head, model.tensor("wte", 0))
    vocab_size = model.config.vocab_size
    padded = padded_vocab(vocab_size) if padded_vocab_size is None else padded_vocab_size
    config = replace(model.config, padded_vocab_size=padded)
    header = checkpoint_header(config)
    require_space(out, len(header) + FLOAT32.itemsize * num_parameters(config))
    with atomic_write(out) as file:
        file.write(header)
        for parameter in parameter_shapes(config):
            layers = 1 if parameter in UNLAYERED_PARAMETERS else config.num_layers
            for layer in range(layers):
                for values in _stored_pieces(model, parameter, layer):
                    file.write(bytes_of(values, FLOAT32))
            if parameter == "wte":
                for _, size in _cut((padded - vocab_size) * config.channels):
                    file.write(bytes(4 * size))
    return Conversion(config)


def to_hugging_face(source: StrPath, out: StrPath) -> Conversion:
    """Write llm.c's checkpoint as a folder with config.json and model.safetensors, float32, without padding rows.

    `FileError` is raised if ``out`` exists and isn't an empty folder.
    """
    config = checkpoint_config(source)
    stored = list(hugging_face.stored_shapes(config))
    names, sizes = zip(*tensor_sections(config), strict=True)
    starts = dict(zip(names, accumulate(sizes, initial=HEADER_BYTES), strict=False))
    require_space(out, FLOAT32.itemsize * sum(num_elements(shape) for _, shape, _, _ in stored))
    with reading(source) as (checkpoint, where), atomic_folder(out) as folder:
        (folder / hugging_face.CONFIG_FILE).write_text(hugging_face.config_text(config), encoding="utf-8")
        with (folder / hugging_face.MODEL_FILE).open("wb") as file:
            file.write(header_of({hugging_face.PREFIX + name: shape for name, shape, _, _ in stored}))
            for _, shape, parameter, layer in stored:
                count = num_elements(shape)
                start = starts[parameter] + 4 * layer * count
                if hugging_face.STORED_PARAMETERS[parameter].transposed:
                    values = _read(checkpoint, where, start, count).reshape(shape[::-1])
                    file.write(bytes_of(values.T, FLOAT32))
                    continue
                for first, size in _cut(count):
                    file.write(bytes_of(_read(checkpoint, where, start + 4 * first, size), FLOAT32))
        padding = config.padded_vocab_size - config.vocab_size
        after = starts["wte"] + 4 * config.vocab_size * config.channels
        dropped = _rows_with_values(checkpoint, where, after, padding, config.channels)
    return Conversion(replace(config, padded_vocab_size=config.vocab_size), dropped)


def _read(checkpoint: BinaryIO, where: Path, position: int, count: int) -> NDArray[np.float32]:
    return read_array(checkpoint, where, FLOAT32, position, count, mmap=False)


def _cut(count: int) -> Iterator[tuple[int, int]]:
    """Yield first index and size of the pieces of so many values."""
    for first in range(0, count, _PIECE):
        yield first, min(_PIECE, count - first)


def _stored_pieces(model: HuggingFaceModel, parameter: str, layer: int) -> Iterator[NDArray[np.float32]]:
    """Yield the values of a parameter in llm.c's order."""
    tensor = model.tensor(parameter, layer)
    count = num_elements(tensor.shape)
    if hugging_face.STORED_PARAMETERS[parameter].transposed:
        yield read_values(tensor, 0, count).reshape(tensor.shape).T
        return
    for first, size in _cut(count):
        yield read_values(tensor, first, size)


def _rows_with_values(checkpoint: BinaryIO, where: Path, start: int, rows: int, channels: int) -> int:
    """Return how many of the rows have a value whose bits aren't those of +0."""
    found: set[int] = set()
    for first, size in _cut(rows * channels):
        values = _read(checkpoint, where, start + 4 * first, size).view(np.uint32)
        found.update(((first + np.flatnonzero(values)) // channels).tolist())
    return len(found)


def _check_tied(head: StoredTensor, wte: StoredTensor) -> None:
    """Refuse a model whose output matrix isn't wte: llm.c has one array for both."""
    for first, size in _cut(num_elements(wte.shape)):
        pair = (read_values(tensor, first, size).view(np.uint32) for tensor in (head, wte))
        different = np.not_equal(*pair)
        if different.any():
            index = first + int(np.argmax(different))
            raise FormatError(
                f"{head.file}, tensor {head.name}: expected the values of {wte.name}, found another at index "
                f"{tuple(int(i) for i in np.unravel_index(index, wte.shape))}: the model's output matrix isn't tied"
            )


def is_hugging_face(source: StrPath) -> bool:
    """Return whether a path is one of a model in Hugging Face's layout, by its suffix or what it is."""
    path = Path(source)
    return path.suffix in (".safetensors", ".json") or path.is_dir() or (kind_of(path) or "").startswith(SAFETENSORS)
