"""Parametrises the suite's tests by records, sub-batches and reductions, according to the plugin's options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
from _pytest.mark import ParameterSet

from starpullm.checks.cases import PROMISES, Promise, find_record
from starpullm.checks.isolation import RuntimeConfiguration
from starpullm.checks.items import items
from starpullm.files.model import num_parameters
from starpullm.pytest_plugin import Checker, Validation, validation_of
from starpullm.pytest_plugin.items import has_no_case
from starpullm.pytest_plugin.options import UnknownMachineError
from starpullm.report.left_out import LeftOut
from starpullm.runtime import Partition

_OVER_RANKS = ("test_ranks.py",)

PERTURBED_RECORDS = 2
"""Number of records that are run with delays; the runs are many, one for each scheduler."""


class Case(NamedTuple):
    """A record, the number of a rank's sub-batches, and the reduction."""

    record: str
    sub_batches: int
    reduction: str

    def __str__(self) -> str:
        return f"{Path(self.record).stem}-{self.sub_batches}-{self.reduction}"


class SharedBits(NamedTuple):
    """A record, a reduction, and numbers of sub-batches for which its bits must be equal."""

    record: str
    reduction: str
    sub_batches: tuple[int, ...]

    def __str__(self) -> str:
        return f"{Path(self.record).stem}-{self.reduction}-{'_'.join(map(str, self.sub_batches))}"


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
    """Ignore the tests that need several ranks if there is only one."""
    return True if collection_path.name in _OVER_RANKS and validation_of(config).ranks == 1 else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what nobody asked for: comparisons with llm.c without one; over ranks, tests not marked for that.

    A skip would be a failure with ``--starpullm-strict``.
    """
    validation = validation_of(config)
    here = Path(__file__).parent
    left_out = {
        item
        for item in items
        if item.path.parent == here
        and (
            ("llmc_case" in getattr(item, "fixturenames", ()) and not validation.llmc_library)
            or (validation.ranks > 1 and not item.get_closest_marker("starpullm_over_ranks"))
            or has_no_case(item)
        )
    }
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise the fixtures of cases."""
    validation = validation_of(metafunc.config)
    validation.require_options()
    ranks = validation.ranks_of(metafunc.definition)
    with validation.refusing():
        try:
            configurations = validation.configurations(ranks)
        except UnknownMachineError as error:
            raise pytest.UsageError(f"starpullm: {error}") from error
    if "item" in metafunc.fixturenames:
        metafunc.parametrize("item", list(_params(validation)))
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", list(_cases(validation, ranks)), ids=str)
    if "bitwise_case" in metafunc.fixturenames:
        metafunc.parametrize("bitwise_case", _bitwise_cases(validation, ranks), ids=str)
    if "llmc_case" in metafunc.fixturenames:
        metafunc.parametrize("llmc_case", _bitwise_cases(validation, ranks), ids=str)
    if "light_case" in metafunc.fixturenames:
        metafunc.parametrize("light_case", [case for case in _cases(validation, ranks) if _is_light(case)], ids=str)
    if "audited_case" in metafunc.fixturenames:
        # StarPU's reduction adds in buffers of its own, which aren't protected.
        cases = [case for case in _cases(validation, ranks) if PROMISES[case.reduction] is not Promise.BOUNDED]
        metafunc.parametrize("audited_case", cases, ids=str)
    if "tree_case" in metafunc.fixturenames:
        cases = [case for case in _cases(validation, ranks) if PROMISES[case.reduction] is Promise.FIXED_BITS]
        metafunc.parametrize("tree_case", cases, ids=str)
    if "shared_bits" in metafunc.fixturenames:
        shared = list(_shared_bits(validation, ranks, len(configurations)))
        metafunc.parametrize("shared_bits", shared, ids=str)
    if "perturbed_case" in metafunc.fixturenames:
        _parametrize_perturbations(metafunc, validation, ranks)
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


def _is_light(case: Case) -> bool:
    """Return whether the tensors of two runs fit into memory, and the reduction has fixed bits."""
    model = find_record(case.record).model
    return PROMISES[case.reduction] is not Promise.BOUNDED and num_parameters(model) <= _LIGHT_PARAMETERS


_LIGHT_PARAMETERS = 10**7


def _parametrize_perturbations(metafunc: pytest.Metafunc, validation: Validation, ranks: int) -> None:
    """Parametrise by the first records, with the largest number of sub-batches, and by a seed for each reduction."""
    largest = {case.record: case.sub_batches for case in _cases(validation, ranks)}
    reductions = [name for name in validation.reductions if PROMISES[name] is not Promise.BOUNDED]
    seeds = {name: validation.seed + number for number, name in enumerate(reductions)}
    cases = [
        case
        for case in _cases(validation, ranks)
        if case.record in validation.records[:PERTURBED_RECORDS]
        and case.sub_batches == largest[case.record]
        and case.reduction in reductions
    ]
    metafunc.parametrize(
        ("perturbed_case", "delay_seed"),
        [(case, seeds[case.reduction]) for case in cases],
        ids=[f"{case}-delays{seeds[case.reduction]}" for case in cases],
    )
    configurations = validation.perturbing_configurations
    metafunc.parametrize("perturbing_configuration", configurations, ids=[entry.id for entry in configurations])


def _bitwise_cases(validation: Validation, ranks: int) -> list[Case]:
    """Return the cases whose bits are a record's, also of the records that only parity is checked with."""
    return [
        case
        for records in (validation.records, validation.parity_records)
        for case in _cases(validation, ranks, records)
        if PROMISES[case.reduction] is Promise.BITWISE
    ]


def _cases(validation: Validation, ranks: int, records: Sequence[str] | None = None) -> Iterator[Case]:
    for record in validation.records if records is None else records:
        for sub_batches in validation.sub_batches(record, ranks):
            # With one sub-batch there is nothing to reduce.
            modes = validation.reductions if ranks * sub_batches > 1 else validation.reductions[:1]
            yield from (Case(record, sub_batches, reduction) for reduction in modes)


def _shared_bits(validation: Validation, ranks: int, configurations: int) -> Iterator[SharedBits]:
    """Yield the cases that have several placements: the bits of one would be compared with nothing."""
    for record in validation.records:
        counts = validation.sub_batches(record, ranks)
        for reduction in validation.reductions:
            if PROMISES[reduction] is Promise.BITWISE and counts:
                cases = [SharedBits(record, reduction, tuple(counts))]
            elif PROMISES[reduction] is Promise.FIXED_BITS:
                cases = [SharedBits(record, reduction, (count,)) for count in counts if ranks * count > 1]
            else:
                cases = []
            for case in cases:
                # Several ranks are also compared with one process.
                if ranks > 1 or configurations * len(case.sub_batches) > 1:
                    yield case
                else:
                    validation.leave_out(f"same bits everywhere of {case}", "one placement has nothing to compare with")
