"""Checks and properties of sizes that several rooms share."""

from __future__ import annotations

from starpullm.errors import InvalidArgumentError


def check_positive(**sizes: int) -> None:
    """Raise an error that names the first size below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise InvalidArgumentError(f"{name}: expected a positive number, found {size}")


def divisors(size: int) -> list[int]:
    """Return the divisors of a positive size, ascending: of a batch, the numbers of sub-batches that it can have."""
    return [divisor for divisor in range(1, size + 1) if size % divisor == 0]
