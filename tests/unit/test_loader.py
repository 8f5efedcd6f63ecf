"""Tests of the order in which token batches are read."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starpullm.data.loader import TokenLoader, token_files
from starpullm.errors import FileError, FormatError, InvalidArgumentError, TokenRangeError
from starpullm.files.tokens import write_tokens


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


@pytest.fixture
def shards(tmp_path: Path) -> str:
    """Two shards, of 3 and 2 steps of 2 × 3 tokens, with tails."""
    return write_shards(tmp_path, [list(range(24)), list(range(100, 113))])


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


def test_file_that_is_truncated_while_it_is_read(shards: str) -> None:
    """Whether it is that of the next batch or of a later one."""
    loader = TokenLoader(shards, 2, 3)
    loader.next()
    os.truncate(token_files(shards)[0], 1024 + 2 * 10)
    with pytest.raises(FormatError, match="byte 1044: expected 24 tokens as when the file was opened, found the end"):
        loader.next()
    assert loader.position == 1


def test_fingerprint(shards: str, tmp_path: Path) -> None:
    """It is that of all ids in their order and of their parts, not of names, batches or ranks."""
    loader = TokenLoader(shards, 2, 3)
    first = loader.next()
    fingerprint = loader.fingerprint
    assert 0 <= fingerprint < 2**64
    assert not np.array_equal(first[0], loader.next()[0])
    assert TokenLoader(shards, 1, 4, rank=1, num_ranks=2).fingerprint == fingerprint
    seen = {fingerprint}

    def other(name: str, parts: list[list[int]]) -> int:
        folder = tmp_path / name
        folder.mkdir()
        for index, part in enumerate(parts):
            write_tokens(folder / f"{name}_{index}.bin", part)
        return TokenLoader(folder / "*.bin", 1, 1).fingerprint

    one, two = list(range(24)), list(range(100, 113))
    assert other("renamed", [one, two]) == fingerprint
    for name, parts in (
        ("last_id", [one, [*two[:-1], 0]]),
        ("swapped", [two, one]),
        ("moved", [one[:-1], [one[-1], *two]]),
        ("joined", [one + two]),
    ):
        found = other(name, parts)
        assert found not in seen, name
        seen.add(found)


def test_digest(shards: str) -> None:
    """It is that of the ids that all ranks together read in the next steps, once each, whatever the rank."""
    loader = TokenLoader(shards, 1, 3, num_ranks=2)
    first = loader.digest(1)
    assert TokenLoader(shards, 1, 3, rank=1, num_ranks=2).digest(1) == first
    assert TokenLoader(shards, 2, 3).digest(1) == first
    assert loader.position == 0
    digests = {loader.digest(steps) for steps in range(1, loader.steps_per_epoch + 1)}
    assert len(digests) == loader.steps_per_epoch
    assert loader.digest(10 * loader.steps_per_epoch) == loader.digest(loader.steps_per_epoch)
    loader.seek(1)
    assert loader.digest(1) != first
    path = token_files(shards)[-1]
    last = path.read_bytes()
    path.write_bytes(last[:1024] + last[1026:1028] + last[1026:])  # the first id of the last shard
    loader.reset()
    assert loader.digest(1) == first
    assert loader.digest(loader.steps_per_epoch) not in digests


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
