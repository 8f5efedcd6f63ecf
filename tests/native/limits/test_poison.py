"""What the poison fills between two submissions: all that the second doesn't need."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from starpullm.checks.bits import compare_bits
from starpullm.instruments import Instruments
from starpullm.trainer import Trainer

from .sizes import batch

pytestmark = pytest.mark.child("one worker", preloads="allocations")

_QUIET_NAN = 1 << 22

CONSTANT = {"losses", "probs", *(f"{name}_{part}" for name in ("ln1", "ln2", "lnf") for part in ("mean", "rstd"))}
"""Activations whose gradient no task writes: a constant, or +0."""


@pytest.fixture(scope="module")
def trainers(train: Callable[..., Trainer]) -> Iterator[tuple[Trainer, Trainer]]:
    """One with poison and one without, after a step and an evaluation.

    The evaluation writes no gradient, moment or parameter.
    """
    with (
        train(keep_activations=True, trace=True, instruments=Instruments(poison=True)) as poisoned,
        train(keep_activations=True) as plain,
    ):
        for trainer in (poisoned, plain):
            trainer.step(*batch(0))
            trainer.evaluate(*batch(1))
        yield poisoned, plain


@pytest.mark.parametrize("group", ["params", "m", "v"])
def test_what_the_next_step_needs(trainers: tuple[Trainer, Trainer], group: str) -> None:
    poisoned, plain = trainers
    for name in poisoned.tensor_names(group):
        assert compare_bits(plain.tensor(group, name), poisoned.tensor(group, name)) is None, name


@pytest.mark.parametrize("group", ["grads", "activation_grads"])
def test_what_it_does_not_need(trainers: tuple[Trainer, Trainer], group: str) -> None:
    """Each tensor is one signalling NaN."""
    poisoned, _ = trainers
    for name in poisoned.tensor_names(group):
        values = poisoned.tensor(group, name).ravel()
        if group == "activation_grads" and name in CONSTANT:
            assert not np.isnan(values).any(), name
            continue
        assert np.isnan(values).all(), name
        (bits,) = np.unique(values.view(np.uint32))
        assert not bits & _QUIET_NAN, name
