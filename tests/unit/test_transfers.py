"""What ranks must send, from traces that are made by hand, and what StarPU-MPI prints of it."""

from __future__ import annotations

import pytest

from starpullm.checks.transfers import Sent, compare_sent, owners_of, required_messages
from starpullm.trace import AccessMode, Trace

from .traces import trace_of

R, W, RW = AccessMode.READ, AccessMode.WRITE, AccessMode.READ_WRITE
SIZES = {
    "params/wte": 100,
    "grads/wte#0": 10,
    "grads/wte#1": 10,
    "grads/wte#2": 10,
    "grads/wte#3": 10,
    "staging/rank1": 7,
    "mean_loss@0": 3,
    "params/wpe": 50,
}
NAMES = list(SIZES)
OPERATIONS = ("work", "transfer", "adamw_update")


def make_trace(*tasks: tuple[str, int, list[tuple[str, AccessMode]]]) -> Trace:
    """Tasks are given by operation, rank and accesses."""
    operations, ranks, flow = zip(*tasks, strict=True)
    return trace_of(flow, SIZES, OPERATIONS, rank=ranks, operation=[OPERATIONS.index(name) for name in operations])


UPDATES = (
    ("adamw_update", 0, [("params/wte", RW), ("grads/wte#0", R)]),
    ("adamw_update", 1, [("params/wpe", RW)]),
)


def test_owners() -> None:
    """Two sub-batches on each of two ranks."""
    owners = owners_of(make_trace(*UPDATES), 2)
    assert {NAMES[handle]: rank for handle, rank in owners.items()} == {
        "params/wte": 0,
        "grads/wte#0": 0,
        "grads/wte#1": 0,
        "grads/wte#2": 1,
        "grads/wte#3": 1,
        "staging/rank1": 1,
        "mean_loss@0": 0,
        "params/wpe": 1,
    }


@pytest.mark.parametrize(
    ("tasks", "messages", "sizes"),
    [
        ([("work", 0, [("params/wte", R)])], (0, 0), {}),  # its own
        ([("work", 1, [("params/wte", R)])] * 2, (1, 0), {(0, 1): 100}),  # sent once, kept
        (
            [("work", 1, [("params/wte", R)]), UPDATES[0], ("work", 1, [("params/wte", R)])],
            (2, 0),
            {(0, 1): 200},
        ),  # a value that has changed is sent once more
        ([("work", 1, [("params/wte", R), ("grads/wte#0", RW)])], (2, 1), {(0, 1): 110, (1, 0): 10}),
        ([("work", 1, [("grads/wte#0", RW)])] * 2, (2, 2), {(0, 1): 20, (1, 0): 20}),
        ([("work", 1, [("grads/wte#0", W)])], (0, 1), {(1, 0): 10}),
        ([("transfer", 0, [("staging/rank1", W), ("grads/wte#1", R)])], (1, 0), {(0, 1): 10}),
        ([("work", 0, [("params/wpe", R)]), ("work", 1, [("params/wte", R)])], (1, 1), {(0, 1): 100, (1, 0): 50}),
    ],
)
def test_required_messages(
    tasks: list[tuple[str, int, list[tuple[str, AccessMode]]]],
    messages: tuple[int, int],
    sizes: dict[tuple[int, int], int],
) -> None:
    found = required_messages(make_trace(*tasks), owners_of(make_trace(*UPDATES), 2), 2)
    assert tuple(of_rank.messages for of_rank in found) == messages
    assert {(rank, to): size for rank, sent in enumerate(found) for to, size in sent.sizes.items()} == sizes


TEXT = """noise
[starpu_comm_stats][1] TOTAL:\t110.000000 B\t0.000105 MB
[starpu_comm_stats][1:0]\t100.000000 B\t0.000095 MB
[starpu_comm_stats][1:2]\t10.000000 B\t0.000010 MB
[starpu_comm_stats][1] nb_sends: 12
[starpu_comm_stats][0] nb_sends: 7
"""


def test_what_starpu_prints() -> None:
    assert Sent.printed(TEXT, 1) == Sent(12, {0: 100, 2: 10})
    assert Sent.printed(TEXT, 0) == Sent(7, {})
    assert Sent.printed(TEXT, 2) is None


def test_comparison() -> None:
    expected = Sent(12, {0: 100, 2: 10})
    assert list(compare_sent(Sent(12, {0: 100, 2: 10}), expected)) == []
    assert list(compare_sent(Sent(13, {0: 99, 3: 1}), expected)) == [
        "found 13 messages sent, expected 12",
        "found 99 bytes sent to rank 0, expected 100",
        "found 0 bytes sent to rank 2, expected 10",
        "found 1 bytes sent to rank 3, expected 0",
    ]
    assert list(compare_sent(None, expected)) == [
        "found no count of messages in StarPU-MPI's output, expected one with STARPU_MPI_STATS"
    ]
