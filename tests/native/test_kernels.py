"""The library's kernels as functions, and the check that compares them: names, refusals, and what is set back.

That the levels have the bits of the plain kernels is the suite's test_kernels.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from starpullm.binding import kernels
from starpullm.checks.kernels.cases import CASES, make_case
from starpullm.checks.kernels.check import KernelBits

from .children import attempt, run_function


def of_this_library() -> dict[str, Any]:
    names = kernels.kernel_names()
    before = kernels.present_caches()
    results = [KernelBits().of(name, 5, cases=12).as_json() for name in ("residual_forward", "matmul_forward")]
    drawn = {name: sorted(make_case(name, 1, 0).arguments) for name in names}
    declared = {name: sorted(p.name for p in kernels.Kernel("ref", name).parameters) for name in names}
    plain = kernels.Kernel("ref", "gradient_add")
    total = np.array([1, 2, 3], np.float32)
    plain({"sum": total, "term": np.array([1, 2, 4], np.float32), "count": 3})
    one = np.ones(1, np.float32)
    return {
        "names": names,
        "results": results,
        "caches": [before, kernels.present_caches()],
        "drawn": drawn,
        "declared": declared,
        "sum": total.tolist(),
        "refused": [
            attempt(lambda: KernelBits().of("gradient_subtract", 1)),
            attempt(plain, {"sum": one, "count": 1}),
            attempt(plain, {"sum": one, "term": one.astype(np.float64), "count": 1}),
        ],
    }


def test_every_kernel_can_be_called_and_has_cases() -> None:
    told = run_function(of_this_library)
    assert list(told["names"]) == list(CASES)
    assert told["drawn"] == told["declared"]
    assert told["sum"] == [2, 4, 7]
    assert told["caches"][0] == told["caches"][1]
    for result in told["results"]:
        assert (result["outcome"], result["measured"], result["facts"]["cases"]) == ("passed", 0, 12)
        assert result["facts"]["levels"][0] == "ref"
        assert result["compared"] > 12 * (len(result["facts"]["levels"]) - 1) > 0
    sentences = [
        'kernel: found "gradient_subtract", expected one with cases: encoder_forward, ',
        "term: found no such argument, expected one of type float",
        "term: expected a contiguous array of float",
    ]
    for reply, sentence in zip(told["refused"], sentences, strict=True):
        assert reply["raised"] in ("InvalidArgumentError", "TypeError"), reply
        assert reply["text"].startswith(sentence), reply
