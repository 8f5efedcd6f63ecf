"""What a rank must have doesn't grow with the number of ranks."""

from __future__ import annotations

import pytest

from starpullm.checks.cases import Case
from starpullm.checks.pruning import Shape, expected_exchanged, expected_handles, expected_submitted, expected_tiles
from starpullm.golden.records import shipped_record

OWNED = 10
ONE = dict.fromkeys(("wte", "qkvw", "attprojw", "fcw", "fcprojw"), 1)


def share(ranks: int, rank: int, reduction: str, tiles: dict[str, int] = ONE, updates: int = OWNED) -> tuple[int, ...]:
    own = {"owned": (OWNED,) * ranks, "updates": (updates,) * ranks}
    shape = Shape(layers=2, sub_batches=4, reduction=reduction, tiles=tiles, **own)
    return expected_handles(shape, rank), expected_submitted(shape, rank), expected_exchanged(shape, rank)


@pytest.mark.parametrize("reduction", ["ordered", "tree", "redux"])
@pytest.mark.parametrize(("ranks", "more"), [(3, 4), (4, 8), (8, 16)])
def test_ranks_between_others_have_the_same_share(ranks: int, more: int, reduction: str) -> None:
    assert share(ranks, 1, reduction) == share(more, 1, reduction)


@pytest.mark.parametrize("reduction", ["ordered", "tree", "redux"])
def test_the_first_rank_adds_a_level_of_the_tree_only(reduction: str) -> None:
    (handles, submitted, _), (more_handles, more_submitted, _) = share(4, 0, reduction), share(8, 0, reduction)
    level = 28 if reduction == "tree" else 0
    assert (more_handles - handles, more_submitted - submitted) == (level, level)


def test_one_rank_exchanges_nothing() -> None:
    assert share(1, 0, "ordered")[2] == 0
    assert share(1, 0, "redux")[:2] == share(1, 0, "ordered")[:2]


@pytest.mark.parametrize(
    ("workers", "wte", "fcw"), [(1, 1, 1), (2, 4, 1), (4, 8, 1), (12, 25, 1), (36, 75, 4), (64, 133, 8)]
)
def test_tiles_of_gpt2(workers: int, wte: int, fcw: int) -> None:
    """An operation's share of a sub-batch's products, 0.104 for wte, 20 times for each worker."""
    model = shipped_record("gpt2-124m").model

    def tiles(reduction: str, sub_batches: int, of_each: int = 0) -> dict[str, int]:
        return expected_tiles(model, Case("", sub_batches, reduction, weight_gradient_tiles=of_each), 1, workers)

    many = tiles("ordered", 1000)
    assert (many["wte"], many["fcw"]) == (wte, fcw)
    assert tiles("ordered", 3)["wte"] == min(wte, 3)
    assert set(tiles("ordered", 1000, 7).values()) == {7}
    assert set(tiles("tree", 1000).values()) == {1}
