"""Tests of reading and writing llm.c's files: round trips, every kind of damage, atomic writing.

pytest runs them; they need no native library.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from starpullm.errors import (
    FileError,
    FormatError,
    InvalidArgumentError,
    OutOfMemoryError,
    TokenRangeError,
)
from starpullm.files.atomic import atomic_write
from starpullm.files.checkpoint import (
    Checkpoint,
    checkpoint_config,
    checkpoint_header,
    read_checkpoint,
    write_checkpoint,
)
from starpullm.files.debug_state import DebugState, read_debug_state, write_debug_state
from starpullm.files.header import HEADER_BYTES
from starpullm.files.model import ModelConfig, num_parameters, parameter_shapes
from starpullm.files.tokenizer import Tokenizer, read_tokenizer, write_tokenizer
from starpullm.files.tokens import read_tokens, token_count, write_tokens

CONFIG = ModelConfig(max_seq_len=4, vocab_size=5, num_layers=2, num_heads=2, channels=4, padded_vocab_size=8)


def some_tensors(config: ModelConfig, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Arrays with the shapes of the parameters and bits of all kinds, NaN and subnormals included."""
    random = np.random.default_rng(seed)
    return {
        name: random.integers(0, 2**32, shape, np.uint32).view(np.float32)
        for name, shape in parameter_shapes(config).items()
    }


def some_debug_state(config: ModelConfig, batch_size: int, seq_len: int, seed: int = 0) -> DebugState:
    """Return a debug state of random content."""
    random = np.random.default_rng(seed)
    return DebugState(
        config,
        inputs=random.integers(0, config.vocab_size, (batch_size, seq_len), np.int32),
        targets=random.integers(0, config.vocab_size, (batch_size, seq_len), np.int32),
        logits=random.standard_normal((batch_size, seq_len, config.vocab_size), np.float32),
        loss=float(np.float32(1.25)),
        gradients=some_tensors(config, seed),
    )


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


def _debug_sections() -> tuple[int, ...]:
    before = np.cumsum([4 * 6, 4 * 6, 4 * 6 * CONFIG.vocab_size, 4])
    ends = [HEADER_BYTES + int(end) for end in before]
    return (*ends, *(end - HEADER_BYTES + ends[-1] for end in _sections()))


TOKENIZER = Tokenizer((b"a", b"bcd", b"\xff", b"<|endoftext|>"), end_of_text=3)
KINDS = [
    Kind(
        "checkpoint",
        20240326,
        3,
        lambda path: write_checkpoint(path, Checkpoint(CONFIG, some_tensors(CONFIG))),
        read_checkpoint,
        _sections(),
    ),
    Kind(
        "checkpoint, mapped",
        20240326,
        3,
        lambda path: write_checkpoint(path, Checkpoint(CONFIG, some_tensors(CONFIG))),
        lambda path: read_checkpoint(path, mmap=True),
        _sections(),
    ),
    Kind(
        "checkpoint, header only",
        20240326,
        3,
        lambda path: write_checkpoint(path, Checkpoint(CONFIG, some_tensors(CONFIG))),
        checkpoint_config,
        _sections(),
    ),
    Kind(
        "debug state",
        20240327,
        2,
        lambda path: write_debug_state(path, some_debug_state(CONFIG, 2, 3)),
        lambda path: read_debug_state(path, CONFIG),
        _debug_sections(),
    ),
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
    Kind(
        "tokens, count only",
        20240520,
        1,
        lambda path: write_tokens(path, [1, 2, 3, 65535]),
        token_count,
        (HEADER_BYTES + 8,),
    ),
]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def truncations() -> Iterator[tuple[Kind, int]]:
    """Every size just before, at and after a boundary that is shorter than the whole file."""
    for kind in KINDS:
        edges = (0, 4, 8, HEADER_BYTES, *kind.boundaries)
        sizes = {edge + delta for edge in edges for delta in (-1, 0, 1)}
        for size in sorted(sizes):
            if 0 <= size < kind.boundaries[-1]:
                yield kind, size


# ---- Damage that every format can have ----


@pytest.mark.parametrize(
    ("kind", "size"), [pytest.param(kind, size, id=f"{kind.name}-{size}") for kind, size in truncations()]
)
def test_truncated(tmp_path: Path, kind: Kind, size: int) -> None:
    """A file that ends too early is refused with the place where it ends."""
    path = tmp_path / "file.bin"
    kind.write(path)
    assert path.stat().st_size == kind.boundaries[-1]
    os.truncate(path, size)
    with pytest.raises(FormatError) as caught:
        kind.read(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path}, byte {size}: expected ")
    assert "found the end of the file" in sentence
    assert "\n" not in sentence


@every_kind
@pytest.mark.parametrize("extra", [1, 2, 4, 4096])
def test_oversized(tmp_path: Path, kind: Kind, extra: int) -> None:
    """A file that goes on after its end is refused with that end."""
    path = tmp_path / "file.bin"
    kind.write(path)
    end = path.stat().st_size
    with path.open("ab") as file:
        file.write(bytes(extra))
    with pytest.raises(FormatError) as caught:
        kind.read(path)
    assert str(caught.value) == f"{path}, byte {end}: expected the end of the file, found {extra} more bytes"


@every_kind
def test_wrong_magic(tmp_path: Path, kind: Kind) -> None:
    """Another magic is refused, whatever follows."""
    path = tmp_path / "file.bin"
    path.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(FormatError, match=rf"byte 0: expected magic {kind.magic} \(.*\), found 1179993927$"):
        kind.read(path)


@every_kind
def test_another_format(tmp_path: Path, kind: Kind) -> None:
    """A file of another of the four formats is named as what it is."""
    for other in KINDS:
        if other.magic != kind.magic:
            path = tmp_path / f"{other.magic}.bin"
            other.write(path)
            with pytest.raises(FormatError, match=rf"found {other.magic} \({other.name.split(',')[0]}|model"):
                kind.read(path)


@every_kind
@pytest.mark.parametrize("version", [0, 99, -1])
def test_wrong_version(tmp_path: Path, kind: Kind, version: int) -> None:
    """Another version is refused with both versions."""
    path = tmp_path / "file.bin"
    kind.write(path)
    patch_int32(path, 1, version)
    with pytest.raises(FormatError, match=rf"byte 4: expected version .*{kind.version}.*, found version {version}$"):
        kind.read(path)


@every_kind
def test_missing_file(tmp_path: Path, kind: Kind) -> None:
    """A file that isn't there is the operating system's error, with its number."""
    path = tmp_path / "none.bin"
    with pytest.raises(FileError, match=r"none\.bin: can't be read: No such file or directory$") as caught:
        kind.read(path)
    assert caught.value.errno == errno.ENOENT
    assert caught.value.filename == str(path)


@every_kind
def test_directory(tmp_path: Path, kind: Kind) -> None:
    """A directory isn't a file."""
    with pytest.raises(FileError) as caught:
        kind.read(tmp_path)
    assert caught.value.errno == errno.EISDIR


# ---- Model configs ----


def test_parameter_shapes() -> None:
    """Names, order and shapes are the checkpoint's."""
    assert parameter_shapes(CONFIG) == {
        "wte": (8, 4),
        "wpe": (4, 4),
        "ln1w": (2, 4),
        "ln1b": (2, 4),
        "qkvw": (2, 12, 4),
        "qkvb": (2, 12),
        "attprojw": (2, 4, 4),
        "attprojb": (2, 4),
        "ln2w": (2, 4),
        "ln2b": (2, 4),
        "fcw": (2, 16, 4),
        "fcb": (2, 16),
        "fcprojw": (2, 4, 16),
        "fcprojb": (2, 4),
        "lnfw": (4,),
        "lnfb": (4,),
    }
    assert " ".join(parameter_shapes(CONFIG)) == (
        "wte wpe ln1w ln1b qkvw qkvb attprojw attprojb ln2w ln2b fcw fcb fcprojw fcprojb lnfw lnfb"
    )


def test_number_of_parameters_of_gpt2() -> None:
    """GPT-2's 124 million, with the padding rows of the token table."""
    config = ModelConfig(1024, 50257, 12, 12, 768, 50304)
    assert num_parameters(config) == 124439808 + (50304 - 50257) * 768


BAD_SIZES = [
    *((name, value) for name in asdict(CONFIG) for value in (0, -1, -(2**31))),
    ("num_heads", 3),
    ("padded_vocab_size", 4),
    ("channels", 2**31 - 2),
]


@pytest.mark.parametrize(("name", "value"), BAD_SIZES)
def test_bad_sizes_in_a_config(name: str, value: int) -> None:
    """A config that no model can have can't be made."""
    blamed = "channels" if name == "num_heads" and value > 0 else name
    with pytest.raises(InvalidArgumentError, match=rf"^model config, {blamed}: expected .*, found "):
        replace(CONFIG, **{name: value})


@pytest.mark.parametrize(("name", "value"), BAD_SIZES)
def test_bad_sizes_in_a_file(tmp_path: Path, name: str, value: int) -> None:
    """The same sizes in a header are refused with the byte they stand at."""
    path = tmp_path / "model.bin"
    KINDS[0].write(path)
    patch_int32(path, 2 + list(asdict(CONFIG)).index(name), value)
    blamed = "channels" if name == "num_heads" and value > 0 else name
    offset = 8 + 4 * list(asdict(CONFIG)).index(blamed)
    for read in (read_checkpoint, checkpoint_config):
        with pytest.raises(FormatError, match=rf", byte {offset}: expected {blamed} to be .*, found "):
            read(path)


@pytest.mark.parametrize("value", [2**31, 2**63, 2**64])
def test_sizes_beyond_the_header(value: int) -> None:
    """A size has to fit into the header's int32."""
    with pytest.raises(InvalidArgumentError, match="vocab_size"):
        replace(CONFIG, vocab_size=value)


def test_sizes_that_overflow() -> None:
    """Each size may be large where their product isn't."""
    large = ModelConfig(2**31 - 1, 2**31 - 1, 1, 1, 1, 2**31 - 1)
    assert num_parameters(large) > 2**32
    with pytest.raises(InvalidArgumentError, match="bytes fit into 64 bits"):
        replace(large, channels=2**29, num_layers=2**20)


def test_sizes_have_to_be_integers() -> None:
    """NumPy's integers will do, floats won't."""
    sizes: list[Any] = [np.int64(size) for size in asdict(CONFIG).values()]
    assert ModelConfig(*sizes) == CONFIG
    sizes[2] = 2.0
    with pytest.raises(InvalidArgumentError, match=r"num_layers: expected an integer, found 2\.0"):
        ModelConfig(*sizes)


# ---- Checkpoints ----


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    """Small models of all shapes."""
    size = st.integers(1, 5)
    heads, vocab_size = draw(size), draw(size)
    return ModelConfig(
        draw(size), vocab_size, draw(size), heads, heads * draw(size), vocab_size + draw(st.integers(0, 3))
    )


@given(config=configs(), seed=st.integers(0, 2**32), mmap=st.booleans())
def test_checkpoint_round_trip(
    tmp_path_factory: pytest.TempPathFactory, config: ModelConfig, seed: int, mmap: bool
) -> None:
    """What is written is read, bit for bit, and the file has llm.c's layout."""
    path = tmp_path_factory.mktemp("checkpoint") / "model.bin"
    tensors = some_tensors(config, seed)
    write_checkpoint(path, Checkpoint(config, tensors))
    read = read_checkpoint(path, mmap=mmap)
    assert read.config == config == checkpoint_config(path)
    assert list(read.parameters) == list(tensors)
    assert all(same_bits(read.parameters[name], tensors[name]) for name in tensors)
    content = path.read_bytes()
    assert np.frombuffer(content, "<i4", 8).tolist() == [20240326, 3, *asdict(config).values()]
    assert content[32:HEADER_BYTES] == bytes(HEADER_BYTES - 32)
    assert content[HEADER_BYTES:] == b"".join(array.tobytes() for array in tensors.values())


def test_bfloat16_is_named(tmp_path: Path) -> None:
    """llm.c's bfloat16 checkpoints are refused as what they are."""
    path = tmp_path / "gpt2_124M_bf16.bin"
    KINDS[0].write(path)
    patch_int32(path, 1, 5)
    with pytest.raises(FormatError, match=r"byte 4: expected version 3 \(float32\), found version 5 \(bfloat16"):
        read_checkpoint(path)


def test_truncation_names_the_tensor(tmp_path: Path) -> None:
    """The sentence says which tensor is cut."""
    path = tmp_path / "model.bin"
    KINDS[0].write(path)
    os.truncate(path, HEADER_BYTES + 4 * (8 * 4) + 5)
    with pytest.raises(FormatError, match=r"found the end of the file in wpe$"):
        read_checkpoint(path)


def test_mapped_arrays_are_read_only(tmp_path: Path) -> None:
    """A mapped checkpoint can't be changed by accident; one in memory is the reader's own."""
    path = tmp_path / "model.bin"
    KINDS[0].write(path)
    assert not read_checkpoint(path, mmap=True).parameters["wte"].flags.writeable
    assert type(read_checkpoint(path, mmap=True).parameters["wte"]) is np.ndarray
    assert read_checkpoint(path).parameters["wte"].flags.writeable


@pytest.mark.parametrize("damage", ["missing", "unknown", "shape", "dtype"])
def test_checkpoint_of_wrong_arrays(damage: str) -> None:
    """A checkpoint can't be made of arrays that don't fit its sizes."""
    tensors = some_tensors(CONFIG)
    if damage == "missing":
        del tensors["qkvw"]
    elif damage == "unknown":
        tensors["bias"] = tensors["qkvb"]
    elif damage == "shape":
        tensors["qkvw"] = tensors["qkvw"][:1]
    else:
        tensors["qkvw"] = np.zeros((2, 12, 4), np.float64)
    with pytest.raises(InvalidArgumentError, match=r"parameters.*(qkvw|bias)"):
        Checkpoint(CONFIG, tensors)


def test_order_of_arrays_does_not_matter(tmp_path: Path) -> None:
    """A checkpoint brings its arrays into the file's order."""
    tensors = some_tensors(CONFIG)
    backwards = Checkpoint(CONFIG, dict(reversed(tensors.items())))
    assert list(backwards.parameters) == list(tensors)


def test_arrays_that_are_not_contiguous(tmp_path: Path) -> None:
    """Views are written row by row as they look."""
    tensors = some_tensors(CONFIG)
    tensors["wte"] = np.asfortranarray(tensors["wte"])
    path = tmp_path / "model.bin"
    write_checkpoint(path, Checkpoint(CONFIG, tensors))
    assert same_bits(read_checkpoint(path).parameters["wte"], tensors["wte"])


def sparse(path: Path, header: bytes, size: int, end: bytes) -> None:
    """Make a file of that size that takes no space on disk."""
    with path.open("wb") as file:
        file.write(header)
        file.truncate(size)
        file.seek(size - len(end))
        file.write(end)


def test_checkpoint_beyond_two_gigabytes(tmp_path: Path) -> None:
    """Positions are 64-bit."""
    config = ModelConfig(1, 1, 1, 1, 1, 600_000_000)
    path = tmp_path / "model.bin"
    size = HEADER_BYTES + 4 * num_parameters(config)
    assert size > 2**31
    sparse(path, checkpoint_header(config), size, np.float32(1.5).tobytes())
    assert checkpoint_config(path) == config
    assert read_checkpoint(path, mmap=True).parameters["lnfb"].tolist() == [1.5]


def test_no_memory(tmp_path: Path) -> None:
    """A checkpoint that doesn't fit into memory is refused as such; its header can still be read."""
    config = ModelConfig(1, 1, 1, 1, 2**10, 2**31 - 1)
    path = tmp_path / "model.bin"
    try:
        sparse(path, checkpoint_header(config), HEADER_BYTES + 4 * num_parameters(config), b"")
    except OSError:
        pytest.skip("this file system has no files of 8 TB")
    assert checkpoint_config(path) == config
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**40, hard))
    try:
        with pytest.raises(OutOfMemoryError, match="no memory"):
            read_checkpoint(path)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


# ---- Debug state ----


@given(
    config=configs(),
    batch_size=st.integers(1, 3),
    seq_len=st.integers(1, 5),
    seed=st.integers(0, 2**32),
    mmap=st.booleans(),
)
def test_debug_state_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    config: ModelConfig,
    batch_size: int,
    seq_len: int,
    seed: int,
    mmap: bool,
) -> None:
    """What is written is read, bit for bit."""
    config = replace(config, max_seq_len=max(config.max_seq_len, seq_len))
    path = tmp_path_factory.mktemp("debug") / "state.bin"
    state = some_debug_state(config, batch_size, seq_len, seed)
    write_debug_state(path, state)
    read = read_debug_state(path, config, mmap=mmap)
    assert np.array_equal(read.inputs, state.inputs)
    assert np.array_equal(read.targets, state.targets)
    assert same_bits(read.logits, state.logits)
    assert read.loss == state.loss
    assert all(same_bits(read.gradients[name], state.gradients[name]) for name in state.gradients)
    header = np.frombuffer(path.read_bytes(), "<i4", 4).tolist()
    assert header == [20240327, 2, batch_size, seq_len]


@pytest.mark.parametrize(("index", "value"), [(2, 0), (2, -4), (3, 0), (3, -1), (3, 5)])
def test_debug_state_of_bad_sizes(tmp_path: Path, index: int, value: int) -> None:
    """B and T have to be positive, T at most maxT."""
    path = tmp_path / "state.bin"
    KINDS[3].write(path)
    patch_int32(path, index, value)
    with pytest.raises(FormatError, match=rf"byte {4 * index}: expected .*, found {value}$"):
        read_debug_state(path, CONFIG)


@pytest.mark.parametrize("index", [256, 261, 262, 267])
@pytest.mark.parametrize("value", [-1, 5, 2**31 - 1])
def test_debug_state_with_token_out_of_range(tmp_path: Path, index: int, value: int) -> None:
    """Ids of inputs and targets are checked against V."""
    path = tmp_path / "state.bin"
    KINDS[3].write(path)
    patch_int32(path, index, value)
    with pytest.raises(TokenRangeError, match=rf"byte {4 * index}: expected .* in \[0, 5\), found {value}$"):
        read_debug_state(path, CONFIG)


def test_debug_state_of_another_model(tmp_path: Path) -> None:
    """The file's size shows that it belongs to another model."""
    path = tmp_path / "state.bin"
    KINDS[3].write(path)
    with pytest.raises(FormatError, match="bytes in all"):
        read_debug_state(path, replace(CONFIG, num_layers=3))
    with pytest.raises(FormatError, match="more bytes"):
        read_debug_state(path, replace(CONFIG, num_layers=1))


def test_debug_state_of_wrong_arrays() -> None:
    """A debug state can't be made of arrays that don't fit."""
    state = some_debug_state(CONFIG, 2, 3)
    with pytest.raises(InvalidArgumentError, match="logits"):
        replace(state, logits=state.logits[..., :4])
    with pytest.raises(InvalidArgumentError, match="targets"):
        replace(state, targets=state.targets[:1])
    with pytest.raises(InvalidArgumentError, match=r"inputs: expected the shape \(B,T\)"):
        replace(state, inputs=state.inputs[0])
    with pytest.raises(InvalidArgumentError, match="gradients"):
        replace(state, gradients={})
    with pytest.raises(TokenRangeError, match=r"targets, element 0: .* in \[0, 5\), found 5"):
        replace(state, targets=np.full((2, 3), 5, np.int32))
    with pytest.raises(InvalidArgumentError, match="T to be at most 4, found 5"):
        some_debug_state(CONFIG, 1, 5)


# ---- Tokenizers ----


@given(
    tokens=st.lists(st.binary(min_size=1, max_size=255), min_size=1, max_size=30),
    choice=st.integers(0, 10**6),
)
def test_tokenizer_round_trip(tmp_path_factory: pytest.TempPathFactory, tokens: list[bytes], choice: int) -> None:
    """What is written is read, and decoding joins the tokens' bytes."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.bin"
    tokenizer = Tokenizer(tuple(tokens), choice % len(tokens))
    write_tokenizer(path, tokenizer)
    assert read_tokenizer(path) == tokenizer
    assert tokenizer.decode_bytes(range(len(tokens))) == b"".join(tokens)
    assert np.frombuffer(path.read_bytes(), "<i4", 4).tolist() == [
        20240328,
        2,
        len(tokens),
        choice % len(tokens),
    ]


def test_version_1_implies_end_of_text(tmp_path: Path) -> None:
    """A version 1 file has no end-of-text id; it is GPT-2's."""
    path = tmp_path / "gpt2_tokenizer.bin"
    tokens = (*(f"t{index}".encode() for index in range(50256)), b"<|endoftext|>")
    write_tokenizer(path, Tokenizer(tokens, 50256, version=1))
    assert np.frombuffer(path.read_bytes(), "<i4", 4).tolist() == [20240328, 1, 50257, 0]
    tokenizer = read_tokenizer(path)
    assert (tokenizer.version, tokenizer.end_of_text, tokenizer.vocab_size) == (1, 50256, 50257)
    assert tokenizer.decode([7, 50256]) == "t7<|endoftext|>"


def test_version_1_of_another_size(tmp_path: Path) -> None:
    """50256 is only right for GPT-2's own vocabulary."""
    path = tmp_path / "tokenizer.bin"
    write_tokenizer(path, TOKENIZER)
    patch_int32(path, 1, 1)
    with pytest.raises(FormatError, match=r"byte 8: expected 50257 tokens in a version 1 tokenizer, found 4"):
        read_tokenizer(path)


@pytest.mark.parametrize(("index", "value"), [(2, 0), (2, -1), (3, 4), (3, -1)])
def test_tokenizer_of_bad_counts(tmp_path: Path, index: int, value: int) -> None:
    """The number of tokens is positive and the end-of-text id one of them."""
    path = tmp_path / "tokenizer.bin"
    write_tokenizer(path, TOKENIZER)
    patch_int32(path, index, value)
    with pytest.raises(FormatError, match=rf"byte {4 * index}: expected .*, found {value}$"):
        read_tokenizer(path)


def test_tokenizer_that_promises_too_much(tmp_path: Path) -> None:
    """A count of two billion doesn't make the reader ask for the memory of it."""
    path = tmp_path / "tokenizer.bin"
    write_tokenizer(path, TOKENIZER)
    patch_int32(path, 2, 2**31 - 1)
    with pytest.raises(FormatError, match="expected token 4 of 2147483647, found the end of the file"):
        read_tokenizer(path)


def test_token_without_bytes(tmp_path: Path) -> None:
    """A token of length 0 is refused where it stands."""
    path = tmp_path / "tokenizer.bin"
    write_tokenizer(path, TOKENIZER)
    content = bytearray(path.read_bytes())
    content[HEADER_BYTES + 2] = 0
    path.write_bytes(content)
    with pytest.raises(FormatError, match=f"byte {HEADER_BYTES + 2}: expected token 1 to have 1 to 255 bytes"):
        read_tokenizer(path)


@pytest.mark.parametrize(
    ("tokens", "end_of_text", "version"),
    [
        ((b"a",), 1, 2),
        ((b"a",), -1, 2),
        ((), 0, 2),
        ((b"",), 0, 2),
        ((bytes(256),), 0, 2),
        ((b"a",), 0, 1),
        ((b"a",), 0, 3),
    ],
)
def test_tokenizers_that_no_file_holds(tokens: tuple[bytes, ...], end_of_text: int, version: int) -> None:
    """They can't be made."""
    with pytest.raises(InvalidArgumentError, match=r"^tokenizer, "):
        Tokenizer(tokens, end_of_text, version)


def test_decoding_half_a_character() -> None:
    """Characters survive a cut between tokens; bytes that aren't UTF-8 become the replacement character."""
    halves = Tokenizer(("é".encode()[:1], "é".encode()[1:], b"."), 2)
    assert halves.decode([0, 1]) == "é"
    assert halves.decode([0, 2]) == "\ufffd."
    for bad in (-1, 3):
        with pytest.raises(TokenRangeError, match=rf"element 1: .* in \[0, 3\), found {bad}"):
            halves.decode([0, bad])


# ---- Tokens ----


@given(tokens=st.lists(st.integers(0, 65535), max_size=300), mmap=st.booleans())
def test_tokens_round_trip(tmp_path_factory: pytest.TempPathFactory, tokens: list[int], mmap: bool) -> None:
    """What is written is read."""
    path = tmp_path_factory.mktemp("tokens") / "tokens.bin"
    write_tokens(path, tokens)
    assert read_tokens(path, mmap=mmap, vocab_size=65536).tolist() == tokens
    assert token_count(path) == len(tokens)
    assert np.frombuffer(path.read_bytes(), "<i4", 3).tolist() == [20240520, 1, len(tokens)]


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64, np.uint64])
def test_tokens_of_any_integer_type(tmp_path: Path, dtype: type[np.integer]) -> None:
    """Arrays of all integer types are written as 16 bits."""
    path = tmp_path / "tokens.bin"
    write_tokens(path, np.array([0, 7, 65535], dtype))
    assert read_tokens(path).tolist() == [0, 7, 65535]


@pytest.mark.parametrize("bad", [65536, -1, 2**40])
def test_ids_that_do_not_fit(tmp_path: Path, bad: int) -> None:
    """Ids beyond 16 bits are refused with their position, and no file appears."""
    path = tmp_path / "tokens.bin"
    with pytest.raises(TokenRangeError, match=rf"token 2: expected an id from 0 to 65535, found {bad}$"):
        write_tokens(path, [1, 2, bad, -5])
    assert not path.exists()


@pytest.mark.parametrize("bad", [[[1, 2]], [1.5], 3, ["a"], [2**70]])
def test_tokens_that_are_none(tmp_path: Path, bad: object) -> None:
    """Only one-dimensional integers are tokens."""
    with pytest.raises(InvalidArgumentError, match="one-dimensional array of integer token ids"):
        write_tokens(tmp_path / "tokens.bin", np.asarray(bad))


@pytest.mark.parametrize("mmap", [True, False])
def test_ids_beyond_the_vocabulary(tmp_path: Path, mmap: bool) -> None:
    """With a vocabulary the first id beyond it is named with its byte."""
    path = tmp_path / "tokens.bin"
    write_tokens(path, [1, 2, 257, 300])
    assert read_tokens(path, mmap=mmap, vocab_size=301).size == 4
    with pytest.raises(TokenRangeError) as caught:
        read_tokens(path, mmap=mmap, vocab_size=257)
    assert str(caught.value) == f"{path}, byte 1028: expected a token id in [0, 257), found 257"


def test_a_late_id_beyond_the_vocabulary(tmp_path: Path) -> None:
    """The scan goes through the whole file, piece by piece."""
    path = tmp_path / "tokens.bin"
    ids = np.zeros(9_000_000, np.uint16)
    ids[-1] = 7
    write_tokens(path, ids)
    with pytest.raises(TokenRangeError, match=rf"byte {1024 + 2 * 8_999_999}: .*, found 7$"):
        read_tokens(path, vocab_size=7)


def test_negative_count(tmp_path: Path) -> None:
    """A negative number of tokens is refused."""
    path = tmp_path / "tokens.bin"
    write_tokens(path, [1])
    patch_int32(path, 2, -1)
    with pytest.raises(FormatError, match="byte 8: expected a number of tokens that isn't negative, found -1"):
        read_tokens(path)


def test_tokens_beyond_two_gigabytes(tmp_path: Path) -> None:
    """Positions are 64-bit."""
    path = tmp_path / "tokens.bin"
    count = 1_200_000_000
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, count
    sparse(path, header.tobytes(), HEADER_BYTES + 2 * count, b"\x39\x05")
    assert read_tokens(path)[-2:].tolist() == [0, 1337]


# ---- Atomic writing ----


def only(directory: Path) -> list[str]:
    """Names of everything in the directory."""
    return sorted(entry.name for entry in directory.iterdir())


def test_a_new_file_appears_whole(tmp_path: Path) -> None:
    """The name isn't there before everything is written."""
    path = tmp_path / "file.bin"
    with atomic_write(path) as file:
        file.write(b"new")
        assert not path.exists()
        assert len(only(tmp_path)) == 1
    assert path.read_bytes() == b"new"
    assert only(tmp_path) == ["file.bin"]


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, MemoryError])
def test_failure_in_the_middle(tmp_path: Path, old: bool, error: type[BaseException]) -> None:
    """The old file survives and the temporary is gone, and the error comes through."""
    path = tmp_path / "file.bin"
    if old:
        path.write_bytes(b"old")

    def write() -> None:
        with atomic_write(path) as file:
            file.write(b"new" * 100_000)
            raise error

    with pytest.raises(error):
        write()
    assert only(tmp_path) == (["file.bin"] if old else [])
    assert not old or path.read_bytes() == b"old"


@contextmanager
def size_limit(size: int) -> Iterator[None]:
    """Let the operating system refuse to make a file larger."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[3], KINDS[4], KINDS[5]], ids=lambda kind: kind.name)
@pytest.mark.parametrize("size", [0, 100, HEADER_BYTES, HEADER_BYTES + 7])
def test_disk_that_is_full(tmp_path: Path, kind: Kind, size: int) -> None:
    """When the operating system refuses bytes, the old file is still there and the error has the number."""
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    with size_limit(size), pytest.raises(FileError, match=r"file\.bin: can't be written: ") as caught:
        kind.write(path)
    assert caught.value.errno == errno.EFBIG
    assert path.read_bytes() == b"old"
    assert only(tmp_path) == ["file.bin"]


def refuse(*_: object) -> None:
    """Stand in for a system call that fails."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("call", ["os.fsync", "pathlib.Path.replace"])
def test_last_steps_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Failing to synchronise or rename leaves the old file and no temporary."""
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    monkeypatch.setattr(call, refuse)
    with pytest.raises(FileError, match="Input/output error"):
        write_tokens(path, [1, 2, 3])
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert only(tmp_path) == ["file.bin"]


def test_file_and_directory_are_synchronised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First the file, under its temporary name, then, once renamed, its directory."""
    path = tmp_path / "file.bin"
    seen: list[tuple[bool, bool]] = []

    def record(descriptor: int) -> None:
        seen.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), path.exists()))

    monkeypatch.setattr("os.fsync", record)
    write_tokens(path, [1])
    assert seen == [(False, False), (True, True)]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EACCES])
def test_directories_that_cannot_be_synchronised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Some file systems can't; the file is written all the same."""
    synchronise = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        synchronise(descriptor)

    monkeypatch.setattr("os.fsync", fsync)
    path = tmp_path / "file.bin"
    write_tokens(path, [1])
    assert read_tokens(path).tolist() == [1]


def test_permissions(tmp_path: Path) -> None:
    """A new file has the usual permissions, a replaced one keeps its own."""
    path = tmp_path / "file.bin"
    mask = os.umask(0o027)
    try:
        write_tokens(path, [1])
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o600)
    write_tokens(path, [2])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_symbolic_link(tmp_path: Path) -> None:
    """The file behind a link is replaced, not the link."""
    target = tmp_path / "real" / "file.bin"
    target.parent.mkdir()
    write_tokens(target, [1])
    link = tmp_path / "link.bin"
    link.symlink_to(target)
    write_tokens(link, [2])
    assert link.is_symlink()
    assert read_tokens(target).tolist() == [2]
    assert only(target.parent) == ["file.bin"]


def test_not_a_regular_file(tmp_path: Path) -> None:
    """Directories and devices aren't replaced."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FileError, match="expected a regular file"):
        write_tokens(pipe, [1])
    with pytest.raises(FileError, match="Is a directory") as caught:
        write_tokens(tmp_path, [1])
    assert caught.value.errno == errno.EISDIR
    assert only(tmp_path) == ["pipe"]


def test_no_such_directory(tmp_path: Path) -> None:
    """The directory has to be there."""
    with pytest.raises(FileError, match="No such file or directory") as caught:
        write_tokens(tmp_path / "none" / "file.bin", [1])
    assert caught.value.errno == errno.ENOENT
