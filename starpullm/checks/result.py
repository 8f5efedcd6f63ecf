"""What every check returns: an outcome that is never more than what was shown.

The modules of this package build on it; the command line and reports read it.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["Outcome"]


class Outcome(Enum):
    """How a check ended; only ``PASSED`` says that the claim held."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_COMPARABLE = "not comparable"
