"""A workload whose fields the tests change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starpullm.speed.workload import Workload


def workload(**changes: Any) -> Workload:
    """Return tiny on one worker of one thread, with these fields changed."""
    plain = Workload(
        model="tiny",
        batch_size=2,
        seq_len=8,
        partition="1x1",
        scheduler="lws",
        sub_batches=1,
        reduction="ordered",
        ranks=1,
        iterations=3,
        warm_up=2,
    )
    return replace(plain, **changes)
