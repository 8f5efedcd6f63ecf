"""How hypothesis runs here: without a time limit per example, since files are synchronised to disk; the plain model."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from starpullm.golden import plain
from starpullm.golden.records import GoldenRecord

from .plain_trainer import PLAIN, compiled, write_record

settings.register_profile("unit", deadline=None, database=None)
settings.load_profile("unit")


@pytest.fixture(scope="session", autouse=True)
def _plain_library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compile the plain model alone when a test first needs it."""

    @cache
    def library(arithmetic: str = "strict") -> ctypes.CDLL:
        flags = ("-DFUSED",) if arithmetic == "fused" else ()
        return plain.declared(compiled(tmp_path_factory.mktemp("plain") / "plain.so", PLAIN, *flags))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain, "library", library)
        yield


@pytest.fixture(scope="session")
def strict(tmp_path_factory: pytest.TempPathFactory) -> tuple[GoldenRecord, Path]:
    """A record that the plain model has made, and its checkpoint."""
    return write_record(tmp_path_factory.mktemp("strict"))
