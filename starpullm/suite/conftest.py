"""Parametrises the suite's tests by the registered checks, according to the plugin's options."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from starpullm.checks.left_out import LeftOut
from starpullm.checks.suite_items import items
from starpullm.pytest_plugin import Validation, validation_of
from starpullm.pytest_plugin.plugin_options import UnknownMachineError


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Refuse the suite without its plugin; an error of a later hook would be one of collection."""
    validation_of(collector.config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of one process over ranks; a skip would be a failure with ``--starpullm-strict``."""
    here = Path(__file__).parent
    single = {
        item for item in items if item.path.parent == here and not item.get_closest_marker("starpullm_over_ranks")
    }
    if single and validation_of(config).ranks > 1:
        config.hook.pytest_deselected(items=list(single))
        items[:] = [item for item in items if item not in single]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise by what the registry has for these options, and the tests of throughput by records and ranks."""
    validation = validation_of(metafunc.config)
    validation.require_options()
    if "item" in metafunc.fixturenames:
        with validation.refusing():
            try:
                metafunc.parametrize("item", list(_params(validation)))
            except UnknownMachineError as error:
                raise pytest.UsageError(f"starpullm: {error}") from error
    if "speed_case" in metafunc.fixturenames:
        cases = list(product(validation.throughput_records, validation.rank_counts))
        metafunc.parametrize("speed_case", cases, ids=[f"{Path(record).stem}-{ranks}" for record, ranks in cases])


def _params(validation: Validation) -> Iterator[ParameterSet]:
    """Yield the items of the registry with their names and markers; what isn't run is told."""
    for item in items(validation, validation.ranks):
        if isinstance(item, LeftOut):
            validation.left_out[item.what] = item
        else:
            marks = [getattr(pytest.mark, f"starpullm_{item.check.family}")]
            marks += [pytest.mark.starpullm_over_ranks] if item.ranks > 1 else []
            yield pytest.param(item, id=str(item), marks=marks)
