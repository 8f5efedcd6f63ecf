"""Where a checked run takes place: the fields of its result, and which sequences of the batch a rank has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starpullm.checks.result import CheckResult
from starpullm.errors import InvalidArgumentError
from starpullm.runtime import Runtime


@dataclass(frozen=True, kw_only=True)
class PlacedResult(CheckResult):
    """The result of a check that makes one run; the number of sub-batches is that of one rank."""

    partition: str
    scheduler: str
    ranks: int
    sub_batches: int
    reduction: str
    matmul: str


def placement_fields(runtime: Runtime, sub_batches: int, reduction: str) -> dict[str, Any]:
    """Return the fields that ``PlacedResult`` adds to ``CheckResult``."""
    return {
        "partition": str(runtime.partition),
        "scheduler": runtime.scheduler,
        "ranks": runtime.ranks,
        "sub_batches": sub_batches,
        "reduction": reduction,
        "matmul": runtime.matmul,
    }


def own_sequences(runtime: Runtime, batch_size: int, whose: str) -> slice:
    """Return which sequences of all ranks' batch are this rank's; messages speak of ``whose`` batch.

    Raises
    ------
    InvalidArgumentError
        If the ranks don't divide the batch.
    """
    if batch_size % runtime.ranks:
        raise InvalidArgumentError(f"{whose} batch of {batch_size} can't be spread over {runtime.ranks} ranks")
    size = batch_size // runtime.ranks
    return slice(runtime.rank * size, (runtime.rank + 1) * size)
