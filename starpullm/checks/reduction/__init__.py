"""The sums of gradients: their errors, whether they contain each contribution once, whether their bits are stable."""

from starpullm.checks.reduction.bit_stability import (
    PROMISES,
    BitStabilityResult,
    Promise,
    RunDifference,
    check_bit_stability,
)
from starpullm.checks.reduction.exactly_once import ExactlyOnceResult, Probe, check_exactly_once, power_of_two_probe
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
    "ExactlyOnceResult",
    "GradientErrorResult",
    "Multiplicity",
    "Probe",
    "Promise",
    "RunDifference",
    "TensorError",
    "check_bit_stability",
    "check_exactly_once",
    "check_gradients",
    "gradient_error",
    "judge_errors",
    "multiplicities",
    "power_of_two_probe",
]
