"""Parametrises the suite's tests by the registered checks, according to the plugin's options."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
from _pytest.mark import ParameterSet

from starpullm.checks.cases import find_record
from starpullm.checks.isolation import RuntimeConfiguration
from starpullm.checks.items import items
from starpullm.checks.kernels import ANOTHER_LIBM, has_another_libm
from starpullm.pytest_plugin import Checker, Validation, validation_of
from starpullm.pytest_plugin.options import UnknownMachineError
from starpullm.report.left_out import LeftOut
from starpullm.runtime import Partition

_OVER_RANKS = ("test_interface_over_ranks.py",)


class SpeedCase(NamedTuple):
    """A record, and the number of ranks that share its batch."""

    record: str
    ranks: int

    def sub_batches(self, partition: str) -> int:
        """Return the number of workers if it divides a rank's batch, otherwise 1, as ``starpullm bench`` does."""
        workers = Partition.parse(partition).workers
        return workers if find_record(self.record).batch_size % (workers * self.ranks) == 0 else 1

    def __str__(self) -> str:
        return f"{Path(self.record).stem}-{self.ranks}"


@pytest.fixture
def check_on_one_worker(request: pytest.FixtureRequest, starpullm_validation: Validation) -> Checker:
    """Run a check once, on 1x1, whatever partitions are chosen; on the test's ranks."""
    ranks = starpullm_validation.ranks_of(request.node)
    configuration = RuntimeConfiguration("1x1", starpullm_validation.configurations(ranks)[0].scheduler, ranks)
    return Checker(starpullm_validation, request.node, configuration)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Refuse the suite without its plugin; ignore the tests that need several ranks if there is only one."""
    return True if validation_of(config).ranks == 1 and collection_path.name in _OVER_RANKS else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of one process over ranks; a skip would be a failure with ``--starpullm-strict``."""
    here = Path(__file__).parent
    single = [
        item for item in items if item.path.parent == here and not item.get_closest_marker("starpullm_over_ranks")
    ]
    if single and validation_of(config).ranks > 1:
        config.hook.pytest_deselected(items=single)
        items[:] = [item for item in items if item not in set(single)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise by what the registry has for these options, and the tests of throughput by theirs."""
    validation = validation_of(metafunc.config)
    validation.require_options()
    if "item" in metafunc.fixturenames:
        with validation.refusing():
            try:
                metafunc.parametrize("item", list(_params(validation)))
            except UnknownMachineError as error:
                raise pytest.UsageError(f"starpullm: {error}") from error
    if "other_libm" in metafunc.fixturenames:
        environments = [ANOTHER_LIBM] if has_another_libm() else []
        if not environments:
            validation.leave_out("kernels with another libm", "this machine's C library has no other functions to take")
        metafunc.parametrize("other_libm", environments, ids=lambda _: "without_fma")
    if "one_record" in metafunc.fixturenames:
        # the first whose batch the ranks divide: what is compared doesn't depend on the record
        ranks = validation.ranks_of(metafunc.definition)
        known = [record for record in validation.records if validation.sub_batches(record, ranks)][:1]
        metafunc.parametrize("one_record", known, ids=lambda record: Path(record).stem)
    if "speed_case" in metafunc.fixturenames:
        speed_cases = [SpeedCase(*of) for of in product(validation.throughput_records, validation.rank_counts)]
        metafunc.parametrize("speed_case", speed_cases, ids=str)


def _params(validation: Validation) -> Iterator[ParameterSet]:
    """Yield the items of the registry with their names and markers; what isn't run is told."""
    for item in items(validation, validation.ranks):
        if isinstance(item, LeftOut):
            validation.leave_out(item.what, item.reason)
        else:
            marks = [getattr(pytest.mark, f"starpullm_{item.check.family}")]
            marks += [pytest.mark.starpullm_over_ranks] if item.ranks > 1 else []
            yield pytest.param(item, id=str(item), marks=marks)
