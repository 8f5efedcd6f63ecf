"""A check of sizes that loader and generator share."""

from __future__ import annotations

from starpullm.errors import InvalidArgumentError

__all__ = ["check_positive"]


def check_positive(**sizes: int) -> None:
    """Raise an error that names the first size below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise InvalidArgumentError(f"{name}: expected a positive number, found {size}")
