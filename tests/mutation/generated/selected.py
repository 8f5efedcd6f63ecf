"""A plugin of pytest that keeps the suite's tests of one stage, those first that catch most mutants in a second."""

from __future__ import annotations

import pytest

from .stages import STAGES, check_of

ORDER = (
    "parity",
    "losses of ranks",
    "observed order",
    "poison",
    "gradient bounds",
    "accesses",
    "runtime graph",
    "scenarios",
)
"""The others come after these."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stage", help="the name of a stage; default: all tests of the suite")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    stages = [stage for stage in STAGES if stage.name == config.getoption("--stage")]
    items[:] = sorted((item for item in items if all(stage.selects(item.nodeid) for stage in stages)), key=_place)


def _place(item: pytest.Item) -> int:
    check = check_of(item.nodeid)
    return ORDER.index(check) if check in ORDER else len(ORDER)
