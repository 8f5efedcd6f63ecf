"""Each limit and each refusal of starpullm.h, on one rank and on two; each check runs in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from starpullm.binding import allocations
from starpullm.checks.isolation import Pool
from starpullm.checks.result import Outcome, Result
from starpullm.options import RuntimeConfiguration

from . import checkpoints, operations, options, persistence, poisoned, ranks, runtimes, scarcity, states, trainers
from .refusals import refused_tasks

TIME_LIMIT = 100.0
ONE = RuntimeConfiguration("1x1", "lws")
TWO_RANKS = RuntimeConfiguration("1x1", "lws", 2)
TINY: dict[str, Any] = {"record": "tiny", "seed": 1}
SPLIT: dict[str, Any] = {**TINY, "sub_batches": 2, "reduction": "ordered"}

Check = Callable[..., Result]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool() as one:
        yield one


def require_passed(result: Result) -> None:
    assert result.outcome is Outcome.PASSED, "\n".join(result.lines())


def name_of(check: Check) -> str:
    return check.__name__


@pytest.mark.parametrize(
    "check",
    [
        options.options_of_trainers,
        trainers.calls_of_trainers,
        checkpoints.damaged_checkpoints,
        states.damaged_states,
        persistence.saved_and_read,
        persistence.failing_saves,
        poisoned.poisoned_memory,
    ],
    ids=name_of,
)
def test_on_one_worker(pool: Pool, check: Check) -> None:
    """Every instrument works there; the placement of tasks makes no difference."""
    require_passed(pool.call(ONE, check, time_limit=TIME_LIMIT, seed=1).result())


@pytest.mark.parametrize("check", [ranks.refused_over_ranks, ranks.saved_over_ranks], ids=name_of)
def test_over_ranks(pool: Pool, check: Check) -> None:
    """A refusal is one on all ranks; what they save together can be read."""
    require_passed(pool.call(TWO_RANKS, check, time_limit=TIME_LIMIT, **TINY).result())


def test_starts_of_runtimes(pool: Pool) -> None:
    """The process has no runtime before; it starts many."""
    require_passed(pool.call(1, runtimes.starts_of_runtimes, time_limit=TIME_LIMIT).result())


@pytest.mark.parametrize(
    ("configuration", "arguments"),
    [(ONE, SPLIT), (TWO_RANKS, {**SPLIT, "sub_batches": 1})],
    ids=["one rank", "two ranks"],
)
def test_operations_leave_nothing(pool: Pool, configuration: RuntimeConfiguration, arguments: dict[str, Any]) -> None:
    """Each operation is repeated; on one rank also those that are refused."""
    reply = pool.call(
        configuration, operations.operation_growth, time_limit=TIME_LIMIT, counts_allocations=True, **arguments
    )
    require_passed(reply.result())


def test_memory_that_runs_out_is_told(pool: Pool) -> None:
    """Each place in the library that allocates fails, one in each call."""
    for placement, check, arguments in (
        (ONE, scarcity.scarce_memory, SPLIT),
        (1, scarcity.scarce_starts, {}),
        (1, scarcity.scarce_kernels, {}),
    ):
        reply = pool.call(placement, check, time_limit=TIME_LIMIT, counts_allocations=True, **arguments)
        require_passed(reply.result())


def test_refused_tasks_leave_nothing(pool: Pool, refusing_library: Path) -> None:
    """StarPU refuses tasks from the first to the last of a step."""
    # Memory that is freed is overwritten, so that using it later shows.
    environment = {**allocations.preloading(refusing_library), "MALLOC_PERTURB_": "165"}
    require_passed(pool.call(1, refused_tasks, time_limit=TIME_LIMIT, environment=environment).result())
