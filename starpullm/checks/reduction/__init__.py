"""The sums of gradients: their errors, and whether their bits are stable."""

from starpullm.checks.reduction.bit_stability import (
    PROMISES,
    BitStabilityResult,
    Promise,
    check_bit_stability,
)
from starpullm.checks.reduction.gradient_error import (
    GradientErrorResult,
    Multiplicity,
    TensorError,
    check_gradients,
    gradient_error,
    judge_errors,
    multiplicities,
)

__all__ = [
    "PROMISES",
    "BitStabilityResult",
    "GradientErrorResult",
    "Multiplicity",
    "Promise",
    "TensorError",
    "check_bit_stability",
    "check_gradients",
    "gradient_error",
    "judge_errors",
    "multiplicities",
]
