"""The check after every test that no process and no file of its jobs is left."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from starpullm.processes import job

from ..refusals import compile_refusals


@pytest.fixture(scope="session")
def refusing_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library by which StarPU refuses calls of a process that preloads it."""
    return compile_refusals(tmp_path_factory.mktemp("refusals"))


@pytest.fixture(autouse=True)
def job_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Make a job of the test, which all its processes belong to; check that no process and no file of it is left."""
    name = f"test-{uuid.uuid4().hex}"
    files = tmp_path / "files"
    files.mkdir()
    monkeypatch.setenv(job.JOB_VARIABLE, name)
    monkeypatch.setattr(tempfile, "tempdir", str(files))
    # Neither the current directory nor this one may hide the installed package.
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="starpullm-tests-") as memory:
        monkeypatch.setattr(job, "_MEMORY", Path(memory))
        yield name
        assert job.processes_of(name) == []
        assert list(files.iterdir()) == []
        assert list(Path(memory).iterdir()) == []
