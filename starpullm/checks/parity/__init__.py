"""Bitwise parity: every tensor of every step of a run is compared with llm.c's, without tolerance."""

from starpullm.checks.parity.check import ParityResult, check_parity
from starpullm.checks.parity.execution_order import execution_order
from starpullm.checks.parity.inputs import make_inputs

__all__ = ["ParityResult", "check_parity", "execution_order", "make_inputs"]
