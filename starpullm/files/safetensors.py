"""safetensors: one file of named tensors, read and written one tensor at a time.

The format is read directly: the package of the same name writes only tensors that are all in memory at once, and has no
bfloat16 for NumPy. A file consists of the length of the header (uint64), the header (JSON), and the tensors' bytes,
little-endian, which leave no gap.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import FormatError
from starpullm.files.arrays import FLOAT32, UINT16, read_array
from starpullm.files.header import StrPath, file_size, reading, refusal
from starpullm.files.json_reader import parse_json
from starpullm.files.kinds import SAFETENSORS
from starpullm.files.model import num_elements

LENGTH_BYTES: Final = 8
MAX_HEADER_BYTES: Final = 100_000_000
"""The format's own limit."""
METADATA: Final = "__metadata__"
FLOAT16: Final = np.dtype("<f2")
_BFLOAT16_SHIFT: Final = np.uint32(16)
_ITEM_BYTES: Final = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
EXACT_DTYPES: Final = ("F32", "F16", "BF16")
"""The dtypes whose every value is a binary32 number."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: its name and dtype there, its shape, and the position of its first byte."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    position: int

    def check_exact(self) -> None:
        """Raise `FormatError` if the dtype isn't one of `EXACT_DTYPES`."""
        if self.dtype not in EXACT_DTYPES:
            raise FormatError(
                f"{self.file}, tensor {self.name}: expected dtype {', '.join(EXACT_DTYPES)}, found {self.dtype}"
            )


def stored_tensors(path: StrPath) -> dict[str, StoredTensor]:
    """Return the tensors of a file by name, in the order of its header; no value is read."""
    with reading(path, SAFETENSORS) as (file, where):
        entries, start = _read_header(file, where)
        spans = []
        tensors = {}
        for name, entry in entries.items():
            dtype, shape, begin, end = _checked_entry(where, name, entry)
            tensors[name] = StoredTensor(where, name, dtype, shape, start + begin)
            spans.append((begin, end, name))
        _check_spans(where, spans, start, file_size(file))
        return tensors


def read_values(tensor: StoredTensor, first: int, count: int) -> NDArray[np.float32]:
    """Read `count` values from the row-major index `first` on, as binary32 numbers with exactly these values.

    The bits of an F32 tensor are kept, those of NaN too. A dtype that isn't in `EXACT_DTYPES` raises `FormatError`.
    """
    tensor.check_exact()
    dtypes: dict[str, np.dtype[Any]] = {"F32": FLOAT32, "F16": FLOAT16, "BF16": UINT16}
    dtype = dtypes[tensor.dtype]
    with reading(tensor.file) as (file, where):
        stored = read_array(file, where, dtype, tensor.position + dtype.itemsize * first, count, mmap=False)
    if tensor.dtype == "BF16":
        return (stored.astype(np.uint32) << _BFLOAT16_SHIFT).view(np.float32)
    return stored if tensor.dtype == "F32" else stored.astype(np.float32)


def header_of(shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    """Return what a file of these float32 tensors begins with; their values follow in the same order."""
    # Readers of PyTorch models expect this entry.
    header: dict[str, Any] = {METADATA: {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * num_elements(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": (begin, end)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)  # so that the values are aligned
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _read_header(file: BinaryIO, where: Path) -> tuple[dict[str, Any], int]:
    """Return the header's entries, and the position where the values begin."""
    size = file_size(file)
    if size < LENGTH_BYTES:
        raise refusal(where, size, f"the {LENGTH_BYTES} bytes of the header's length", "the end of the file")
    length = int.from_bytes(file.read(LENGTH_BYTES), "little")
    if length > MAX_HEADER_BYTES:
        raise refusal(where, 0, f"a safetensors header of at most {MAX_HEADER_BYTES} bytes", f"{length}")
    if LENGTH_BYTES + length > size:
        raise refusal(where, size, f"a header of {length} bytes", "the end of the file")
    entries = parse_json(file.read(length), where, LENGTH_BYTES)
    if not isinstance(entries, dict):
        raise refusal(where, LENGTH_BYTES, "a JSON object", type(entries).__name__)
    metadata = entries.pop(METADATA, {})
    if not isinstance(metadata, dict):
        raise refusal(where, LENGTH_BYTES, f"{METADATA} to be an object", f"{metadata!r:.40}")
    return entries, LENGTH_BYTES + length


def _checked_entry(where: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    """Return dtype, shape and the positions of begin and end among the values."""

    def wrong(expected: str, found: object) -> FormatError:
        return FormatError(f"{where}, tensor {name}: expected {expected}, found {found!s:.60}")

    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise wrong("dtype, shape and data_offsets", entry)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
        raise wrong(f"dtype {', '.join(_ITEM_BYTES)}", dtype)
    if not _are_sizes(shape):
        raise wrong("a shape of sizes", shape)
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise wrong("data_offsets of begin and end", offsets)
    length = _ITEM_BYTES[dtype] * num_elements(tuple(shape))
    if offsets[1] - offsets[0] != length:
        raise wrong(f"{length} bytes ({dtype} {tuple(shape)})", f"{offsets[1] - offsets[0]}")
    return dtype, tuple(shape), offsets[0], offsets[1]


def _are_sizes(values: Any) -> bool:
    """Return whether these are the sizes of an array, or positions; NumPy has at most 64 dimensions."""
    return (
        isinstance(values, list)
        and len(values) <= 64
        and all(type(value) is int and 0 <= value < 2**63 for value in values)
    )


def _check_spans(where: Path, spans: list[tuple[int, int, str]], start: int, size: int) -> None:
    """Check that the tensors follow each other without overlap or gap, up to the end of the file."""
    position = 0
    before = "the header"
    for begin, end, name in sorted(spans):
        if begin < position:
            raise refusal(where, start + begin, f"the end of {before} before {name}", "that they overlap")
        if begin > position:
            raise refusal(where, start + position, f"{name} after {before}", f"a gap of {begin - position} bytes")
        if start + end > size:
            raise refusal(where, size, f"{start + end} bytes or more", f"the end of the file in {name}")
        position, before = end, name
    if start + position != size:
        raise refusal(where, start + position, "the end of the file", f"{size - start - position} more bytes")
