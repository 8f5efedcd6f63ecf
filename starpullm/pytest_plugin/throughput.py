"""Throughput in pytest: which tests run with ``--benchmark`` alone, and one measurement with pytest-benchmark's record.

The suite's throughput tests ask for the fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from starpullm.pytest_plugin.fixtures import Checker
from starpullm.pytest_plugin.run import Validation, validation_of

if TYPE_CHECKING:
    from starpullm.speed.contest import Series
    from starpullm.speed.cost import CostResult
    from starpullm.speed.throughput import Configuration

__all__ = ["Gate", "choose_throughput_tests", "starpullm_gate"]


class _StepClock:
    """The clock that pytest-benchmark reads: it goes on by the time of a step, when one has been measured.

    So the record has steps, and not what it takes to start and stop processes between them.
    """

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def go_on(self, seconds: float) -> None:
        self._now += seconds


_CLOCK = _StepClock()


def choose_throughput_tests(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests of throughput unless they were asked for; let pytest-benchmark time the others by steps."""
    own = [item for item in items if item.get_closest_marker("throughput")]
    if validation_of(config).benchmark:
        for item in own:
            item.add_marker(pytest.mark.benchmark(timer=_CLOCK))
            # A test that fails before its first turn has its own reason for that.
            item.add_marker(pytest.mark.filterwarnings("ignore:Benchmark fixture was not used"))
            if config.pluginmanager.hasplugin("timeout"):
                item.add_marker(pytest.mark.timeout(0))  # every turn has a time limit of its own, and there are many
    elif own:
        config.hook.pytest_deselected(items=own)
        items[:] = [item for item in items if item not in set(own)]


@pytest.fixture
def starpullm_gate(request: pytest.FixtureRequest) -> Gate:
    """Measure throughput and compare it: ``starpullm_gate(record, sub_batches, ranks)``.

    The test asks for ``starpullm_configuration`` too. It fails if the library under test is slower than the baseline by
    more than the budget, and is skipped if that can't be said, or if there is no baseline.
    """
    return Gate(request)


class Gate:
    """Runs the library under test, by turns with the baseline if that is another library."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._validation: Validation = validation_of(request.config)
        self._config = request.config
        self._benchmark = request.getfixturevalue("benchmark")
        self._place = request.getfixturevalue("starpullm_configuration")
        self._directory: Path = request.getfixturevalue("tmp_path")
        self._checker = Checker(self._validation, request.node, self._place)

    def __call__(self, record: str, sub_batches: int, ranks: int) -> None:
        """Measure a record's model in the test's configuration, and fail or skip the test unless it is fast enough.

        Parameters
        ----------
        record
            A golden record's name or file; only its sizes matter.
        sub_batches
            Of each rank.
        ranks
            Each with the test's partition; the batch is that of all together.
        """
        from starpullm.checks.runs import find_record
        from starpullm.data.generator import generate_checkpoint
        from starpullm.errors import StarpullmError
        from starpullm.speed.throughput import Configuration

        if self._benchmark.disabled:
            pytest.skip(
                "pytest-benchmark is disabled (by --benchmark-disable or by xdist), expected it for the records"
            )
        golden = find_record(record)
        checkpoint = self._directory / "model.bin"
        try:
            configuration = Configuration(
                model=golden.name,
                batch_size=golden.batch_size,
                seq_len=golden.seq_len,
                partition=self._place.partition,
                scheduler=self._place.scheduler,
                sub_batches=sub_batches,
                reduction="ordered",
                ranks=ranks,
                iterations=1,
                warm_up=1,
            )
            generate_checkpoint(checkpoint, golden.model, golden.seed)
            if self._validation.baseline_library is None:
                self._against_records(configuration, checkpoint)
            else:
                self._against_library(configuration, checkpoint, self._validation.baseline_library)
        except StarpullmError as error:
            self._checker.give_up(str(error))

    def _against_library(self, configuration: Configuration, checkpoint: Path, library: Path) -> None:
        from starpullm.checks.isolation import CheckReport
        from starpullm.speed.contest import open_contest
        from starpullm.speed.turns import Contestant

        new, baseline = Contestant("library"), Contestant("baseline", library)
        with open_contest(configuration, checkpoint, new, baseline, self._validation.time_limit) as contest:
            self._run(contest.block)
            result = contest.decide(self._validation.budget)
        self._record(contest.new, configuration, result.matmul_limit_gflops, result.fraction_of_limit)
        self._checker.judge(CheckReport.of(result), CheckReport.of(contest.costs()))

    def _against_records(self, configuration: Configuration, checkpoint: Path) -> None:
        from starpullm.checks.isolation import CheckReport
        from starpullm.speed.contest import open_series
        from starpullm.speed.cost import GraphCost, check_cost
        from starpullm.speed.gate import compare_with_stored
        from starpullm.speed.turns import Contestant

        with open_series(configuration, checkpoint, Contestant("library"), self._validation.time_limit) as series:
            self._run(series.take)
            limit, fraction = series.finish()
        stored = [extra for extra in self._stored() if extra["configuration"] == asdict(configuration)]
        self._record(series, configuration, limit, fraction)
        result = compare_with_stored(
            str(configuration),
            fraction,
            [extra["fraction_of_limit"] for extra in stored],
            tokens_per_ms=series.tokens_per_ms,
            limit_gflops=limit,
            budget=self._validation.budget,
        )
        costs: list[CostResult] = []
        if stored:
            assert series.contestant.cost is not None
            costs.append(check_cost(series.contestant.cost, GraphCost(**stored[-1]["cost"])))
        self._checker.judge(*(CheckReport.of(of) for of in (result, *costs)))

    def _run(self, measure: Callable[[], float]) -> None:
        self._benchmark.pedantic(lambda: _CLOCK.go_on(measure()), rounds=self._validation.blocks, iterations=1)

    def _record(self, series: Series, configuration: Configuration, limit: float, fraction: float) -> None:
        """Tell pytest-benchmark what its record needs beyond the times of the steps."""
        assert series.contestant.cost is not None
        self._benchmark.extra_info["starpullm"] = {
            "fingerprint": self._fingerprint,
            "configuration": asdict(configuration),
            "tokens_per_ms": series.tokens_per_ms,
            "matmul_limit_gflops": limit,
            "fraction_of_limit": fraction,
            "cost": asdict(series.contestant.cost),
        }

    def _stored(self) -> Iterator[dict[str, Any]]:
        """Yield what was recorded on this machine, the oldest first."""
        for _, run in self._config._benchmarksession.storage.load():  # type: ignore[attr-defined]
            for benchmark in run["benchmarks"]:
                extra = benchmark.get("extra_info", {}).get("starpullm")
                if extra is not None and extra["fingerprint"] == self._fingerprint:
                    yield extra

    @property
    def _fingerprint(self) -> str:
        from starpullm.machine import machine_fingerprint

        return machine_fingerprint(self._validation.machine)
