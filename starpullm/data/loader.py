"""Batches of token files, in llm.c's order.

Size letters: B batch, T sequence length, V vocabulary.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
from bisect import bisect_right
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from starpullm.data.sizes import check_positive
from starpullm.errors import FileError, FormatError, InvalidArgumentError
from starpullm.files.header import StrPath
from starpullm.files.tokens import TokenFile
from starpullm.processes.progress import report_phase


def token_files(paths: StrPath | Iterable[StrPath]) -> tuple[Path, ...]:
    """Return the token files of paths or glob patterns, without duplicates, in the order of their names' bytes.

    Parameters
    ----------
    paths
        One or more paths or patterns. A name that exists is a path, also if it contains wildcards. As in llm.c, a
        wildcard doesn't match the leading dot of a file's name.

    Raises
    ------
    FileError
        If a path or pattern matches no file.
    InvalidArgumentError
        If a pattern is invalid, or there is no path at all.
    """
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not several:
        raise InvalidArgumentError("token files: expected at least one path or pattern, found none")
    found: set[Path] = set()
    for pattern in several:
        matches = _matches(Path(pattern))
        if not matches:
            raise FileError(f"{pattern}: no token file has this name or matches this pattern", errno.ENOENT)
        found.update(matches)
    return tuple(sorted(found, key=os.fsencode))


def _matches(pattern: Path) -> list[Path]:
    if pattern.exists():
        return [pattern]
    try:
        hits = list(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))
    except ValueError as error:
        raise InvalidArgumentError(f"{pattern}: not a pattern: {error}") from None
    dotted = pattern.name.startswith(".")
    return [hit for hit in hits if hit.is_file() and hit.name.startswith(".") == dotted]


class TokenLoader:
    """Batches of token files in llm.c's order, without shuffling.

    In step k of a shard, rank r of R reads B·T + 1 tokens from position k·R·B·T + r·B·T on. The targets are the inputs
    shifted by one token. The rest of a shard that is too short for a step is skipped; then the next shard follows, and
    after the last shard the first. So R ranks with B sequences each read the same batch as one rank with R·B.

    Parameters
    ----------
    paths
        Token files or glob patterns, see `token_files`.
    batch_size, seq_len
        B and T.
    rank, num_ranks
        r and R.
    vocab_size
        V; all ids of all files must be below it. None: ids aren't checked.

    Raises
    ------
    InvalidArgumentError
        If a size isn't positive, the rank isn't below the number of ranks, or a shard is too short for one step.
    TokenRangeError
        If an id isn't below V.
    FormatError, FileError
        If a file isn't a token file, or can't be read.
    """

    def __init__(
        self,
        paths: StrPath | Iterable[StrPath],
        batch_size: int,
        seq_len: int,
        *,
        rank: int = 0,
        num_ranks: int = 1,
        vocab_size: int | None = None,
    ) -> None:
        check_positive(batch_size=batch_size, seq_len=seq_len, num_ranks=num_ranks)
        if not 0 <= rank < num_ranks:
            raise InvalidArgumentError(f"rank: expected a number in [0, {num_ranks}), found {rank}")
        self.batch_size = batch_size
        self.seq_len = seq_len
        self.rank = rank
        self.num_ranks = num_ranks
        self.paths = token_files(paths)
        self._position = 0
        self._counts = [self._count(path, vocab_size) for path in self.paths]
        per_step = num_ranks * batch_size * seq_len
        for path, count in zip(self.paths, self._counts, strict=True):
            if count < per_step + 1:
                raise InvalidArgumentError(
                    f"{path}: expected at least {per_step + 1} tokens for one step of {num_ranks} ranks x "
                    f"{batch_size} sequences x {seq_len} tokens, found {count}"
                )
        steps = [(count - 1) // per_step for count in self._counts]
        self._first_steps = [0, *itertools.accumulate(steps)]
        self._open: tuple[int, TokenFile] | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps from the start of the first shard to the end of the last."""
        return self._first_steps[-1]

    @cached_property
    def fingerprint(self) -> int:
        """A 64-bit hash of all shards' ids in their order, whatever the files' names; it takes a pass over all files.

        Raises
        ------
        FormatError, FileError
            As `next`.
        """
        digest = hashlib.blake2b(digest_size=8)
        for index, count in enumerate(self._counts):
            report_phase(f"reading {self.paths[index].name}")
            digest.update(count.to_bytes(8, "little"))
            for piece in self._shard(index).pieces():
                digest.update(piece.data)
        return int.from_bytes(digest.digest(), "little")

    def digest(self, steps: int) -> str:
        """Return a hash in hex of the ids that all ranks together read in the next steps; errors as `next`."""
        digest = hashlib.sha256()
        for step in range(self._position, self._position + min(steps, self.steps_per_epoch)):
            digest.update(self._read(step, 0, self.num_ranks).data)
        return digest.hexdigest()[:16]

    @property
    def position(self) -> int:
        """Number of steps read so far; it isn't reset after the last shard."""
        return self._position

    def seek(self, position: int) -> None:
        """Continue with step number `position`, counted from 0 as the property `position`.

        Raises
        ------
        InvalidArgumentError
            If the position is negative.
        """
        if position < 0:
            raise InvalidArgumentError(f"position: expected a number of steps from 0 on, found {position}")
        self._position = position

    def reset(self) -> None:
        """Start again from the first step of the first shard."""
        self.seek(0)

    def next(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the next step's inputs and targets, int32 (B,T) each.

        Raises
        ------
        FormatError, FileError
            If the file has been changed or removed since the loader was created.
        """
        ids = self._read(self._position, self.rank, 1).astype(np.int32)
        shape = (self.batch_size, self.seq_len)
        self._position += 1
        return ids[:-1].reshape(shape).copy(), ids[1:].reshape(shape).copy()

    def _read(self, step: int, rank: int, ranks: int) -> NDArray[np.uint16]:
        """Return what so many ranks from one on read in a step."""
        step %= self.steps_per_epoch
        shard = bisect_right(self._first_steps, step) - 1
        tokens = self.batch_size * self.seq_len
        start = ((step - self._first_steps[shard]) * self.num_ranks + rank) * tokens
        return self._shard(shard).read(start, ranks * tokens + 1)

    @staticmethod
    def _count(path: Path, vocab_size: int | None) -> int:
        report_phase(f"reading {path.name}")  # a large data set takes minutes
        file = TokenFile(path)
        if vocab_size is not None:
            file.check_ids(vocab_size)
        return file.count

    def _shard(self, index: int) -> TokenFile:
        # Only one file is open at a time, because data sets have thousands of shards.
        if self._open is None or self._open[0] != index:
            file = TokenFile(self.paths[index])
            if file.count != self._counts[index]:
                raise FormatError(
                    f"{file.path}: expected {self._counts[index]} tokens as when first opened, found {file.count}"
                )
            self._open = index, file
        return self._open[1]
