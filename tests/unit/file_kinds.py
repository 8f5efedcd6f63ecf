"""Small files of three of llm.c's formats, with functions that read and write them, for the tests of formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from starpullm.files.checkpoint import Checkpoint, checkpoint_config, read_checkpoint, write_checkpoint
from starpullm.files.header import HEADER_BYTES, StrPath, header_bytes
from starpullm.files.model import ModelConfig, parameter_shapes
from starpullm.files.tokenizer import Tokenizer, read_tokenizer
from starpullm.files.tokens import read_tokens, write_tokens

CONFIG = ModelConfig(max_seq_len=4, vocab_size=5, num_layers=2, num_heads=2, channels=4, padded_vocab_size=8)


def some_tensors(config: ModelConfig, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Arrays with the shapes of the parameters and bits of all kinds, NaN and subnormals included."""
    random = np.random.default_rng(seed)
    return {
        name: random.integers(0, 2**32, shape, np.uint32).view(np.float32)
        for name, shape in parameter_shapes(config).items()
    }


def write_tokenizer(path: StrPath, tokenizer: Tokenizer, version: int = 2) -> None:
    """Write a tokenizer as docs/formats.md has it."""
    extra = [tokenizer.end_of_text] if version == 2 else []
    header = header_bytes("a tokenizer", version, len(tokenizer.tokens), *extra)
    Path(path).write_bytes(header + b"".join(bytes([len(token)]) + token for token in tokenizer.tokens))


def same_bits(left: NDArray[np.float32], right: NDArray[np.float32]) -> bool:
    """Compare as bits, so that NaN equals itself and -0.0 differs from 0.0."""
    return left.shape == right.shape and left.tobytes() == right.tobytes()


def patch_int32(path: Path, index: int, value: int) -> None:
    """Overwrite the header's int32 number `index`."""
    content = bytearray(path.read_bytes())
    content[4 * index : 4 * index + 4] = value.to_bytes(4, "little", signed=True)
    path.write_bytes(content)


@dataclass(frozen=True)
class Kind:
    """A format: how to write a small file, how to read it, and where its parts end."""

    name: str
    magic: int
    version: int
    write: Callable[[Path], None]
    read: Callable[[Path], object]
    boundaries: tuple[int, ...]


def _sections() -> tuple[int, ...]:
    sizes = [4 * int(np.prod(shape)) for shape in parameter_shapes(CONFIG).values()]
    return tuple(HEADER_BYTES + int(end) for end in np.cumsum(sizes))


TOKENIZER = Tokenizer((b"a", b"bcd", b"\xff", b"<|endoftext|>"), end_of_text=3)


def _write_checkpoint(path: Path) -> None:
    write_checkpoint(path, Checkpoint(CONFIG, some_tensors(CONFIG)))


def _read_mapped(path: Path) -> Checkpoint:
    return read_checkpoint(path, mmap=True)


KINDS = [
    Kind("checkpoint", 20240326, 3, _write_checkpoint, read_checkpoint, _sections()),
    Kind("checkpoint, mapped", 20240326, 3, _write_checkpoint, _read_mapped, _sections()),
    Kind("checkpoint, header only", 20240326, 3, _write_checkpoint, checkpoint_config, _sections()),
    Kind(
        "tokenizer",
        20240328,
        2,
        lambda path: write_tokenizer(path, TOKENIZER),
        read_tokenizer,
        (HEADER_BYTES + 2, HEADER_BYTES + 6, HEADER_BYTES + 8, HEADER_BYTES + 22),
    ),
    Kind(
        "tokens",
        20240520,
        1,
        lambda path: write_tokens(path, [1, 2, 3, 65535]),
        read_tokens,
        (HEADER_BYTES + 2, HEADER_BYTES + 4, HEADER_BYTES + 6, HEADER_BYTES + 8),
    ),
]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def sparse(path: Path, header: bytes, size: int, end: bytes) -> None:
    """Make a file of that size that takes no space on disk."""
    with path.open("wb") as file:
        file.write(header)
        file.truncate(size)
        file.seek(size - len(end))
        file.write(end)


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    """Small models of all shapes."""
    size = st.integers(1, 5)
    heads, vocab_size = draw(size), draw(size)
    return ModelConfig(
        draw(size), vocab_size, draw(size), heads, heads * draw(size), vocab_size + draw(st.integers(0, 3))
    )
