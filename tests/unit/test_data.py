"""Tests of token batches, text encodings, generated models and tokens, initialisation and sampling.

pytest runs them; they need no native library.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import math
import socket
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from starpullm.data import generator
from starpullm.data import text as text_module
from starpullm.data.generator import (
    generate_checkpoint,
    generate_parameters,
    generate_tokens,
    generated_checkpoint_sha256,
    generated_tokens_sha256,
    initial_parameters,
    mix,
)
from starpullm.data.loader import TokenLoader, token_files
from starpullm.data.sampling import XorShift, sample
from starpullm.data.text import TextEncoding, byte_encoding, gpt2_encoding, text_encoding
from starpullm.errors import (
    FileError,
    FormatError,
    InvalidArgumentError,
    MissingDependencyError,
    TokenRangeError,
)
from starpullm.files.checkpoint import checkpoint_header, read_checkpoint
from starpullm.files.model import ModelConfig, parameter_shapes
from starpullm.files.tokenizer import Tokenizer, write_tokenizer
from starpullm.files.tokens import write_tokens
from starpullm.golden.records import SHIPPED_RECORDS, shipped_record

# ---- Token batches ----


def literal_batches(
    shards: list[list[int]], batch_size: int, seq_len: int, rank: int, num_ranks: int
) -> Iterator[tuple[list[list[int]], list[list[int]]]]:
    """llm.c's order as its description says it, one token at a time, without end."""
    while True:
        for shard in shards:
            step = 0
            while (step + 1) * num_ranks * batch_size * seq_len + 1 <= len(shard):
                start = step * num_ranks * batch_size * seq_len + rank * batch_size * seq_len
                inputs = []
                targets = []
                for row in range(batch_size):
                    first = start + row * seq_len
                    inputs.append([shard[first + t] for t in range(seq_len)])
                    targets.append([shard[first + t + 1] for t in range(seq_len)])
                yield inputs, targets
                step += 1


def write_shards(directory: Path, shards: list[list[int]]) -> str:
    """Write the shards in reverse, so that the order isn't that of creation; return their pattern."""
    for index, shard in reversed(list(enumerate(shards))):
        write_tokens(directory / f"shard_{index:03}.bin", shard)
    return str(directory / "shard_*.bin")


@st.composite
def loads(draw: st.DrawFn) -> tuple[list[list[int]], int, int, int]:
    """Shards that all hold a step, with B, T and R."""
    size = st.integers(1, 4)
    batch_size, seq_len, num_ranks = draw(size), draw(size), draw(size)
    least = num_ranks * batch_size * seq_len + 1
    shard = st.integers(least, 4 * least).flatmap(
        lambda count: st.lists(st.integers(0, 65535), min_size=count, max_size=count)
    )
    return draw(st.lists(shard, min_size=1, max_size=3)), batch_size, seq_len, num_ranks


@given(load=loads())
def test_order_is_llm_c_s(
    tmp_path_factory: pytest.TempPathFactory, load: tuple[list[list[int]], int, int, int]
) -> None:
    """Every rank's batches, over more than two epochs, are those of the literal description."""
    shards, batch_size, seq_len, num_ranks = load
    pattern = write_shards(tmp_path_factory.mktemp("shards"), shards)
    for rank in range(num_ranks):
        loader = TokenLoader(pattern, batch_size, seq_len, rank=rank, num_ranks=num_ranks)
        literal = literal_batches(shards, batch_size, seq_len, rank, num_ranks)
        for position in range(2 * loader.steps_per_epoch + 2):
            assert loader.position == position
            inputs, targets = loader.next()
            assert inputs.dtype == targets.dtype == np.int32
            assert (inputs.tolist(), targets.tolist()) == next(literal)


@given(load=loads())
def test_ranks_share_the_batch_of_one(
    tmp_path_factory: pytest.TempPathFactory, load: tuple[list[list[int]], int, int, int]
) -> None:
    """R ranks of B sequences read what one rank of R·B reads."""
    shards, batch_size, seq_len, num_ranks = load
    pattern = write_shards(tmp_path_factory.mktemp("shards"), shards)
    one = TokenLoader(pattern, num_ranks * batch_size, seq_len)
    many = [TokenLoader(pattern, batch_size, seq_len, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
    assert {loader.steps_per_epoch for loader in many} == {one.steps_per_epoch}
    for _ in range(one.steps_per_epoch + 1):
        parts = [loader.next() for loader in many]
        inputs, targets = one.next()
        assert np.array_equal(np.concatenate([part[0] for part in parts]), inputs)
        assert np.array_equal(np.concatenate([part[1] for part in parts]), targets)


@pytest.fixture
def shards(tmp_path: Path) -> str:
    """Two shards, of 3 and 2 steps of 2 × 3 tokens, with tails."""
    return write_shards(tmp_path, [list(range(24)), list(range(100, 113))])


def test_steps_per_epoch(shards: str) -> None:
    """A shard holds floor((ntok - 1) / (R·B·T)) steps."""
    assert TokenLoader(shards, 2, 3).steps_per_epoch == 3 + 2
    assert TokenLoader(shards, 2, 3, rank=1, num_ranks=2).steps_per_epoch == 1 + 1
    assert TokenLoader(shards, 1, 1).steps_per_epoch == 23 + 12


def test_seek_and_reset(shards: str) -> None:
    """Any position can be gone to, beyond the first epoch too."""
    loader = TokenLoader(shards, 2, 3)
    batches = [loader.next() for _ in range(12)]
    for position in (7, 0, 11, 4, 3):
        loader.seek(position)
        assert loader.position == position
        inputs, targets = loader.next()
        assert np.array_equal(inputs, batches[position][0])
        assert np.array_equal(targets, batches[position][1])
        assert loader.position == position + 1
    loader.reset()
    assert loader.position == 0
    assert np.array_equal(loader.next()[0], batches[0][0])
    with pytest.raises(InvalidArgumentError, match="from 0 on, found -1"):
        loader.seek(-1)


def test_batches_are_the_callers_own(shards: str) -> None:
    """Changing a batch changes neither its targets nor what is read later."""
    loader = TokenLoader(shards, 2, 3)
    inputs, targets = loader.next()
    expected = targets.copy()
    inputs[...] = -1
    assert np.array_equal(targets, expected)
    loader.reset()
    assert np.array_equal(loader.next()[1], expected)


def test_files_are_sorted_by_name(tmp_path: Path) -> None:
    """Byte by byte, whatever order they are given in, and each once."""
    names = ["B.bin", "a.bin", "a1.bin", "a10.bin", "a2.bin", "é.bin"]
    for name in names:
        (tmp_path / name).touch()
    expected = tuple(tmp_path / name for name in names)
    assert token_files(str(tmp_path / "*.bin")) == expected
    assert token_files([tmp_path / "*.bin", tmp_path / "a.bin"]) == expected
    assert token_files(reversed(expected)) == expected


def test_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns may be relative, go through directories, and match neither directories nor hidden files."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two.bin").mkdir()
    (tmp_path / "one" / "x.bin").touch()
    (tmp_path / "one" / ".hidden.bin").touch()
    (tmp_path / "y[1].bin").touch()
    monkeypatch.chdir(tmp_path)
    assert token_files("*/*.bin") == (Path("one/x.bin"),)
    assert token_files("*.bin") == (Path("y[1].bin"),)
    assert token_files("y[1].bin") == (Path("y[1].bin"),)
    assert token_files("one/.h*") == (Path("one/.hidden.bin"),)


def test_no_match(tmp_path: Path) -> None:
    """A pattern or path that names no file is an error that shows it."""
    for pattern in (tmp_path / "*.bin", tmp_path / "none.bin"):
        with pytest.raises(FileError, match="no token file has this name") as caught:
            TokenLoader(pattern, 1, 1)
        assert str(caught.value).startswith(str(pattern))
        assert caught.value.errno == errno.ENOENT
    with pytest.raises(InvalidArgumentError, match="found none"):
        TokenLoader([], 1, 1)


def test_shard_that_is_too_small(tmp_path: Path) -> None:
    """Every shard has to hold a step; the sentence names the one that doesn't."""
    pattern = write_shards(tmp_path, [list(range(100)), list(range(24))])
    assert TokenLoader(pattern, 23, 1).steps_per_epoch == 4 + 1
    with pytest.raises(InvalidArgumentError, match=r"shard_001\.bin: expected at least 25 tokens .* found 24"):
        TokenLoader(pattern, 2, 4, num_ranks=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size: expected a positive number, found 0"),
        ({"seq_len": -1}, "seq_len: expected a positive number, found -1"),
        ({"num_ranks": 0}, "num_ranks: expected a positive number, found 0"),
        ({"rank": 1}, r"rank: expected a number in \[0, 1\), found 1"),
        ({"rank": -1}, r"rank: expected a number in \[0, 1\), found -1"),
    ],
)
def test_bad_sizes(shards: str, arguments: dict[str, int], message: str) -> None:
    """Sizes and ranks are checked first."""
    batch_size, seq_len = arguments.get("batch_size", 1), arguments.get("seq_len", 1)
    with pytest.raises(InvalidArgumentError, match=message):
        TokenLoader(
            shards,
            batch_size,
            seq_len,
            rank=arguments.get("rank", 0),
            num_ranks=arguments.get("num_ranks", 1),
        )


def test_ids_beyond_the_vocabulary(shards: str) -> None:
    """Every file is checked when the loader is made, its tail included."""
    assert TokenLoader(shards, 2, 3, vocab_size=113).steps_per_epoch == 5
    with pytest.raises(TokenRangeError) as caught:
        TokenLoader(shards, 2, 3, vocab_size=112)
    second = token_files(shards)[1]
    assert str(caught.value) == f"{second}, byte {1024 + 2 * 12}: expected a token id in [0, 112), found 112"


def test_file_that_changes(shards: str) -> None:
    """A shard that has another size when its turn comes isn't read."""
    loader = TokenLoader(shards, 2, 3)
    write_tokens(token_files(shards)[1], list(range(50)))
    for _ in range(3):
        loader.next()
    with pytest.raises(FormatError, match="expected 13 tokens as when first opened, found 50"):
        loader.next()


def test_beyond_two_gigabytes(tmp_path: Path) -> None:
    """Positions in a shard are 64-bit, where llm.c's 32-bit cast breaks."""
    path = tmp_path / "large.bin"
    count = 1_200_000_001
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, count
    with path.open("wb") as file:
        file.write(header.tobytes())
        file.truncate(1024 + 2 * count)
        file.seek(-4, 2)
        file.write(np.array([7, 8], "<u2").tobytes())
    loader = TokenLoader(path, 10, 100)
    loader.seek(loader.steps_per_epoch - 1)
    inputs, targets = loader.next()
    assert (inputs[-1, -1], targets[-1, -1]) == (7, 8)


# ---- Text ----


@given(text=st.text())
def test_bytes_round_trip(text: str) -> None:
    """Every text comes back; only valid Unicode has UTF-8."""
    encoding = byte_encoding()
    ids = encoding.encode(text)
    assert ids.dtype == np.int32
    assert ids.tolist() == list(text.encode("utf-8"))
    assert encoding.decode(ids.tolist()) == text


def test_bytes() -> None:
    """256 byte values and the end of text."""
    encoding = byte_encoding()
    assert (encoding.name, encoding.vocab_size, encoding.end_of_text) == ("bytes", 257, 256)
    assert encoding.decode([72, 256, 105]) == "H<|endoftext|>i"
    assert encoding.decode([0xC3]) == "\ufffd"
    assert encoding.encode("\udc80").tolist() == [ord("?")]
    for bad in (-1, 257):
        with pytest.raises(TokenRangeError, match=rf"element 1: .* in \[0, 257\), found {bad}"):
            encoding.decode([0, bad])


MERGES = [b"th", b"the", b" the", b"er", b" S"]
"""What is merged in the small vocabulary of these tests, by rank after the single bytes."""


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer like llm.c's, with the single bytes, a few merges and the end of text."""
    path = tmp_path_factory.mktemp("tokenizer") / "gpt2_tokenizer.bin"
    tokens = [*(bytes([byte]) for byte in range(256)), *MERGES, b"<|endoftext|>"]
    write_tokenizer(path, Tokenizer(tuple(tokens), len(tokens) - 1))
    return path


@pytest.fixture(scope="module")
def small_encoding(tokenizer_file: Path) -> TextEncoding:
    """Byte pair encoding with MERGES."""
    pytest.importorskip("tiktoken")
    return gpt2_encoding(tokenizer_file)


def check_small_encoding(encoding: TextEncoding) -> None:
    """Check what every encoding with MERGES has to do."""
    assert (encoding.name, encoding.vocab_size) == ("gpt2", 256 + len(MERGES) + 1)
    assert encoding.end_of_text == encoding.vocab_size - 1
    # A piece of the split isn't merged with its neighbour, and a space belongs to the word after it.
    ids = encoding.encode("the theSer Se")
    assert ids.dtype == np.int32
    assert [encoding.decode([token]) for token in ids] == ["the", " the", "S", "er", " S", "e"]
    # Text that looks like the end of text is text.
    marker = encoding.encode("<|endoftext|>").tolist()
    assert encoding.end_of_text not in marker
    assert encoding.decode([*marker, encoding.end_of_text]) == "<|endoftext|><|endoftext|>"
    for bad in (-1, encoding.vocab_size):
        with pytest.raises(TokenRangeError, match="element 0"):
            encoding.decode([bad])


def test_gpt2_from_llm_c_s_file(small_encoding: TextEncoding, tokenizer_file: Path) -> None:
    """Token bytes and ids are all that byte pair encoding needs."""
    check_small_encoding(small_encoding)
    check_small_encoding(text_encoding(tokenizer_file))


@given(text=st.text())
def test_gpt2_round_trip(small_encoding: TextEncoding, text: str) -> None:
    """Every text comes back."""
    assert small_encoding.decode(small_encoding.encode(text)) == text


@pytest.mark.parametrize("name", ["bytes", "gpt2"])
def test_sonnets_round_trip(name: str, request: pytest.FixtureRequest) -> None:
    """The shipped text comes back from both encodings."""
    text = (resources.files("starpullm.training") / "sonnets.txt").read_text("ascii")
    encoding = byte_encoding() if name == "bytes" else request.getfixturevalue("small_encoding")
    ids = encoding.encode(text)
    assert encoding.name == name
    assert ids.max() < encoding.end_of_text
    assert encoding.decode(ids) == text


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([*(bytes([byte]) for byte in range(255)), b"ab", b"!!"], "every single byte, found none for 0xff"),
        (
            [*(bytes([byte]) for byte in range(256)), b"ab", b"ab", b"!!"],
            "token 257 with the bytes of token 256",
        ),
    ],
)
def test_file_that_is_no_byte_pair_vocabulary(tmp_path: Path, tokens: list[bytes], message: str) -> None:
    """A tokenizer file can be right and still be no byte pair vocabulary."""
    pytest.importorskip("tiktoken")
    path = tmp_path / "tokenizer.bin"
    write_tokenizer(path, Tokenizer(tuple(tokens), len(tokens) - 1))
    with pytest.raises(FormatError, match=message):
        gpt2_encoding(path)


def test_named_file_that_is_not_there(tmp_path: Path) -> None:
    """A file that the caller names is never replaced by bytes."""
    pytest.importorskip("tiktoken")
    with pytest.raises(FileError, match="No such file"):
        text_encoding(tmp_path / "none.bin")


def test_without_tiktoken(tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes are the answer, unless byte pairs were asked for."""
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    assert text_encoding().name == "bytes"
    for encode in (gpt2_encoding, text_encoding):
        with pytest.raises(MissingDependencyError, match="needs the package tiktoken"):
            encode(tokenizer_file)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every use of the network fails the test."""

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("the network was used")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def fill_cache(directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Put a vocabulary with MERGES where tiktoken caches GPT-2's; return its two files."""
    printable = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
    letters = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        letters.setdefault(byte, chr(256 + len(letters) - len(printable)))

    def spelled(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    pairs = [(b"t", b"h"), (b"th", b"e"), (b" ", b"the"), (b"e", b"r"), (b" ", b"S")]
    assert [left + right for left, right in pairs] == MERGES
    merges = "".join(f"{spelled(left)} {spelled(right)}\n" for left, right in pairs)
    ids = {letter: index for index, letter in enumerate(letters.values())}
    ids |= {spelled(token): 256 + index for index, token in enumerate(MERGES)}
    contents = [f"#version: 0.2\n{merges}".encode(), json.dumps(ids).encode()]
    vocabulary = {
        name: hashlib.sha256(content).hexdigest()
        for name, content in zip(text_module._GPT2_VOCABULARY, contents, strict=True)
    }
    monkeypatch.setattr(text_module, "_GPT2_VOCABULARY", vocabulary)
    files = [directory / name for name in vocabulary]

    # tiktoken knows the real vocabulary's hashes; it shall accept this one's, and do all else as always.
    public = pytest.importorskip("tiktoken_ext.openai_public")
    read_files = public.data_gym_to_mergeable_bpe_ranks

    def read_small_files(*, vocab_bpe_file: str, encoder_json_file: str, **_: object) -> dict[bytes, int]:
        ranks: dict[bytes, int] = read_files(vocab_bpe_file, encoder_json_file, *vocabulary.values())
        return ranks

    monkeypatch.setattr(public, "data_gym_to_mergeable_bpe_ranks", read_small_files)
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    return files


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("variable", ["TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR", None])
def test_cached_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None) -> None:
    """What tiktoken has on disk is used, wherever tiktoken looks for it."""
    pytest.importorskip("tiktoken")
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.delenv("DATA_GYM_CACHE_DIR", raising=False)
    directory = tmp_path / "data-gym-cache"
    directory.mkdir()
    if variable is None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    else:
        monkeypatch.setenv(variable, str(directory))
    fill_cache(directory, monkeypatch)
    check_small_encoding(gpt2_encoding())
    check_small_encoding(text_encoding())


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("damage", ["empty", "one missing", "other content", "switched off"])
def test_no_cached_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    """Where the cache hasn't got the vocabulary nothing is downloaded and nothing deleted."""
    pytest.importorskip("tiktoken")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "" if damage == "switched off" else str(tmp_path))
    files = fill_cache(tmp_path, monkeypatch)
    if damage == "empty":
        for file in files:
            file.unlink()
    elif damage == "one missing":
        files[1].unlink()
    elif damage == "other content":
        files[0].write_bytes(files[0].read_bytes() + b"\n")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(FileError, match=r"vocabulary isn't in tiktoken's cache .* gpt2_tokenizer\.bin") as caught:
        gpt2_encoding()
    assert caught.value.errno == errno.ENOENT
    assert text_encoding().name == "bytes"
    assert sorted(tmp_path.iterdir()) == before


# ---- Generated models and tokens ----


def mix_one(value: int) -> int:
    """The mixing function of golden/README.md in Python's own integers."""
    value = (value + 0x9E3779B97F4A7C15) % 2**64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return value ^ value >> 31


@given(values=st.lists(st.integers(0, 2**64 - 1)))
def test_mix(values: list[int]) -> None:
    """Vectorised and scalar agree, wrapping included, and the argument isn't changed."""
    array = np.array(values, np.uint64)
    assert mix(array).tolist() == [mix_one(value) for value in values]
    assert array.tolist() == values


def test_mix_is_splitmix64() -> None:
    """The first outputs of splitmix64 with seed 0, as published."""
    states = np.array([0, 0x9E3779B97F4A7C15], np.uint64)
    assert mix(states).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


SCALES = {"wte": 0.04, "qkvw": 0.04, "fcw": 0.04, "wpe": 0.02, "attprojw": 0.02, "fcprojw": 0.02}
CONFIG = ModelConfig(5, 7, 2, 2, 6, 9)


def literal_parameter(name: str, number: int, count: int, seed: int) -> list[float]:
    """A generated parameter as golden/README.md has it, one element at a time."""
    values = []
    for index in range(count):
        stream = mix_one(((100 * seed + number << 32) + index) % 2**64)
        unit = np.float32((stream >> 40) - 2**23) * np.float32(2.0**-23)
        if name in ("ln1w", "ln2w", "lnfw"):
            value = unit * np.float32(0.1) + np.float32(1)
        else:
            value = unit * np.float32(SCALES.get(name, 0.01))
        values.append(float(value))
    return values


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1, 2**40])
def test_generated_parameters(seed: int) -> None:
    """Names, shapes and every element are those of the description."""
    parameters = dict(generate_parameters(CONFIG, seed))
    assert {name: array.shape for name, array in parameters.items()} == parameter_shapes(CONFIG)
    assert list(parameters) == list(parameter_shapes(CONFIG))
    for number, (name, array) in enumerate(parameters.items()):
        assert array.dtype == np.float32
        assert array.reshape(-1).tolist() == literal_parameter(name, number, array.size, seed)


def test_generator_goes_on_over_its_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many elements are made at a time makes no difference."""
    expected = dict(generate_parameters(CONFIG, 3))
    digest = generated_checkpoint_sha256(CONFIG, 3)
    monkeypatch.setattr(generator, "_GENERATOR_CHUNK", 5)
    for name, array in generate_parameters(CONFIG, 3):
        assert np.array_equal(array, expected[name])
    assert generated_checkpoint_sha256(CONFIG, 3) == digest


def test_generator_stays_away_from_subnormals() -> None:
    """No generated value is one that flush-to-zero would change."""
    for _, array in generate_parameters(ModelConfig(64, 64, 2, 1, 64, 64), 1):
        magnitudes = np.abs(array[array != 0])
        assert magnitudes.min() > 1e-10


@pytest.mark.parametrize("name", SHIPPED_RECORDS)
def test_generated_inputs_of_the_records(name: str) -> None:
    """Checkpoint and tokens of every record have the SHA-256 that llm.c was given."""
    record = shipped_record(name)
    tokens = generated_tokens_sha256(
        record.seed, record.num_steps, record.batch_size, record.seq_len, record.model.vocab_size
    )
    assert tokens == record.tokens_sha256
    assert generated_checkpoint_sha256(record.model, record.seed) == record.checkpoint_sha256


def test_generated_checkpoint(tmp_path: Path) -> None:
    """The file has the hash that is returned, and holds the generated parameters."""
    path = tmp_path / "model.bin"
    record = shipped_record("odd")
    digest = generate_checkpoint(path, record.model, record.seed)
    content = path.read_bytes()
    assert digest == record.checkpoint_sha256 == hashlib.sha256(content).hexdigest()
    assert content.startswith(checkpoint_header(record.model))
    checkpoint = read_checkpoint(path)
    assert checkpoint.config == record.model
    for name, array in generate_parameters(record.model, record.seed):
        assert np.array_equal(checkpoint.parameters[name], array)
    with pytest.raises(FileError, match="can't be written"):
        generate_checkpoint(tmp_path / "none" / "model.bin", record.model, record.seed)


@given(
    seed=st.integers(0, 1000),
    step=st.integers(0, 2**40),
    batch_size=st.integers(1, 3),
    seq_len=st.integers(1, 5),
    vocab_size=st.integers(1, 60000),
)
def test_generated_tokens(seed: int, step: int, batch_size: int, seq_len: int, vocab_size: int) -> None:
    """Every id is that of the description; the first B·T are the inputs."""
    inputs, targets = generate_tokens(seed, step, batch_size, seq_len, vocab_size)
    count = 2 * batch_size * seq_len
    expected = [mix_one(((100 * seed + 50 << 32) + step * count + j) % 2**64) % vocab_size for j in range(count)]
    assert inputs.dtype == targets.dtype == np.int32
    assert inputs.shape == targets.shape == (batch_size, seq_len)
    assert [*inputs.reshape(-1).tolist(), *targets.reshape(-1).tolist()] == expected


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, -1)])
def test_generated_tokens_of_bad_sizes(sizes: tuple[int, int, int]) -> None:
    """Sizes have to be positive."""
    with pytest.raises(InvalidArgumentError, match="expected a positive number"):
        generate_tokens(1, 0, *sizes)


# ---- Untrained models ----


def test_initial_parameters() -> None:
    """As GPT-2 was initialised."""
    config = ModelConfig(256, 300, 4, 4, 64, 320)
    parameters = dict(initial_parameters(config, 42))
    assert {name: array.shape for name, array in parameters.items()} == parameter_shapes(config)
    for name, array in parameters.items():
        assert array.dtype == np.float32
        if name in ("ln1w", "ln2w", "lnfw"):
            assert np.all(array == 1)
        elif name.endswith("b"):
            assert np.all(array == 0)
        else:
            drawn = array[:300] if name == "wte" else array
            std = 0.02 / math.sqrt(8) if name in ("attprojw", "fcprojw") else 0.02
            assert drawn.std() == pytest.approx(std, rel=0.05)
            assert abs(drawn.mean()) < 0.05 * std
    assert np.all(parameters["wte"][300:] == 0)


def test_initial_parameters_depend_on_the_seed_alone() -> None:
    """A seed gives one model, however far its vocabulary is padded; another seed gives another."""
    first = dict(initial_parameters(ModelConfig(8, 10, 2, 1, 4, 10), 1))
    padded = dict(initial_parameters(ModelConfig(8, 10, 2, 1, 4, 16), 1))
    other = dict(initial_parameters(ModelConfig(8, 10, 2, 1, 4, 10), 2))
    assert np.array_equal(first["wte"], padded["wte"][:10])
    assert np.array_equal(first["fcprojw"], padded["fcprojw"])
    assert not np.array_equal(first["fcprojw"], other["fcprojw"])


# ---- Sampling ----


def literal_sample(probabilities: NDArray[np.float32], coin: float) -> int:
    """llm.c's loop."""
    cumulated = np.float32(0)
    for index, probability in enumerate(probabilities):
        cumulated = cumulated + probability
        if np.float32(coin) < cumulated:
            return index
    return len(probabilities) - 1


@given(
    weights=st.lists(st.floats(0, 1, width=32), min_size=1, max_size=50),
    coin=st.integers(0, 2**24 - 1).map(lambda bits: bits / 2**24),
)
def test_sample(weights: list[float], coin: float) -> None:
    """The vectorised choice is that of the loop, whatever the sum of the probabilities is."""
    probabilities = np.array(weights, np.float32)
    for each in (probabilities, probabilities / np.float32(max(sum(weights), 1))):
        assert sample(each, coin) == literal_sample(each, coin)


def test_sample_adds_in_order() -> None:
    """With many small terms the ordered binary32 sum differs from NumPy's own, and it is the ordered one."""
    probabilities = np.full(50257, np.float32(1 / 50257))
    coins = np.linspace(0, 1, 40, endpoint=False)
    assert [sample(probabilities, coin) for coin in coins] == [literal_sample(probabilities, coin) for coin in coins]


def test_sample_of_nothing() -> None:
    """There has to be something to choose from."""
    for bad in (np.zeros(0, np.float32), np.zeros((1, 2), np.float32)):
        with pytest.raises(InvalidArgumentError, match="probabilities"):
            sample(bad, 0.5)


@given(state=st.integers(1, 2**64 - 1))
def test_xorshift(state: int) -> None:
    """The state moves as a C program's 64-bit integer would."""
    random = XorShift(state)
    c_state = ctypes.c_uint64(state)
    for draw in range(6):
        c_state.value ^= c_state.value >> 12
        c_state.value ^= ctypes.c_uint64(c_state.value << 25).value
        c_state.value ^= c_state.value >> 27
        output = ctypes.c_uint32(ctypes.c_uint64(c_state.value * 0x2545F4914F6CDD1D).value >> 32).value
        if draw % 2 == 0:
            assert random.random_u32() == output
        else:
            coin = random.random_f32()
            assert coin == np.float32(output >> 8) / np.float32(16777216)
            assert 0 <= coin < 1
        assert random.state == c_state.value


@pytest.mark.parametrize("state", [0, -1, 2**64])
def test_xorshift_of_no_state(state: int) -> None:
    """0 would stay 0 forever."""
    with pytest.raises(InvalidArgumentError, match="random state"):
        XorShift(state)
