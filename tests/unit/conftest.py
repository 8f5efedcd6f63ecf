"""How hypothesis runs here: without a time limit per example, since files are synchronised to disk.

pytest loads it for this directory's tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from starpullm.golden.records import GoldenRecord

settings.register_profile("unit", deadline=None, database=None)
settings.load_profile("unit")


@pytest.fixture(scope="session")
def strict(tmp_path_factory: pytest.TempPathFactory) -> tuple[GoldenRecord, Path]:
    """A record that the strict reference has made, and its checkpoint."""
    from .strict_trainer import write_record

    return write_record(tmp_path_factory.mktemp("strict"))
