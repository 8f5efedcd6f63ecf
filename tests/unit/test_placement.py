"""Which sequences of a batch a rank has."""

from __future__ import annotations

import pytest

from starpullm.checks.training import own_sequences
from starpullm.errors import InvalidArgumentError

from .strict_trainer import runtime


def test_ranks_have_parts_of_one_size_in_their_order() -> None:
    parts = [own_sequences(runtime(ranks=3, rank=rank), 6, "the") for rank in range(3)]
    assert [(part.start, part.stop) for part in parts] == [(0, 2), (2, 4), (4, 6)]
    assert own_sequences(runtime(), 5, "the") == slice(0, 5)


def test_a_batch_that_ranks_do_not_divide_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^odd: its batch of 7 can't be spread over 3 ranks$"):
        own_sequences(runtime(ranks=3), 7, "odd: its")
