"""Training isn't slower than a baseline, nor its task graph more expensive; only with ``--starpullm-benchmark``."""

from __future__ import annotations

import pytest

from starpullm.checks.cases import find_record
from starpullm.options import RuntimeConfiguration
from starpullm.pytest_plugin import Gate
from starpullm.runtime import Partition

pytestmark = pytest.mark.starpullm_throughput


def test_no_slower_than_the_baseline(
    starpullm_gate: Gate, starpullm_configuration: RuntimeConfiguration, speed_case: tuple[str, int]
) -> None:
    """Compared are the step and each operation's kernels; tasks, bytes and critical path must be equal.

    Each worker has a sub-batch if that divides a rank's batch; otherwise there is one, as in ``starpullm bench``.
    """
    record, ranks = speed_case
    workers = Partition.parse(starpullm_configuration.partition).workers
    divides = find_record(record).batch_size % (workers * ranks) == 0
    starpullm_gate(record, workers if divides else 1, ranks)
