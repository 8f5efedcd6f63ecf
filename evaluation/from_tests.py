"""What is used of tests/, loaded by its file: pytest puts no folder of the checkout on Python's path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from starpullm.processes.service import find_function

_CHECKOUT = Path(__file__).parents[1]


def _of(module: str, name: str) -> Any:
    file = _CHECKOUT.joinpath(*module.split(".")).with_suffix(".py")
    return find_function({"module": module, "file": str(file), "function": name})


UNUSED: tuple[str, ...] = _of("tests.pytest_children", "UNUSED")
load_plugin: Callable[[], tuple[str, ...]] = _of("tests.pytest_children", "load_plugin")
scarce_kernels: Callable[..., None] = _of("tests.native.limits.scarcity", "scarce_kernels")
shares_of_ranks: Callable[..., None] = _of("tests.ranks.test_shares", "shares_of_ranks")
