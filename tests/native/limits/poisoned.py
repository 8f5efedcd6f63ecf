"""What the poison fills between two submissions."""

from __future__ import annotations

import numpy as np

from starpullm.checks.place import Place
from starpullm.checks.result import Result
from starpullm.checks.training import new_trainer, own_batch
from starpullm.instruments import Instruments
from starpullm.trainer import Trainer

from .options import TINY
from .statements import Statements

_QUIET_NAN = 1 << 22


def poisoned_memory(place: Place, *, seed: int) -> Result:
    """Look at what the poison fills between two submissions: all that the second doesn't need; on one rank."""
    statements = Statements("reach of the poison")
    options = {"keep_activations": True, "trace": True, "instruments": Instruments(poison=True)}
    with new_trainer(place, TINY, **options) as trainer, new_trainer(place, TINY) as plain:
        for of in (trainer, plain):
            of.step(*own_batch(of, seed, 0))
            of.evaluate(*own_batch(of, seed, 1))  # writes no gradient, moment or parameter
        for group in ("params", "m", "v"):
            for name in trainer.tensor_names(group):
                statements.same_bits(f"{group}/{name}", plain.tensor(group, name), trainer.tensor(group, name))
        for group in ("grads", "activation_grads"):
            for name in trainer.tensor_names(group):
                _check_poisoned(statements, trainer, group, name)
    return statements.result()


def _check_poisoned(statements: Statements, trainer: Trainer, group: str, name: str) -> None:
    values = trainer.tensor(group, name).ravel()
    if group == "activation_grads" and name in _CONSTANT:
        statements.equal(f"{group}/{name}, a constant, is poisoned", False, bool(np.isnan(values).any()))
        return
    bits = np.unique(values.view(np.uint32))
    signalling = bool(np.isnan(values).all()) and not bits[0] & _QUIET_NAN
    statements.equal(f"{group}/{name} is one signalling NaN", (1, True), (len(bits), signalling))


_CONSTANT = ("losses", "probs", *(f"{name}_{of}" for name in ("ln1", "ln2", "lnf") for of in ("mean", "rstd")))
"""Activations whose gradient no task writes: a constant, or +0."""
