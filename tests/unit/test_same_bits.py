"""Tests of the comparison of runs: any bit counts, and the message says which run and element differ.

Runs that are compared are in starpullm/suite.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from starpullm.checks.dependencies.perturbation import Perturbation, require_delays
from starpullm.checks.reduction import count_denormals
from starpullm.checks.result import Outcome
from starpullm.errors import InvalidArgumentError, RuntimeFailureError

from .test_dependencies import make_trace

F32 = np.float32
compare = Perturbation().together
NEAR = float(np.nextafter(F32(6), F32(7)))


def run(*values: float) -> dict[str, NDArray[np.float32]]:
    return {"x": np.array(values, F32), "loss": np.array(1.5, F32)}


@pytest.mark.parametrize("value", [6.0, math.nan])
def test_equal_bits_pass(value: float) -> None:
    result = compare({"a": run(value), "b": run(value), "c": run(value)})
    assert (result.outcome, result.measured, result.limit, result.compared) == (Outcome.PASSED, 0, 0, 4)


def test_difference_is_shown_with_its_bits() -> None:
    result = compare({"a": run(4, 6), "2x1 random, by seed 3": run(-0.0, NEAR)})
    assert (result.outcome, result.measured) == (Outcome.FAILED, 1)
    assert result.lines() == [
        "perturbation: failed: delays change bits (1 in 2 tensors); 2 runs",
        "  differs  x of 2x1 random, by seed 3  compared with a",
        "    differ                2 of 2 elements (2,) (100 %)",
        "    first element         0, [0]",
        "    expected              0x40800000 (4.0)",
        "    found                 0x80000000 (-0.0), 1082130432 ULP off",
        "    elements by ULPs off  1: 1, 1073741824 to 2147483647: 1; zeros of other sign: 0; NaNs: 0",
    ]
    json.dumps(result.as_json(), allow_nan=False)


def test_runs_must_have_the_same_tensors() -> None:
    with pytest.raises(InvalidArgumentError, match=r"b: found tensors \['x'\], expected \['loss', 'x'\]"):
        compare({"a": run(1), "b": {"x": np.zeros(1, F32)}})
    with pytest.raises(InvalidArgumentError, match=r"found float32 \(2,\) and float32 \(1,\)"):
        compare({"a": run(1), "b": run(1, 2)})


def test_one_run_or_no_tensor_shows_nothing() -> None:
    with pytest.raises(InvalidArgumentError, match="perturbation: nothing was compared: 0 tensors compared"):
        compare({"a": run(1)})
    with pytest.raises(InvalidArgumentError, match="nothing was compared"):
        compare({"a": {}, "b": {}})


@pytest.mark.parametrize(
    ("microseconds", "delayed"), [([100, 0, 0, 0], True), ([100, 99, 0, 0, 0], False), ([], False)]
)
def test_a_run_without_delays_is_refused(microseconds: list[int], delayed: bool) -> None:
    starts = [1000 * number for number in range(len(microseconds))]
    ends = [start + 1000 * long for start, long in zip(starts, microseconds, strict=True)]
    trace = make_trace([[] for _ in microseconds], starts=starts, ends=ends)
    if delayed:
        require_delays(trace, 200)
    else:
        with pytest.raises(RuntimeFailureError, match=rf"delays: . of {len(microseconds)} tasks took 100 µs or longer"):
            require_delays(trace, 200)


def test_denormals_are_counted() -> None:
    smallest = np.finfo(F32).smallest_normal
    values = np.array([0, -0.0, 1, smallest, -smallest, smallest / 2, -1e-45, math.nan, math.inf], F32)
    assert count_denormals([values, values[:6]]) == 3
