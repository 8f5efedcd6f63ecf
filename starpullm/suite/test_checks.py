"""Every registered check, with each of its cases on each of its placements; ``starpullm.checks`` says what they are."""

from __future__ import annotations

import pytest

from starpullm.checks.suite_items import Item
from starpullm.pytest_plugin import Checker, Validation


def test_check(request: pytest.FixtureRequest, starpullm_validation: Validation, item: Item) -> None:
    """The test's name begins with that of the check, and its marker is the check's family."""
    Checker(starpullm_validation, request.node, item.placement).check(item)
