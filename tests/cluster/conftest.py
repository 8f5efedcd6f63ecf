"""The cluster that the tests of this directory share, and the jobs, which are all submitted before the first test."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .slurm import Cluster, missing_programs, running_cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A Slurm of two nodes; nothing of it is left running."""
    missing = missing_programs()
    if missing:
        pytest.skip(f"there is no Slurm: {', '.join(missing)} not found; apt-get install slurm-wlm munge")
    # A short path, because munged's socket is in it.
    with tempfile.TemporaryDirectory(prefix="starpullm-slurm-") as name:
        Path(name).chmod(0o755)
        with running_cluster(Path(name)) as running:
            yield running
        assert running.processes() == []
