"""The statistics of the throughput gate: estimates with confidence intervals, by ``scipy.stats``.

SciPy is imported here alone, when it is first needed, so that everything else works without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import MissingDependencyError

_CUT = 0.25  # of the values, at each end
_RESAMPLES = 4_000
_RESAMPLES_AT_ONCE = 500  # so that they stay in the cache
_SEED = 1  # of the bootstrap: the same measurements have the same verdict


def scipy_stats() -> ModuleType:
    """Return ``scipy.stats``.

    Raises
    ------
    MissingDependencyError
        If SciPy can't be imported.
    """
    try:
        from scipy import stats
    except ImportError as error:
        raise MissingDependencyError(
            f"scipy: can't be imported ({error}), expected it for the throughput gate: pip install 'starpullm[bench]'"
        ) from error
    return stats


def interval(differences: Sequence[NDArray[np.float64]], tail: float) -> NDArray[np.float64]:
    """Return an estimate of each column's mean difference, and its confidence interval.

    The estimate is the mean of the middle half of the rows, averaged over `differences`. The interval is Student's,
    with a bootstrap's standard error: quantiles of the bootstrap so far out would rest on a few resamples. Its degrees
    of freedom are those of the values that the trimmed mean keeps (K. K. Yuen, Biometrika 61, 1974).

    Each of `differences` has shape (rows, columns); the i-th rows of all of them belong together and are resampled
    together. `tail` is the probability that the true value lies below the interval, and that it lies above. The result
    has shape (3, columns): estimates, lower ends, upper ends.
    """
    stats = scipy_stats()

    def estimate(*values: NDArray[np.float64], axis: int) -> Any:
        # trim_mean partitions the values; that and sorting them first take half the time of partitioning alone.
        return np.mean([stats.trim_mean(np.sort(of, axis), _CUT, axis) for of in values], axis=0)

    rows = len(differences[0])
    middle = estimate(*differences, axis=0)
    error = stats.bootstrap(
        differences,
        estimate,
        paired=True,
        n_resamples=_RESAMPLES,
        batch=_RESAMPLES_AT_ONCE,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    ).standard_error
    # The variance over resamples of n values is (n - 1)/n of that over samples.
    half = error * math.sqrt(rows / (rows - 1)) * student(rows - 2 * int(_CUT * rows) - 1, tail)
    return np.stack([middle, middle - half, middle + half])


def student(degrees: int, tail: float) -> float:
    """Return the value that Student's t with so many degrees of freedom exceeds with probability `tail`."""
    return float(scipy_stats().t.isf(tail, degrees))
