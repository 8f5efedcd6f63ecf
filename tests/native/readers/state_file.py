"""One file of a training state whose numbers can be changed, with the fingerprint that goes with the change.

Written from docs/formats.md alone, so that a file which the library writes and reads in the same wrong way is noticed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

BLOCK: Final = 4096
HEADER: Final = 1024
ENTRY: Final = 40
CHECKSUM: Final = 4
PARTS: Final = ("params", "m", "v")

NUMBERS: Final = {
    "magic": (0, "<i"),
    "version": (4, "<i"),
    "max_seq_len": (8, "<i"),
    "vocab_size": (12, "<i"),
    "num_layers": (16, "<i"),
    "num_heads": (20, "<i"),
    "channels": (24, "<i"),
    "padded_vocab_size": (28, "<i"),
    "rank": (32, "<i"),
    "number of ranks": (36, "<i"),
    "number of tensors": (40, "<i"),
    "step": (48, "<q"),
    "run": (56, "<Q"),
    "number of batches": (64, "<q"),
    "batch size": (72, "<q"),
    "sequence length": (80, "<q"),
    "seed": (88, "<q"),
    "data id": (96, "<Q"),
    "learning rate": (104, "<f"),
    "beta1": (108, "<f"),
    "beta2": (112, "<f"),
    "eps": (116, "<f"),
    "weight decay": (120, "<f"),
    "arithmetic": (124, "<i"),
}
"""The header's numbers by the names that messages use: position in bytes, and type."""


def rounded_up(size: int) -> int:
    """Return the position of the next block."""
    return -(-size // BLOCK) * BLOCK


def begin_of_values(tensors: int) -> int:
    """Return where the values begin after a table of so many tensors."""
    return rounded_up(HEADER + tensors * (ENTRY + CHECKSUM * len(PARTS)))


class StateFile:
    """The bytes of a rank's file."""

    def __init__(self, content: bytes | bytearray) -> None:
        self.content = bytearray(content)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file."""
        return cls(path.read_bytes())

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.content)

    def number(self, name: str) -> int | float:
        """Return a number of the header."""
        position, kind = NUMBERS[name]
        value: int | float = struct.unpack_from(kind, self.content, position)[0]
        return value

    def entry(self, index: int) -> tuple[int, int, int, tuple[int, ...]]:
        """Return parameter, layer and number of elements of a tensor, and the positions of params, m and v."""
        parameter, layer, elements, *positions = struct.unpack_from("<iiq3q", self.content, HEADER + ENTRY * index)
        return parameter, layer, elements, tuple(positions)

    def checksum(self, index: int, part: int) -> int:
        """Return the stored checksum of a tensor's params, m or v."""
        table = HEADER + ENTRY * int(self.number("number of tensors"))
        value: int = struct.unpack_from("<I", self.content, table + CHECKSUM * (len(PARTS) * index + part))[0]
        return value

    def values(self, index: int, part: int) -> bytes:
        """Return the bytes of a tensor's params, m or v."""
        _, _, elements, positions = self.entry(index)
        return bytes(self.content[positions[part] : positions[part] + 4 * elements])

    def word(self, position: int) -> int:
        """Return the 32 bits at a position."""
        value: int = struct.unpack_from("<I", self.content, position)[0]
        return value

    def with_numbers(self, numbers: Mapping[str, int | float]) -> StateFile:
        """Return a copy with other numbers in the header."""
        changed = StateFile(self.content)
        for name, value in numbers.items():
            position, kind = NUMBERS[name]
            struct.pack_into(kind, changed.content, position, value)
        return changed.sealed()

    def with_entry(self, index: int, parameter: int, layer: int) -> StateFile:
        """Return a copy in whose table a tensor is called another one."""
        changed = StateFile(self.content)
        struct.pack_into("<ii", changed.content, HEADER + ENTRY * index, parameter, layer)
        return changed.sealed()

    def with_byte(self, position: int) -> StateFile:
        """Return a copy with one byte changed and nothing that goes with it."""
        changed = StateFile(self.content)
        changed.content[position] ^= 1
        return changed

    def without_tensors(self, numbers: Mapping[str, int | float]) -> StateFile:
        """Return a file of no tensor, with this one's header apart from these numbers."""
        empty = StateFile(bytes(self.content[:HEADER]).ljust(BLOCK, b"\0") + bytes(self.content[-BLOCK:]))
        return empty.with_numbers({"number of tensors": 0, **numbers})

    def write(self, path: Path, size: int | None = None) -> None:
        """Write the file, or so much of it."""
        content = bytes(self.content)
        path.write_bytes(content if size is None else content[:size].ljust(size, b"\0"))

    def sealed(self) -> StateFile:
        """Let the end go with header and table."""
        head = begin_of_values(max(int(self.number("number of tensors")), 0))
        end = struct.pack(
            "<iiqQiiQq",
            *(self.number(name) for name in ("magic", "version", "step", "run", "rank", "number of ranks")),
            _fnv1a(bytes(self.content[:head])),
            len(self.content),
        )
        self.content[-BLOCK:] = end.ljust(BLOCK, b"\0")
        return self


def _fnv1a(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value
