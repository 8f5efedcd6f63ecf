"""The options: their help texts, what they mean on this machine, and usage errors for what can't be satisfied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from starpullm.errors import MissingDependencyError, StarpullmError
from starpullm.pytest_plugin.items import RANK_MARKERS
from starpullm.pytest_plugin.ranks import rank_and_size, ranks_of_launcher
from starpullm.pytest_plugin.settings import DEFAULT_RECORDS, DEFAULT_SEED, DEFAULT_TIME_LIMIT, SETTINGS, Settings

if TYPE_CHECKING:
    from starpullm.checks.isolation import RuntimeConfiguration

DEFAULT_RECORDS_OF_RANKS = ("tiny", "odd", "small")
"""Few, because ranks often share cores; 2, 3, 4 and 8 ranks divide the batch of at least one of them."""
PARITY_RECORDS_OF_RANKS = ("single", "ragged")
"""Of the records beyond thresholds, those with the largest batches."""
DISTURBING = ("eager", "random", "lws", "prio", "dmda", "ws")
DEFAULT_THROUGHPUT_RECORD = "small"
"""It is large enough to be measured, and small enough to be quick."""


class Options(Settings):
    """The options of one run of pytest; most are read when they are first asked for.

    Raises
    ------
    pytest.UsageError
        From every property and method, for an option that can't be satisfied.
    """

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(config)
        self.rank, self.ranks = rank_and_size(config)

    @property
    def seed(self) -> int:
        """The seed of generated batches, of delays and of StarPU's random scheduler."""
        return self.number("seed", int, DEFAULT_SEED)

    @property
    def time_limit(self) -> float:
        """Seconds for each check."""
        return self.number("timeout", float, DEFAULT_TIME_LIMIT)

    @property
    def benchmark(self) -> bool:
        """Whether the tests of throughput run."""
        return self.flag("benchmark")

    @property
    def library(self) -> Path | None:
        """The native library to validate, if it isn't the installed one."""
        return self.path("lib")

    @property
    def llmc_library(self) -> Path | None:
        """The llm.c to compare with, if any."""
        return self.path("llmc_lib")

    @property
    def baseline_library(self) -> Path | None:
        """The native library to compare throughput with, if any."""
        return self.path("baseline_lib")

    @property
    def report_path(self) -> Path | None:
        """Where to write the JSON report, if not into pytest's cache."""
        return self.path("report")

    @property
    def report_is_folder(self) -> bool:
        """Whether ``--starpullm-report`` names a folder: not FILE.json, and nothing else that exists."""
        path = self.report_path
        return path is not None and path.suffix != ".json" and (path.is_dir() or not path.exists())

    @cached_property
    def machine(self) -> dict[str, Any]:
        """The results of ``starpullm doctor --json``, from a process of its own."""
        from starpullm.checks.isolation import machine_in_child

        try:
            return machine_in_child()
        except StarpullmError as error:
            raise pytest.UsageError(f"starpullm: this machine can't be inspected: {error}") from error

    def ranks_of(self, test: pytest.Item) -> int:
        """Return on how many ranks a test's checks run: on all of this run if it is marked so, otherwise on one."""
        marked = any(test.get_closest_marker(name) for name in RANK_MARKERS)
        return self.ranks if marked else 1

    def configurations(self, ranks: int = 1) -> list[RuntimeConfiguration]:
        """Return every partition with every scheduler; the partition changes slowest."""
        from starpullm.checks.isolation import RuntimeConfiguration

        return [
            RuntimeConfiguration(partition, scheduler, ranks)
            for partition in self._partitions(ranks)
            for scheduler in self._schedulers()
        ]

    @cached_property
    def disturbing_configurations(self) -> list[RuntimeConfiguration]:
        """The partition with the most workers, with the chosen schedulers or else with each of `DISTURBING`."""
        from starpullm.checks.isolation import RuntimeConfiguration
        from starpullm.runtime import Partition

        partition = max(self._partitions(1), key=lambda text: Partition.parse(text).workers)
        known = self.machine["schedulers"]
        schedulers = self._schedulers() if self.parts("schedulers") else [name for name in DISTURBING if name in known]
        return [RuntimeConfiguration(partition, scheduler) for scheduler in schedulers]

    @cached_property
    def records(self) -> list[str]:
        """The chosen records: names of shipped ones, paths of others."""
        from starpullm.checks.runs import find_record
        from starpullm.golden.records import SHIPPED_RECORDS

        found = []
        for name in self.parts("records") or (DEFAULT_RECORDS if self.ranks == 1 else DEFAULT_RECORDS_OF_RANKS):
            path = self.directory("records") / name
            if name not in SHIPPED_RECORDS and not path.is_file():
                raise self._not_one_of("records", name, SHIPPED_RECORDS, "a file or one of")
            found.append(name if name in SHIPPED_RECORDS else str(path))
            try:
                find_record(found[-1])
            except StarpullmError as error:
                raise pytest.UsageError(f"{self.label('records')}: {error}") from error
        return found

    @cached_property
    def parity_records(self) -> Sequence[str]:
        """The records that only parity is checked with: those beyond thresholds, unless records are chosen."""
        from starpullm.golden.records import THRESHOLD_RECORDS

        if self.parts("records"):
            return ()
        return THRESHOLD_RECORDS if self.ranks == 1 else PARITY_RECORDS_OF_RANKS

    @cached_property
    def throughput_records(self) -> list[str]:
        """The records whose throughput is measured."""
        return self.records if self.parts("records") else [DEFAULT_THROUGHPUT_RECORD]

    @cached_property
    def reductions(self) -> list[str]:
        """The chosen reduction modes."""
        from starpullm.trainer import REDUCTIONS

        return self._names("reductions", REDUCTIONS) or list(REDUCTIONS)

    def sub_batches(self, record: str, ranks: int = 1) -> list[int]:
        """Return the chosen numbers of sub-batches that divide each rank's part of a record's batch, ascending.

        By default these are 1 and one per sequence; of the records beyond thresholds also the divisor in the middle.
        """
        from starpullm.checks.runs import find_record
        from starpullm.data.sizes import divisors
        from starpullm.golden.records import THRESHOLD_RECORDS

        batch_size, rest = divmod(find_record(record).batch_size, ranks)
        if rest:
            return []
        chosen = self.parts("sub_batches")
        if not chosen:
            counts = divisors(batch_size)
            middle = {counts[len(counts) // 2]} if record in THRESHOLD_RECORDS else set()
            return sorted({1, batch_size} | middle)
        counts = divisors(batch_size) if chosen == ["all"] else self._counts("sub_batches", ", or all")
        return [count for count in divisors(batch_size) if count in counts]

    @cached_property
    def rank_counts(self) -> list[int]:
        """The numbers of ranks to measure throughput with."""
        return self._counts("ranks") or [1]

    @property
    def rounds(self) -> int:
        """The rounds of a throughput comparison."""
        from starpullm.speed.rounds import ROUNDS

        return self.number("blocks", int, ROUNDS)

    @property
    def budget(self) -> float:
        """The slowdown that is tolerated, as a fraction."""
        from starpullm.speed.gate import BUDGET

        return self.number("budget", float, BUDGET)

    def check_options(self) -> None:
        """Raise a usage error for the first option that can't be satisfied; defaults aren't checked on one rank."""
        launched = ranks_of_launcher(self._config.option)
        if launched > self.ranks:
            raise pytest.UsageError(
                f"--with-mpi: found {launched} ranks and tests that use starpullm, expected --starpullm-over-ranks too "
                "(or starpullm_over_ranks = true in the ini file), so that the ranks are one run"
            )
        if self.ranks == 1 and not any(map(self.was_given, SETTINGS)):
            return
        self._check_files()
        if not self.time_limit > 0:
            raise pytest.UsageError(f"{self.label('timeout')}: found {self.time_limit:g}, expected a positive number")
        if not any(self.sub_batches(record) for record in self.records):
            raise pytest.UsageError(
                f"{self.label('sub_batches')}: expected a number that divides the batch of one of the records"
            )
        if not any(self.sub_batches(record, self.ranks) for record in self.records):
            raise pytest.UsageError(
                f"--with-mpi: found {self.ranks} ranks, which with these sub-batches divide the batch of none of the "
                f"records: {', '.join(self.records)}"
            )
        self._check_throughput()
        assert self.reductions
        assert self.configurations()

    def _check_files(self) -> None:
        for name in ("lib", "llmc_lib"):
            self._check_file(name)
        report = self.report_path
        if report is not None and not report.parent.is_dir():
            raise pytest.UsageError(f"{self.label('report')}: {report}: there is no directory {report.parent}")
        if self.report_is_folder:
            from starpullm.report import require_packages

            try:
                require_packages()
            except MissingDependencyError as error:
                raise pytest.UsageError(f"{self.label('report')}: {error}") from error

    def _check_file(self, name: str) -> None:
        path = self.path(name)
        if path is not None and not path.is_file():
            raise pytest.UsageError(f"{self.label(name)}: {path}: no such file")

    def _check_throughput(self) -> None:
        from starpullm.speed.gate import MIN_ROUNDS, RESOLUTION
        from starpullm.speed.gate_statistics import scipy_stats

        if not self.benchmark:
            for name in ("baseline_lib", "blocks", "budget", "ranks"):
                if self.is_on_command_line(name):
                    raise pytest.UsageError(f"{self.label(name)}: expected --benchmark with it")
            return
        if not self._config.pluginmanager.hasplugin("benchmark"):
            raise pytest.UsageError(
                f"{self.label('benchmark')}: expected pytest-benchmark, which isn't installed: pip install "
                "'starpullm[bench]'"
            )
        try:
            scipy_stats()
        except MissingDependencyError as error:
            raise pytest.UsageError(f"{self.label('benchmark')}: {error}") from error
        if self.rounds < MIN_ROUNDS:
            raise pytest.UsageError(f"{self.label('blocks')}: found {self.rounds}, expected at least {MIN_ROUNDS}")
        if not 0 <= self.budget <= RESOLUTION:
            raise pytest.UsageError(f"{self.label('budget')}: found {self.budget:g}, expected 0 to {RESOLUTION:g}")
        self._check_file("baseline_lib")
        assert self.rank_counts

    # Reading one option

    def _names(self, option: str, known: Iterable[str]) -> list[str]:
        chosen = self.parts(option)
        for name in chosen:
            if name not in known:
                raise self._not_one_of(option, name, known)
        return chosen

    def _counts(self, option: str, more: str = "") -> list[int]:
        chosen = self.parts(option)
        for text in chosen:
            if not text.isascii() or not text.isdigit() or int(text) < 1:
                raise pytest.UsageError(
                    f'{self.label(option)}: found "{text}", expected positive numbers separated by commas{more}'
                )
        return [int(text) for text in chosen]

    def _partitions(self, ranks: int) -> list[str]:
        from starpullm.machine import full_partitions
        from starpullm.runtime import Partition

        cores = int(self.machine["cores"])
        chosen = []
        for text in self.parts("partition") or ["all"]:
            if text == "all":
                limits = {name: self.machine[f"starpu_{name}"] for name in ("max_workers", "max_contexts")}
                parallel = self.machine["starpu_parallel_workers"]
                own = full_partitions(max(cores // ranks, 1), **limits, parallel_workers=parallel)
                chosen += ["1x1", *reversed(own)]
                continue
            try:
                workers, threads = Partition.parse(text)
            except StarpullmError as error:
                raise pytest.UsageError(f"{self.label('partition')}: {error}, or all") from error
            if workers * threads > cores:
                raise pytest.UsageError(
                    f"{self.label('partition')}: found {text}, which needs {workers * threads} cores, expected at most "
                    f"{cores}: this machine has no more"
                )
            chosen.append(text)
        return list(dict.fromkeys(chosen))

    def _schedulers(self) -> list[str]:
        from starpullm.runtime import DEFAULT_SCHEDULER

        return self._names("schedulers", self.machine["schedulers"]) or [DEFAULT_SCHEDULER]

    def _not_one_of(self, option: str, found: str, known: Iterable[str], expected: str = "one of") -> pytest.UsageError:
        return pytest.UsageError(f'{self.label(option)}: found "{found}", expected {expected} {", ".join(known)}')
