"""Tests of the comparison of a disturbed run with a plain one: any bit counts, and the message says how to repeat it.

Disturbed runs are in starpullm/suite.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.typing import NDArray

from starpullm.checks.perturbation import MAX_LISTED, Disturbance, check_perturbed
from starpullm.checks.result import Outcome
from starpullm.errors import InvalidArgumentError

RANDOM_3 = Disturbance("2x1", "random", delay_seed=3, max_delay_us=200)


def tensors(count: int = 2) -> dict[str, NDArray[np.float32]]:
    return {f"params/t{number}": np.arange(6, dtype=np.float32).reshape(2, 3) for number in range(count)}


def test_equal_bits_pass() -> None:
    result = check_perturbed(RANDOM_3, tensors(), tensors())
    assert (result.outcome, result.measured, result.num_tensors) == (Outcome.PASSED, 0, 2)


def test_one_bit_fails_with_what_repeats_it() -> None:
    found = tensors()
    found["params/t1"][0, 0] = -0.0
    result = check_perturbed(RANDOM_3, found, tensors())
    assert (result.outcome, result.measured) == (Outcome.FAILED, 1)
    text = "\n".join(result.describe())
    assert "2x1 random, delays of up to 200 µs by seed 3" in text
    assert "params/t1: 1 of 6 elements" in text
    assert "params/t0" not in text
    json.dumps(result.as_json())


def test_many_tensors_are_counted_and_some_listed() -> None:
    found = {name: values + 1 for name, values in tensors(30).items()}
    result = check_perturbed(RANDOM_3, found, tensors(30))
    assert (result.measured, len(result.differences)) == (30, MAX_LISTED)
    assert f"… and {30 - MAX_LISTED} more" in "\n".join(result.describe())


@pytest.mark.parametrize(("found", "plain"), [(tensors(1), tensors(2)), ({}, {}), (tensors(2), tensors(1))])
def test_other_tensors_are_refused(
    found: dict[str, NDArray[np.float32]], plain: dict[str, NDArray[np.float32]]
) -> None:
    with pytest.raises(InvalidArgumentError, match="tensors: found"):
        check_perturbed(RANDOM_3, found, plain)
