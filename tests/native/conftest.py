"""Models and token files that the tests of this directory share, made once per session, and a disk that fills up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from starpullm.data.generator import generate_checkpoint, generate_tokens, initial_checkpoint
from starpullm.data.text import byte_encoding
from starpullm.files.model import ModelConfig
from starpullm.files.tokens import write_tokens
from starpullm.golden.records import shipped_record
from starpullm.processes.lock import LOCK_VARIABLE

from .children import run_command


@pytest.fixture
def own_lock(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this test's children a machine lock of their own; another run of tests may hold the user's for minutes."""
    monkeypatch.setenv(LOCK_VARIABLE, str(tmp_path_factory.mktemp("lock") / "lock"))


@pytest.fixture(scope="session")
def record_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from a shipped record's name to its generated model, made when first asked for."""
    directory = tmp_path_factory.mktemp("models")

    @cache
    def generate(name: str) -> Path:
        record = shipped_record(name)
        path = directory / f"{name}.bin"
        assert generate_checkpoint(path, record.model, record.seed) == record.checkpoint_sha256
        return path

    return generate


@pytest.fixture(scope="session")
def tiny_checkpoint(record_checkpoint: Callable[[str], Path]) -> Path:
    """2 layers, 2 heads, 16 channels, 61 tokens padded to 64, sequences of up to 16; its record has B 2, T 8."""
    return record_checkpoint("tiny")


@pytest.fixture(scope="session")
def odd_checkpoint(record_checkpoint: Callable[[str], Path]) -> Path:
    """Sizes that no SIMD width divides."""
    return record_checkpoint("odd")


@pytest.fixture(scope="session")
def small_checkpoint(record_checkpoint: Callable[[str], Path]) -> Path:
    """4 layers, 64 channels, 1000 tokens; its record has B 8, T 64."""
    return record_checkpoint("small")


@pytest.fixture(scope="session")
def tiny_tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 tokens of tiny's vocabulary: 24 steps of 2 x 8."""
    path = tmp_path_factory.mktemp("tokens") / "tiny.tokens.bin"
    inputs, _ = generate_tokens(1, 0, 1, 400, 61)
    write_tokens(path, inputs.reshape(-1))
    return path


BYTE_MODEL = ModelConfig(
    max_seq_len=32,
    vocab_size=byte_encoding().vocab_size,
    num_layers=2,
    num_heads=2,
    channels=16,
    padded_vocab_size=264,
)


@pytest.fixture(scope="session")
def byte_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model whose tokens are bytes, for text."""
    path = tmp_path_factory.mktemp("models") / "bytes.bin"
    initial_checkpoint(path, BYTE_MODEL, 1)
    return path


@dataclass(frozen=True)
class SmallDisk:
    """An empty folder, and the command before a command that sees a disk of 256 KiB mounted there."""

    folder: Path
    prefix: tuple[str, ...]


@pytest.fixture
def small_disk(tmp_path: Path) -> SmallDisk:
    """A real file system that fills up; skips where nobody may mount one.

    It is mounted in a mount namespace of the child's own, and is gone with it.
    """
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = 'mount -t tmpfs -o size=256k tmpfs "$1" && shift && exec "$@"'
    refusals = []
    for unshare in (("unshare", "-Urm"), ("unshare", "-m")):
        prefix = (*unshare, "sh", "-c", mount, "sh", str(folder))
        done = run_command([*prefix, "true"], timeout=20)
        if done.returncode == 0:
            return SmallDisk(folder, prefix)
        refusals.append(f"{' '.join(unshare)}: {done.stderr.strip()}")
    pytest.skip(f"can't mount a file system here: {'; '.join(refusals)}")
