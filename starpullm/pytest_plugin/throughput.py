"""Tests of throughput, which run only with ``--starpullm-benchmark``: their fixture, and pytest-benchmark's records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from starpullm.errors import StarpullmError
from starpullm.pytest_plugin.fixtures import Checker
from starpullm.pytest_plugin.run import Validation, validation_of

if TYPE_CHECKING:
    from starpullm.speed.cost import GraphCost
    from starpullm.speed.turns import Contender
    from starpullm.speed.workload import Workload


class _StepClock:
    """The clock that pytest-benchmark reads: it advances by the time of each measured step.

    So the record has the times of steps, without the time to start and stop processes between them.
    """

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


_CLOCK = _StepClock()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of throughput without ``--starpullm-benchmark``; with it, give them the clock of steps."""
    own = [item for item in items if item.get_closest_marker("starpullm_throughput")]
    if not own:
        return
    if validation_of(config).benchmark:
        for item in own:
            item.add_marker(pytest.mark.benchmark(timer=_CLOCK))
            # A test that fails before its first turn reports the reason itself.
            item.add_marker(pytest.mark.filterwarnings("ignore:Benchmark fixture was not used"))
            if config.pluginmanager.hasplugin("timeout"):
                item.add_marker(pytest.mark.timeout(0))  # each of the many turns has a time limit of its own
    else:
        config.hook.pytest_deselected(items=own)
        items[:] = [item for item in items if item not in set(own)]


@pytest.fixture
def starpullm_gate(request: pytest.FixtureRequest) -> Gate:
    """Measure throughput and compare it: ``starpullm_gate(record, sub_batches, ranks)``.

    The test uses ``starpullm_configuration`` too. It fails if the library under test is slower than the baseline by
    more than the budget, and is skipped if the measurements don't decide or if there is no baseline.
    """
    return Gate(request)


def measurements(config: pytest.Config) -> list[dict[str, Any]]:
    """Return what this run has measured, in the form that a report has for it."""
    session = getattr(config, "_benchmarksession", None)
    infos = [benchmark.extra_info.get("starpullm") for benchmark in session.benchmarks] if session else []
    names = ("configuration", "tokens_per_ms", "matmul_limit_gflops", "fraction_of_limit")
    return [{name: info[name] for name in names} for info in infos if info]


class Gate:
    """Measures the library under test, in turn with the baseline if that is another library."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._validation: Validation = validation_of(request.config)
        self._config = request.config
        self._benchmark = request.getfixturevalue("benchmark")
        self._place = request.getfixturevalue("starpullm_configuration")
        self._directory: Path = request.getfixturevalue("tmp_path")
        self._checker = Checker(self._validation, request.node, self._place)

    def __call__(self, record: str, sub_batches: int, ranks: int) -> None:
        """Measure the training of a record's model, and fail or skip the test unless it is fast enough.

        `sub_batches` is their number on each rank. Each rank has the test's partition; the record's batch is that of
        all ranks together.
        """
        from starpullm.checks.cases import find_record
        from starpullm.data.generator import generate_checkpoint
        from starpullm.speed.workload import Workload

        if self._benchmark.disabled:
            pytest.skip(
                "pytest-benchmark is disabled (by --benchmark-disable or by xdist), expected it for the records"
            )
        golden = find_record(record)
        checkpoint = self._directory / "model.bin"
        try:
            workload = Workload(
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
            with self._validation.hold_machine():
                if self._validation.baseline_library is None:
                    self._against_records(workload, checkpoint)
                else:
                    self._against_library(workload, checkpoint, self._validation.baseline_library)
        except StarpullmError as error:
            self._checker.give_up(str(error))

    def _against_library(self, workload: Workload, checkpoint: Path, library: Path) -> None:
        from starpullm.speed.rounds import open_rounds
        from starpullm.speed.turns import Contender

        new, baseline = Contender("library"), Contender("baseline", library)
        with open_rounds(workload, checkpoint, new, baseline, self._validation.time_limit) as rounds:
            self._run(rounds.run_round)
            result = rounds.decide(self._validation.budget)
        self._record(
            rounds.new, workload, result.matmul_limit_gflops, result.fraction_of_limit, rounds.compare_costs().accepted
        )
        bits = rounds.compare_bits()
        self._checker.judge(result, rounds.compare_costs(), *([bits] if bits else []))

    def _against_records(self, workload: Workload, checkpoint: Path) -> None:
        from starpullm.speed.cost import GraphCost, check_cost
        from starpullm.speed.gate import compare_with_stored
        from starpullm.speed.rounds import open_series
        from starpullm.speed.turns import Contender

        with open_series(workload, checkpoint, Contender("library"), self._validation.time_limit) as series:
            self._run(series.take_turn)
            limit, fraction = series.finish()
        stored = [extra for extra in self._stored() if extra["configuration"] == asdict(workload)]
        accepts = self._validation.accept_cost
        known = series.cost if accepts or not stored else GraphCost(**stored[-1]["cost"])
        cost = check_cost(series.cost, known)
        self._record(series, workload, limit, fraction, cost.accepted)
        result = compare_with_stored(
            str(workload),
            fraction,
            [extra["fraction_of_limit"] for extra in stored],
            tokens_per_ms=series.tokens_per_ms,
            limit_gflops=limit,
            budget=self._validation.budget,
        )
        self._checker.judge(result, *([cost] if stored else []))

    def _run(self, measure: Callable[[], float]) -> None:
        self._benchmark.pedantic(lambda: _CLOCK.advance(measure()), rounds=self._validation.blocks, iterations=1)

    def _record(self, series: Contender, workload: Workload, limit: float, fraction: float, cost: GraphCost) -> None:
        """Add to pytest-benchmark's record what later runs are compared with."""
        self._benchmark.extra_info["starpullm"] = {
            "fingerprint": self._fingerprint,
            "configuration": asdict(workload),
            "tokens_per_ms": series.tokens_per_ms,
            "matmul_limit_gflops": limit,
            "fraction_of_limit": fraction,
            "cost": asdict(cost),
        }

    def _stored(self) -> Iterator[dict[str, Any]]:
        """Yield the stored runs of this machine, the oldest first."""
        from pytest_benchmark.logger import Logger
        from pytest_benchmark.utils import get_machine_id, load_storage

        storage = load_storage(  # type: ignore[no-untyped-call]
            self._config.getoption("benchmark_storage"),
            logger=Logger(Logger.QUIET),  # type: ignore[no-untyped-call]
            default_machine_id=get_machine_id(),  # type: ignore[no-untyped-call]
            netrc=self._config.getoption("benchmark_netrc"),
        )
        for _, run in storage.load():
            for benchmark in run["benchmarks"]:
                extra = benchmark.get("extra_info", {}).get("starpullm")
                if extra is not None and extra["fingerprint"] == self._fingerprint:
                    yield extra

    @property
    def _fingerprint(self) -> str:
        from starpullm.machine import machine_fingerprint

        return machine_fingerprint(self._validation.machine)
