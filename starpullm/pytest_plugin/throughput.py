"""Tests of throughput, which run only with ``--starpullm-benchmark``: their fixture, and pytest-benchmark's records."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from starpullm.errors import StarpullmError
from starpullm.pytest_plugin.fixtures import Checker
from starpullm.pytest_plugin.validation import Validation, validation_of

if TYPE_CHECKING:
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
    more than the budget, and is skipped if the measurements don't decide.
    """
    return Gate(request)


class Gate:
    """Measures the library under test, in turn with the baseline."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._validation: Validation = validation_of(request.config)
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
        self._checker.begin("throughput")
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
                ranks=ranks,
            )
            generate_checkpoint(checkpoint, golden.model, golden.seed)
            with self._validation.hold_machine():
                self._measure(workload, checkpoint)
        except StarpullmError as error:
            self._checker.give_up(str(error))

    def _measure(self, workload: Workload, checkpoint: Path) -> None:
        from starpullm.speed.interleaved_rounds import interleaved_rounds, with_control
        from starpullm.speed.variant import Variant

        baseline = Variant("baseline", library=self._validation.baseline_library)
        variants = with_control(Variant("library"), baseline)
        with interleaved_rounds(workload, checkpoint, variants, self._validation.time_limit) as rounds:
            self._benchmark.pedantic(
                lambda: _CLOCK.advance(rounds.run_round()), rounds=self._validation.blocks, iterations=1
            )
            speed = rounds.finish()
        cost, bits = rounds.compare_costs(), rounds.compare_bits()
        self._benchmark.extra_info["starpullm"] = {"configuration": asdict(rounds.workload), **speed._asdict()}
        self._checker.judge(rounds.decide(speed, self._validation.budget), cost, *([bits] if bits else []))
