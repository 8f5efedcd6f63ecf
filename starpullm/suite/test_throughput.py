"""Training isn't slower than a baseline, nor its task graph more expensive; only with ``--starpullm-benchmark``."""

from __future__ import annotations

import pytest

from starpullm.checks.isolation import RuntimeConfiguration
from starpullm.pytest_plugin import Gate

from .conftest import SpeedCase

pytestmark = pytest.mark.starpullm_throughput


def test_no_slower_than_the_baseline(
    starpullm_gate: Gate, starpullm_configuration: RuntimeConfiguration, speed_case: SpeedCase
) -> None:
    """Compared are the step and each operation's kernels; tasks, bytes and critical path must be equal."""
    starpullm_gate(speed_case.record, speed_case.sub_batches(starpullm_configuration.partition), speed_case.ranks)
