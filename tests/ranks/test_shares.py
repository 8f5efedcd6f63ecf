"""A rank's share of a session: the handles it registers, and the tasks it submits, are those that it must have.

A rank runs the tasks of its own sub-batches and updates its own parameters. Of other ranks it knows what it exchanges
with them; how much that is follows from the reduction, and here from no count of the library.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from starpullm.binding import prototypes
from starpullm.checks.check_context import CheckContext, serve_checks
from starpullm.checks.references import record_trainer
from starpullm.checks.training import local_batch
from starpullm.golden.records import shipped_record
from starpullm.options import RuntimeConfiguration
from starpullm.processes.children import Pool
from starpullm.trace import Trace

TIME_LIMIT = 100.0
LAYERS = 2
SUB_BATCHES = 2
"""Of each rank."""
SLOTS = 2
"""Steps in flight."""


def shares_of_ranks(context: CheckContext, *, reduction: str, tiles: int = 1) -> None:
    """Submit two steps, and ask the library for this rank's share after each; raise an error if it is another one."""
    runtime, record = context.runtime, shipped_record("tiny")
    assert record.model.num_layers == LAYERS
    options: dict[str, Any] = {"sub_batches": SUB_BATCHES, "reduction": reduction, "weight_gradient_tiles": tiles}
    batch = replace(record, batch_size=SUB_BATCHES * runtime.ranks)
    with record_trainer(
        runtime, batch, context.checkpoint(record), trace=True, keep_activations=False, steps_in_flight=SLOTS, **options
    ) as trainer:
        shares = []
        for number in range(2):
            trainer.submit(*local_batch(trainer, 1, number))
            shares += prototypes.results("session_share", trainer._handle)
        trace = trainer.trace()
    owned, updates = updates_of_ranks(trace, runtime.ranks)
    handles, submitted, exchanged = expected_share(runtime.rank, reduction, tiles, owned, updates)
    first, second = shares
    ran = sum(task.rank == runtime.rank and task.worker >= 0 for task in trace)
    assert (first.handles, second.handles) == (handles, handles)
    assert (first.submitted, second.submitted) == (submitted, 2 * submitted)
    assert (first.exchanged, second.exchanged) == (exchanged, 2 * exchanged)
    assert ran == 2 * submitted


def updates_of_ranks(trace: Trace, ranks: int) -> tuple[list[int], list[int]]:
    """Return how many parameters each rank updates, and the tasks that do so in a step, one for each tile."""
    of_step = [task for task in trace if task.operation == "adamw_update" and task.step == 0]
    updated = {(task.rank, access.handle.name) for task in of_step for access in task.accesses}
    owned = Counter(rank for rank, name in updated if name.startswith("params/"))
    updates = Counter(task.rank for task in of_step)
    return [owned[rank] for rank in range(ranks)], [updates[rank] for rank in range(ranks)]


def expected_share(rank: int, reduction: str, tiles: int, owned: list[int], updates: list[int]) -> tuple[int, int, int]:
    """Return the handles that a rank registers, and its tasks and exchanges of a step.

    Exchanges are messages of gradients, and other ranks' tasks that the rank has to do with. ``tiles`` are those of the
    gradient of each weight that is a matrix of a matmul; a bias has those of its weight.
    """
    last = len(owned) - 1
    tensors = 12 * LAYERS + 4
    gradients = LAYERS * (4 + 8 * tiles) + 3 + tiles
    of_sub_batch = (13 * LAYERS + 10) + (12 + 3)  # activations, and their gradients, one for all blocks
    tokens_and_losses = 2 * SLOTS * SUB_BATCHES + SLOTS + 1
    handles = tensors + 2 * owned[rank] + gradients + SUB_BATCHES * of_sub_batch + tokens_and_losses
    forward_and_loss, backward = 10 * LAYERS + 6, (12 + 4 * tiles) * LAYERS + 4 + 2 * tiles
    submitted = SUB_BATCHES * (forward_and_loss + backward) + 1 + updates[rank]
    exchanged = gradients - updates[rank]  # each update makes its copies of a parameter invalid
    if rank == 0:  # it has the sum of the losses, which passes through all sub-batches, and sends the mean
        exchanged += last * SUB_BATCHES + last
    if reduction == "ordered":
        to_owners = gradients - updates[last] if rank == last else updates[rank]
        exchanged += gradients * ((rank > 0) + (rank < last)) + 2 * tiles + to_owners
    elif reduction == "tree":
        added = additions(last + 1)
        from_others = sum(n for (adding, other), n in added.items() if adding == rank != other)
        handles += tensors * (SUB_BATCHES + from_others) - gradients + (owned[rank] if rank > 0 else 0)
        submitted += tensors * sum(n for (adding, _), n in added.items() if adding == rank)
        exchanged += gradients * sum(n for (adding, other), n in added.items() if adding != rank == other)
    return handles, submitted, exchanged


def additions(ranks: int) -> Counter[tuple[int, int]]:
    """Return how often, for a tensor, a rank adds a gradient of another rank or its own: of (adding, added)."""
    pairs: Counter[tuple[int, int]] = Counter()
    for added in range(1, ranks * SUB_BATCHES):
        adding = added & (added - 1)  # a tree of neighbours, then of neighbours' sums, and so on
        pairs[adding // SUB_BATCHES, added // SUB_BATCHES] += 1
    return pairs


@pytest.mark.parametrize(
    ("ranks", "reduction", "tiles"), [(3, "ordered", 1), (2, "ordered", 3), (4, "tree", 1), (2, "redux", 1)]
)
def test_a_rank_has_its_share(ranks: int, reduction: str, tiles: int) -> None:
    place = RuntimeConfiguration("1x1", "lws", ranks)
    request = partial(shares_of_ranks, reduction=reduction, tiles=tiles)
    with Pool(serve_checks) as pool:
        pool.ask(place, request, time_limit=TIME_LIMIT).result()
