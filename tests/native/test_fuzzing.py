"""Mutated files, read by the package and, if it has a reader, by the native library: the same content, or a refusal.

Each file is made from its number alone, so a failure names what to run again: ``look_at(directory, number)``.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from starpullm.data.loader import TokenLoader
from starpullm.errors import StarpullmError
from starpullm.files.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from starpullm.files.header import header_bytes
from starpullm.files.model import ModelConfig, parameter_shapes
from starpullm.files.tokenizer import read_tokenizer
from starpullm.files.tokens import write_tokens
from starpullm.resume import training_state
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer

from .children import run_function
from .readers.state_file import BLOCK, StateFile
from .readers.training_state import read_training_state

CONFIG = ModelConfig(max_seq_len=2, vocab_size=3, num_layers=1, num_heads=1, channels=1, padded_vocab_size=4)
STEP = 7
PARTS = 2
ACCEPTED_BY_C = 0.2
"""The part of those files that Python accepts and that a trainer is made of, to compare its tensors."""

Content = bytes | None
"""What a reader found, as bytes; None: it refused."""


@dataclass(frozen=True)
class Kind:
    """A file of a format, how it is read in C (None: it isn't) and in Python, and how often it is chosen.

    ``table`` is where bits are flipped most often, and where numbers are replaced.
    """

    path: Path
    by_c: Callable[[Runtime, Path], bytes] | None
    by_python: Callable[[Path], bytes]
    weight: int
    table: int
    sealed: bool = False


# ---- Readers ----


def checkpoint_by_c(runtime: Runtime, path: Path) -> bytes:
    with Trainer(runtime, path, batch_size=1, seq_len=1) as trainer:
        return tensors_of(trainer, "params")


def checkpoint_by_python(path: Path) -> bytes:
    return b"".join(array.tobytes() for array in read_checkpoint(path).parameters.values())


def tokens_by_python(path: Path) -> bytes:
    return b"".join(ids.tobytes() for ids in TokenLoader(path, 1, 2, vocab_size=CONFIG.vocab_size).next())


def tokenizer_by_python(path: Path) -> bytes:
    return repr(read_tokenizer(path)).encode()


def tensors_of(trainer: Trainer, *groups: str) -> bytes:
    names = [(group, name) for group in groups for name in trainer.tensor_names(group)]
    return b"".join(trainer.tensor(*name).tobytes() for name in names)


def state_by_c(runtime: Runtime, path: Path) -> bytes:
    state = training_state(path.parent)
    numbers = (state.step, state.batches, state.batch_size, state.seq_len, state.seed, state.data_id)
    rates = (state.learning_rate, *state.betas, state.eps, state.weight_decay)
    with Trainer(runtime, resume=path.parent, batch_size=1, seq_len=1) as trainer:
        tensors = tensors_of(trainer, "params", "m", "v")
    known = repr((vars(state.config), numbers, state.arithmetic)).encode()
    return known + np.array(rates, np.float32).tobytes() + tensors


def state_by_python(path: Path) -> bytes:
    state = read_training_state(path.parent)
    numbers = (state.step, state.batches, state.batch_size, state.seq_len, state.seed, state.data_id)
    rates = (state.learning_rate, state.beta1, state.beta2, state.eps, state.weight_decay)
    tensors = b"".join(array.tobytes() for group in (state.params, state.m, state.v) for array in group.values())
    known = repr((vars(state.config), numbers, ("strict", "none", "fused")[state.arithmetic])).encode()
    return known + np.array(rates, np.float32).tobytes() + tensors


def read(reader: Callable[[Path], bytes], path: Path) -> tuple[Content, str]:
    """Return what a reader found, and what happened in words; any exception but our own is raised."""
    try:
        return reader(path), "accepted"
    except StarpullmError as error:
        return None, f"{type(error).__name__}: {error}"


# ---- Files ----


def make_kinds(directory: Path) -> list[Kind]:
    """Write one small file of each format."""
    shapes = parameter_shapes(CONFIG).items()
    tensors = {name: np.full(shape, number, np.float32) for number, (name, shape) in enumerate(shapes)}
    paths = {name: directory / f"{name}.bin" for name in ("checkpoint", "tokens", "tokenizer")}
    write_checkpoint(paths["checkpoint"], Checkpoint(CONFIG, tensors))
    write_tokens(paths["tokens"], np.arange(9) % 3)
    paths["tokenizer"].write_bytes(header_bytes("a tokenizer", 2, 3, 2) + b"\1a\2bc\1d")
    with Runtime("1x1") as runtime, Trainer(runtime, paths["checkpoint"], batch_size=1, seq_len=2) as trainer:
        for _ in range(STEP):
            trainer.step([[0, 1]], [[1, 2]])
        trainer.save_state(directory)
        trainer.wait_saved()
    state = directory / f"step-{STEP:012}" / "rank-00000-of-00001.state"
    return [
        Kind(paths["checkpoint"], checkpoint_by_c, checkpoint_by_python, 12, 32),
        Kind(paths["tokens"], None, tokens_by_python, 12, 12),
        Kind(paths["tokenizer"], None, tokenizer_by_python, 6, 16),
        Kind(state, state_by_c, state_by_python, 1, 128),
        Kind(state, state_by_c, state_by_python, 1, 1024 + 52 * len(shapes), sealed=True),
    ]


def mutations(random_numbers: random.Random, kind: Kind, size: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield positions with new bytes, or with None where the file is cut off."""
    for _ in range(random_numbers.choice((1, 1, 1, 2, 4))):
        everywhere = random_numbers.random() < 0.3
        place = random_numbers.randrange(size if everywhere else kind.table)
        match random_numbers.randrange(5):
            case 0:
                cuts = (
                    random_numbers.randrange(size),
                    size - 1,
                    size - BLOCK,
                    size + 1,
                    size + BLOCK,
                    kind.table,
                    1024,
                )
                yield max(0, random_numbers.choice(cuts)), None
            case 1 | 2:
                yield place, bytes([random_numbers.randrange(256)])
            case 3:
                number = random_numbers.choice((0, 1, 2, 3, 4, 5, 16, 85, 2**15, 2**16, 2**29, 2**30, 2**31, 2**32)) - 1
                yield place // 4 * 4, (random_numbers.choice((1, -1)) * number % 2**32).to_bytes(4, "little")
            case 4:
                number = random_numbers.choice((0, 1, 2**31, 2**32, 2**53, 2**61, 2**62, 2**63)) - 1
                yield place // 8 * 8, (random_numbers.choice((1, -1)) * number % 2**64).to_bytes(8, "little")


def sealed(content: bytes) -> bytes:
    """Make a training state's end go with its header and table again, so that its readers look at these."""
    return bytes(StateFile(content).sealed().content) if len(content) >= 2 * BLOCK else content


@contextmanager
def mutated(kind: Kind, content: bytes, changes: list[tuple[int, bytes | None]]) -> Iterator[None]:
    """Change the kind's file in place, which is quicker than a new file, and change it back."""
    changed = bytearray(content)
    for position, new in changes:
        if new is None:
            changed = changed[:position] + bytes(max(0, position - len(changed)))
        else:
            changed[position : position + len(new)] = new[: max(0, len(changed) - position)]
    result = sealed(bytes(changed)) if kind.sealed else bytes(changed)
    with kind.path.open("r+b", buffering=0) as file:
        overwrite(file, content, result)
        try:
            yield
        finally:
            overwrite(file, result, content)


def overwrite(file: FileIO, old: bytes, new: bytes) -> None:
    """Make a file's content this; what surrounds the places that differ isn't written."""
    if len(old) != len(new):
        file.truncate(len(new))
    for start in range(0, len(new), BLOCK):
        block = new[start : start + BLOCK]
        if block != old[start : start + BLOCK]:
            file.seek(start)
            file.write(block)


def look_at(directory: str, first: int, count: int) -> tuple[list[str], dict[str, int]]:
    """Read so many mutated files from a number on; return the disagreements, and how many of each were accepted."""
    Path(directory).mkdir()
    kinds = make_kinds(Path(directory))
    contents = [kind.path.read_bytes() for kind in kinds]
    numbers = [number for number, kind in enumerate(kinds) for _ in range(kind.weight)]
    disagreements: list[str] = []
    accepted: Counter[str] = Counter()
    with Runtime("1x1") as runtime:
        for number in range(first, first + count):
            random_numbers = random.Random(number)
            index = random_numbers.choice(numbers)
            kind, content = kinds[index], contents[index]
            changes = list(mutations(random_numbers, kind, len(content)))
            with mutated(kind, content, changes):
                try:
                    expected, c_words = found, words = read(kind.by_python, kind.path)
                    if kind.by_c and (found is None or random_numbers.random() < ACCEPTED_BY_C):
                        expected, c_words = read(partial(kind.by_c, runtime), kind.path)
                except Exception as error:
                    found, expected, words, c_words = b"", None, f"{type(error).__name__}: {error}", "it"
            accepted[kind.path.stem] += found is not None
            if found != expected:
                disagreements.append(f"file {number}, {kind.path.name}, {changes}: Python: {words}; C: {c_words}")
    return disagreements, accepted


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_mutated_files(tmp_path: Path, request: pytest.FixtureRequest, part: int) -> None:
    """C and Python agree on every file, and refuse with our own exceptions only; ``--fuzz-files`` says on how many."""
    count: int = request.config.getoption("--fuzz-files") // PARTS
    arguments: tuple[Any, ...] = (tmp_path / "files", part * count, count)
    disagreements, accepted = run_function(look_at, *arguments, timeout=60 + count * 5e-3)
    assert not disagreements, "\n".join(disagreements[:20])
    assert all(accepted[kind] for kind in ("checkpoint", "tokens", "tokenizer", "rank-00000-of-00001"))
