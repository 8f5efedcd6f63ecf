"""The hosts that each test of this directory has for itself: to make them takes a fifth of a second."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .machines import Hosts, running_hosts, why_not


@pytest.fixture(scope="session")
def _can_have_hosts() -> None:
    reason = why_not()
    if reason:
        pytest.skip(f"there are no hosts: {reason}")


@pytest.fixture
def hosts(_can_have_hosts: None) -> Iterator[Hosts]:
    """Two hosts; nothing of them is left running."""
    with tempfile.TemporaryDirectory(prefix="starpullm-hosts-") as name:
        with running_hosts(Path(name)) as running:
            yield running
        assert running.processes() == []
