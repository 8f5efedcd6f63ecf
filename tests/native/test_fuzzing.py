"""Mutated files, read by the native library and by the package: both read the same content, or both refuse.

Each file is made from its number alone, so a failure names what to run again: ``look_at(directory, number)``.
"""

from __future__ import annotations

import itertools
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int64, c_void_p
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from starpullm.binding import prototypes, structs
from starpullm.data.loader import TokenLoader
from starpullm.errors import StarpullmError
from starpullm.files.checkpoint import Checkpoint, checkpoint_config, write_checkpoint
from starpullm.files.debug_state import read_debug_state
from starpullm.files.header import HEADER_BYTES, header_bytes
from starpullm.files.model import ModelConfig, num_parameters, parameter_shapes
from starpullm.files.tokenizer import read_tokenizer
from starpullm.files.tokens import write_tokens
from starpullm.files.training_state import read_training_state
from starpullm.resume import training_state
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer

from .children import run_function

CONFIG = ModelConfig(max_seq_len=2, vocab_size=3, num_layers=1, num_heads=1, channels=1, padded_vocab_size=4)
BLOCK = 4096
STEP = 7
PARTS = 4
WHOLE_STATES = 100
"""In each part, a training state that both readers accept is resumed from about so often, to compare its tensors."""

Content = bytes | None
"""What a reader found, as bytes; None: it refused."""


@dataclass(frozen=True)
class Kind:
    """A file of a format, how it is read in C (None: it isn't) and in Python, and how often it is chosen.

    ``table`` is where bits are flipped most often, and where numbers are replaced.
    """

    path: Path
    by_c: Callable[[Path], bytes] | None
    by_python: Callable[[Path], bytes]
    weight: int
    table: int
    sealed: bool = False


# ---- Readers ----


def checkpoint_by_c(path: Path) -> bytes:
    config = structs.new("model_config")
    prototypes.call("checkpoint_config", bytes(path), config)
    return bytes(config)


def checkpoint_by_python(path: Path) -> bytes:
    return struct.pack("<6i", *vars(checkpoint_config(path)).values())


def debug_state_by_c(path: Path) -> bytes:
    config = structs.new("model_config", **vars(CONFIG))
    batch_size, seq_len = c_int64(), c_int64()
    prototypes.call("debug_state_size", bytes(path), config, batch_size, seq_len)
    positions = batch_size.value * seq_len.value
    ids = np.empty((2, positions), np.int32)
    sizes = (positions * CONFIG.vocab_size, 1, num_parameters(CONFIG))
    values = [np.empty(size, np.float32) for size in sizes]
    prototypes.call("debug_state_read", bytes(path), config, *ids, *values)
    return ids.tobytes() + b"".join(value.tobytes() for value in values)


def debug_state_by_python(path: Path) -> bytes:
    state = read_debug_state(path, CONFIG)
    values = (state.inputs, state.targets, state.logits, np.float32(state.loss), *state.gradients.values())
    return b"".join(np.asarray(value).tobytes() for value in values)


def tokens_by_c(path: Path) -> bytes:
    paths = (c_char_p * 1)(bytes(path))
    options = structs.new(
        "tokens_options", paths=paths, num_paths=1, batch_size=1, seq_len=2, num_ranks=1, vocab_size=CONFIG.vocab_size
    )
    tokens = c_void_p()
    prototypes.call("tokens_open", options, byref(tokens))
    try:
        batch = np.empty((2 * steps_in(path), 2), np.int32)
        for inputs, targets in zip(batch[::2], batch[1::2], strict=True):
            prototypes.call("tokens_next", tokens, inputs, targets)
    finally:
        prototypes.call("tokens_close", tokens)
    return batch.tobytes()


def tokens_by_python(path: Path) -> bytes:
    loader = TokenLoader(path, 1, 2, vocab_size=CONFIG.vocab_size)
    return b"".join(ids.tobytes() for _ in range(steps_in(path)) for ids in loader.next())


def steps_in(path: Path) -> int:
    """Return the number of steps of two tokens, with a target for each."""
    return (path.stat().st_size - HEADER_BYTES - 2) // 4


def state_by_c(path: Path) -> bytes:
    state = training_state(path.parent)
    numbers = (state.step, state.batches, state.batch_size, state.seq_len, state.seed, state.data_id, state.ranks)
    rates = (state.learning_rate, *state.betas, state.eps, state.weight_decay)
    return repr((vars(state.config), numbers, state.strict)).encode() + np.array(rates, np.float32).tobytes()


def state_by_python(path: Path) -> bytes:
    state = read_training_state(path.parent)
    numbers = (state.step, state.batches, state.batch_size, state.seq_len, state.seed, state.data_id, 1)
    rates = (state.learning_rate, state.beta1, state.beta2, state.eps, state.weight_decay)
    return repr((vars(state.config), numbers, not state.blas)).encode() + np.array(rates, np.float32).tobytes()


def tokenizer_by_python(path: Path) -> bytes:
    return repr(read_tokenizer(path)).encode()


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
    paths = {name: directory / f"{name}.bin" for name in ("checkpoint", "debug", "tokens", "tokenizer")}
    write_checkpoint(paths["checkpoint"], Checkpoint(CONFIG, tensors))
    ids = np.arange(8, dtype=np.int32) % 3
    values = np.arange(12 + 1 + num_parameters(CONFIG), dtype=np.float32)
    paths["debug"].write_bytes(header_bytes(20240327, 2, 2, 2) + ids.tobytes() + values.tobytes())
    write_tokens(paths["tokens"], np.arange(9) % 3)
    paths["tokenizer"].write_bytes(header_bytes(20240328, 2, 3, 2) + b"\1a\2bc\1d")
    with Runtime("1x1") as runtime, Trainer(runtime, paths["checkpoint"], batch_size=1, seq_len=2) as trainer:
        for _ in range(STEP):
            trainer.step([[0, 1]], [[1, 2]])
        trainer.save_state(directory)
        trainer.wait_saved()
    state = directory / f"step-{STEP:012}" / "rank-00000-of-00001.state"
    return [
        Kind(paths["checkpoint"], checkpoint_by_c, checkpoint_by_python, 12, 32),
        Kind(paths["debug"], debug_state_by_c, debug_state_by_python, 12, 16),
        Kind(paths["tokens"], tokens_by_c, tokens_by_python, 12, 12),
        Kind(paths["tokenizer"], None, tokenizer_by_python, 6, 16),
        Kind(state, state_by_c, state_by_python, 1, 128),
        Kind(state, state_by_c, state_by_python, 1, 1024 + 40 * len(shapes), sealed=True),
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
    begin = -(-(1024 + 40 * int.from_bytes(content[40:44], "little")) // BLOCK) * BLOCK
    if len(content) < begin + BLOCK:
        return content
    fingerprint = 0xCBF29CE484222325
    for byte in content[:begin]:
        fingerprint = (fingerprint ^ byte) * 0x100000001B3 % 2**64
    end = content[:8] + content[48:64] + content[32:40] + struct.pack("<Qq", fingerprint, len(content))
    return content[:-BLOCK] + end.ljust(BLOCK, b"\0")


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


def tensors_by_c(runtime: Runtime, path: Path) -> Content:
    """Return params, m and v as a trainer has them that resumes from the state; None if it is refused."""
    try:
        with Trainer(runtime, resume=path.parent, batch_size=1, seq_len=1) as trainer:
            names = [(group, name) for group in ("params", "m", "v") for name in trainer.tensor_names(group)]
            return b"".join(trainer.tensor(*name).tobytes() for name in names)
    except StarpullmError:
        return None


def tensors_by_python(path: Path) -> Content:
    try:
        state = read_training_state(path.parent)
    except StarpullmError:
        return None
    return b"".join(array.tobytes() for group in (state.params, state.m, state.v) for array in group.values())


def look_at(directory: str, first: int, count: int) -> tuple[list[str], dict[str, int]]:
    """Read so many mutated files from a number on; return the disagreements, and how many of each were accepted."""
    Path(directory).mkdir()
    kinds = make_kinds(Path(directory))
    contents = [kind.path.read_bytes() for kind in kinds]
    numbers = [number for number, kind in enumerate(kinds) for _ in range(kind.weight)]
    disagreements: list[str] = []
    accepted: Counter[str] = Counter()
    states = itertools.count()
    every = max(1, count // len(numbers) // WHOLE_STATES)
    with Runtime("1x1") as runtime:
        for number in range(first, first + count):
            random_numbers = random.Random(number)
            index = random_numbers.choice(numbers)
            kind, content = kinds[index], contents[index]
            changes = list(mutations(random_numbers, kind, len(content)))
            with mutated(kind, content, changes):
                try:
                    found, words = read(kind.by_python, kind.path)
                    expected, c_words = read(kind.by_c, kind.path) if kind.by_c else (found, words)
                    if kind.by_c is state_by_c and expected == found is not None and next(states) % every == 0:
                        expected, found = tensors_by_c(runtime, kind.path), tensors_by_python(kind.path)
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
    assert all(accepted[kind] for kind in ("checkpoint", "debug", "tokens", "tokenizer", "rank-00000-of-00001"))
