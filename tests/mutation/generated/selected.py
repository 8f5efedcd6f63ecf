"""A plugin of pytest that keeps the suite's tests of one stage, those first that catch most mutants in a second."""

from __future__ import annotations

import pytest

from .stages import STAGES

ORDER = (
    "test_every_tensor_has_the_record_s_bits",
    "test_losses_are_the_same_on_all_ranks",
    "test_resumed_run_has_the_bits_of_one_that_was_not_stopped",
    "test_shared_buffers_move_no_bit",
    "test_run_keeps_the_required_order",
    "test_nothing_is_read_before_it_is_written",
    "test_gradients_are_within_their_bounds",
    "test_tasks_access_what_they_declare",
    "test_runtime_s_graph_is_the_required_order",
)
"""The others come after these."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stage", help="the name of a stage; default: all tests of the suite")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    stages = [stage for stage in STAGES if stage.name == config.getoption("--stage")]
    items[:] = sorted((item for item in items if all(stage.selects(item.nodeid) for stage in stages)), key=_place)


def _place(item: pytest.Item) -> int:
    name = item.nodeid.rpartition("::")[2].partition("[")[0]
    return ORDER.index(name) if name in ORDER else len(ORDER)
