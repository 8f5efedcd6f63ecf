"""Training is no slower than a baseline, and its task graph no more expensive.

Run by ``pytest --pyargs starpullm.suite --benchmark``, and left out without that option.
"""

from __future__ import annotations

import pytest

from starpullm.checks.isolation import RuntimeConfiguration
from starpullm.pytest_plugin import Gate

from .conftest import SpeedCase

pytestmark = pytest.mark.throughput


def test_no_slower_than_the_baseline(
    starpullm_gate: Gate, starpullm_configuration: RuntimeConfiguration, speed_case: SpeedCase
) -> None:
    """The step and every operation's kernels; then tasks, bytes and the critical path, which must be the same."""
    starpullm_gate(speed_case.record, speed_case.sub_batches(starpullm_configuration.partition), speed_case.ranks)
