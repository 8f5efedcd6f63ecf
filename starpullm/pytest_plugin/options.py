"""The options, what they mean on this machine, and a usage error for the first that can't be served.

pytest calls ``pytest_addoption``; ``Validation`` has the rest.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from starpullm.pytest_plugin.items import RANK_MARKERS
from starpullm.pytest_plugin.ranks import add_mpi_option, rank_and_size

if TYPE_CHECKING:
    from starpullm.checks.isolation import RuntimeConfiguration

__all__ = ["DEFAULT_TIME_LIMIT", "Options", "pytest_addoption"]

DEFAULT_RECORDS = ("tiny", "odd", "small", "deep")
DEFAULT_RECORDS_OF_RANKS = ("tiny", "odd", "small")
"""One of them can be cut for each number of ranks from 2 to 4 and for 8; few, as ranks often share cores."""
DEFAULT_TIME_LIMIT = 60.0
DISTURBING = ("eager", "random", "lws", "prio", "dmda", "ws")
DEFAULT_THROUGHPUT_RECORD = "small"


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the options."""
    group = parser.getgroup("starpullm", "validation of starpullm")
    add = group.addoption
    add("--starpullm-lib", metavar="PATH", help="native library to validate, instead of the installed one")
    add(
        "--starpullm-partition",
        metavar="WxT",
        action="append",
        help="W workers of T threads, may be repeated; all (the default): 1x1 and those that use every core",
    )
    add("--starpullm-schedulers", metavar="NAME,…", help="StarPU's schedulers; lws by default")
    add("--starpullm-sub-batches", metavar="N,…", help="numbers, or all; 1 and one per sequence by default")
    add("--starpullm-reductions", metavar="NAME,…", help="ordered, tree, redux; all of them by default")
    add(
        "--starpullm-records",
        metavar="RECORD,…",
        help=f"golden records, by name or file; {','.join(DEFAULT_RECORDS)} by default",
    )
    add("--llmc-lib", metavar="PATH", help="llm.c as a shared object, to compare with beside the golden records")
    add("--starpullm-seed", metavar="N", type=int, default=1, help="seed of generated batches and of StarPU; default 1")
    add(
        "--starpullm-timeout",
        metavar="SECONDS",
        type=float,
        default=DEFAULT_TIME_LIMIT,
        help=f"time limit of each check; {DEFAULT_TIME_LIMIT:g} by default",
    )
    add(
        "--benchmark",
        action="store_true",
        dest="starpullm_benchmark",
        help="also run the tests of throughput; pytest-benchmark keeps their records",
    )
    add(
        "--starpullm-baseline-lib",
        metavar="PATH",
        help="native library that throughput is compared with, in turn; without it: pytest-benchmark's records",
    )
    add("--starpullm-blocks", metavar="N", type=int, help="rounds, each with one turn of each library; default 64")
    add("--starpullm-budget", metavar="FRACTION", type=float, help="slowdown that is tolerated; default 0.02")
    add("--starpullm-ranks", metavar="N,…", help="numbers of ranks that throughput is measured with; default 1")
    add("--starpullm-fresh", action="store_true", help="a fresh process for each check")
    add("--starpullm-report", metavar="PATH", help="JSON file of the results; by default in pytest's cache")
    add("--starpullm-strict", action="store_true", help="skipped, not comparable, inconclusive: each is a failure")
    add_mpi_option(group, pluginmanager)


class Options:
    """The options of one run of pytest, read when they are first asked for.

    Raises
    ------
    pytest.UsageError
        From every property and method, for what can't be served.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.rank, self.ranks = rank_and_size(config.option)

    @property
    def has_options(self) -> bool:
        """Whether options were given that have to be checked before anything runs."""
        names = ("lib", "partition", "schedulers", "sub_batches", "reductions", "records", "report")
        of_throughput = ("baseline_lib", "blocks", "budget", "ranks")
        values = [getattr(self._config.option, f"starpullm_{name}") for name in (*names, *of_throughput)]
        values.append(self._config.option.llmc_lib)
        return self.benchmark or self.time_limit != DEFAULT_TIME_LIMIT or any(value is not None for value in values)

    @property
    def seed(self) -> int:
        """``--starpullm-seed``."""
        seed: int = self._config.getoption("--starpullm-seed")
        return seed

    @property
    def time_limit(self) -> float:
        """``--starpullm-timeout``."""
        seconds: float = self._config.getoption("--starpullm-timeout")
        return seconds

    @property
    def llmc_library(self) -> Path | None:
        """``--llmc-lib``, from the directory that pytest was called in."""
        path: str | None = self._config.getoption("--llmc-lib")
        return None if path is None else Path(self._config.invocation_params.dir, path)

    @property
    def report_path(self) -> Path | None:
        """``--starpullm-report``, from the directory that pytest was called in."""
        path: str | None = self._config.getoption("--starpullm-report")
        return None if path is None else Path(self._config.invocation_params.dir, path)

    @cached_property
    def machine(self) -> dict[str, Any]:
        """What ``starpullm doctor --json`` says, from a process of its own."""
        from starpullm.checks.isolation import machine_in_child
        from starpullm.errors import StarpullmError

        try:
            return machine_in_child()
        except StarpullmError as error:
            raise pytest.UsageError(f"starpullm: this machine can't be inspected: {error}") from error

    def ranks_of(self, test: pytest.Item) -> int:
        """Return how many ranks a test is about: all of this run's, if it is marked so."""
        marked = any(test.get_closest_marker(name) for name in RANK_MARKERS)
        return self.ranks if marked else 1

    @cached_property
    def configurations(self) -> list[RuntimeConfiguration]:
        """Those without ranks."""
        return self.configurations_on(1)

    def configurations_on(self, ranks: int) -> list[RuntimeConfiguration]:
        """Return partitions with schedulers, the partition's changing slowest."""
        from starpullm.checks.isolation import RuntimeConfiguration

        return [
            RuntimeConfiguration(partition, scheduler, ranks)
            for partition in self._partitions(ranks)
            for scheduler in self._schedulers()
        ]

    @cached_property
    def records(self) -> list[str]:
        """Names of shipped records, and paths of others."""
        from starpullm.checks.runs import find_record
        from starpullm.errors import StarpullmError
        from starpullm.golden.records import SHIPPED_RECORDS

        names = self._list("records") or list(DEFAULT_RECORDS if self.ranks == 1 else DEFAULT_RECORDS_OF_RANKS)
        found = []
        for name in names:
            path = Path(self._config.invocation_params.dir, name)
            if name not in SHIPPED_RECORDS and not path.is_file():
                raise pytest.UsageError(
                    f'--starpullm-records: found "{name}", expected a file or one of {", ".join(SHIPPED_RECORDS)}'
                )
            found.append(name if name in SHIPPED_RECORDS else str(path))
            try:
                find_record(found[-1])
            except StarpullmError as error:
                raise pytest.UsageError(f"--starpullm-records: {error}") from error
        return found

    @cached_property
    def reductions(self) -> list[str]:
        """Reduction modes."""
        from starpullm.trainer import REDUCTIONS

        chosen = self._list("reductions") or list(REDUCTIONS)
        for name in chosen:
            if name not in REDUCTIONS:
                raise pytest.UsageError(
                    f'--starpullm-reductions: found "{name}", expected one of {", ".join(REDUCTIONS)}'
                )
        return chosen

    def sub_batches(self, record: str, ranks: int = 1) -> list[int]:
        """Return the numbers of a rank's sub-batches for a record: those chosen that divide its batch."""
        from starpullm.checks.runs import find_record

        batch_size, rest = divmod(find_record(record).batch_size, ranks)
        if rest:
            return []
        chosen = self._list("sub_batches")
        if not chosen:
            return sorted({1, batch_size})
        divisors = [count for count in range(1, batch_size + 1) if batch_size % count == 0]
        if chosen == ["all"]:
            return divisors
        for text in chosen:
            if not text.isascii() or not text.isdigit() or int(text) < 1:
                raise pytest.UsageError(
                    f'--starpullm-sub-batches: found "{text}", expected positive numbers with commas between, or all'
                )
        return [count for count in divisors if str(count) in chosen]

    @property
    def benchmark(self) -> bool:
        """``--benchmark``."""
        return bool(self._config.getoption("starpullm_benchmark"))

    @property
    def rounds(self) -> int:
        """``--starpullm-blocks``."""
        from starpullm.speed.rounds import ROUNDS

        rounds: int | None = self._config.getoption("--starpullm-blocks")
        return ROUNDS if rounds is None else rounds

    @property
    def budget(self) -> float:
        """``--starpullm-budget``."""
        from starpullm.speed.gate import BUDGET

        budget: float | None = self._config.getoption("--starpullm-budget")
        return BUDGET if budget is None else budget

    @cached_property
    def baseline_library(self) -> Path | None:
        """``--starpullm-baseline-lib``, from the directory that pytest was called in."""
        path: str | None = self._config.getoption("--starpullm-baseline-lib")
        return None if path is None else Path(self._config.invocation_params.dir, path)

    @cached_property
    def throughput_records(self) -> list[str]:
        """The chosen records, or the one that is large enough to be measured and small enough to be quick."""
        return self.records if self._list("records") else [DEFAULT_THROUGHPUT_RECORD]

    @cached_property
    def rank_counts(self) -> list[int]:
        """``--starpullm-ranks``."""
        counts = self._list("ranks") or ["1"]
        for text in counts:
            if not text.isascii() or not text.isdigit() or int(text) < 1:
                raise pytest.UsageError(
                    f'--starpullm-ranks: found "{text}", expected positive numbers with commas between'
                )
        return [int(text) for text in counts]

    def _check_throughput(self) -> None:
        from starpullm.errors import MissingDependencyError
        from starpullm.speed.gate import MIN_ROUNDS, RESOLUTION
        from starpullm.speed.gate_statistics import scipy_stats

        if not self.benchmark:
            for name in ("baseline-lib", "blocks", "budget", "ranks"):
                if self._config.getoption(f"--starpullm-{name}") is not None:
                    raise pytest.UsageError(f"--starpullm-{name}: expected --benchmark with it")
            return
        if not self._config.pluginmanager.hasplugin("benchmark"):
            raise pytest.UsageError(
                "--benchmark: pytest-benchmark isn't there, expected it for the records: pip install 'starpullm[bench]'"
            )
        try:
            scipy_stats()
        except MissingDependencyError as error:
            raise pytest.UsageError(f"--benchmark: {error}") from error
        if self.rounds < MIN_ROUNDS:
            raise pytest.UsageError(f"--starpullm-blocks: found {self.rounds}, expected at least {MIN_ROUNDS}")
        if not 0 <= self.budget <= RESOLUTION:
            raise pytest.UsageError(f"--starpullm-budget: found {self.budget:g}, expected 0 to {RESOLUTION:g}")
        library = self.baseline_library
        if library is not None and not library.is_file():
            raise pytest.UsageError(f"--starpullm-baseline-lib: {library}: no such file")
        assert self.rank_counts

    @cached_property
    def disturbing_configurations(self) -> list[RuntimeConfiguration]:
        """The partition with the most workers, with the chosen schedulers, or else with each of `DISTURBING`."""
        from starpullm.checks.isolation import RuntimeConfiguration
        from starpullm.runtime import Partition

        partition = max(self._partitions(1), key=lambda text: Partition.parse(text).workers)
        known = self.machine["schedulers"]
        schedulers = self._schedulers() if self._list("schedulers") else [name for name in DISTURBING if name in known]
        return [RuntimeConfiguration(partition, scheduler) for scheduler in schedulers]

    def check_options(self) -> None:
        """Raise a usage error for the first option that can't be served."""
        if not self.time_limit > 0:
            raise pytest.UsageError(f"--starpullm-timeout: found {self.time_limit:g}, expected a positive number")
        if not any(self.sub_batches(record) for record in self.records):
            raise pytest.UsageError(
                "--starpullm-sub-batches: expected a number that divides the batch of one of the records"
            )
        if self.llmc_library is not None and not self.llmc_library.is_file():
            raise pytest.UsageError(f"--llmc-lib: {self.llmc_library}: no such file")
        if not any(self.sub_batches(record, self.ranks) for record in self.records):
            raise pytest.UsageError(
                f"--with-mpi: found {self.ranks} ranks, which with these sub-batches divide the batch of none of the "
                f"records: {', '.join(self.records)}"
            )
        self._check_throughput()
        report = self.report_path
        if report is not None and not report.parent.is_dir():
            raise pytest.UsageError(f"--starpullm-report: {report}: there is no directory {report.parent}")
        assert self.reductions
        assert self.configurations

    def _list(self, option: str) -> list[str]:
        text: str | None = getattr(self._config.option, f"starpullm_{option}")
        if text is None:
            return []
        parts = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if not parts:
            raise pytest.UsageError(f"--starpullm-{option.replace('_', '-')}: found nothing")
        return parts

    def _partitions(self, ranks: int) -> list[str]:
        from starpullm.errors import StarpullmError
        from starpullm.runtime import Partition

        cores = int(self.machine["cores"])
        chosen = []
        for text in self._config.getoption("--starpullm-partition") or ["all"]:
            if text == "all":
                own = max(cores // ranks, 1)
                divisors = [count for count in range(own, 0, -1) if own % count == 0]
                chosen += ["1x1", *(f"{workers}x{own // workers}" for workers in divisors)]
                continue
            try:
                workers, threads = Partition.parse(text)
            except StarpullmError as error:
                raise pytest.UsageError(f"--starpullm-partition: {error}, or all") from error
            if workers * threads > cores:
                raise pytest.UsageError(
                    f"--starpullm-partition: found {text}, which needs {workers * threads} cores, expected at most "
                    f"{cores}: this machine has no more"
                )
            chosen.append(text)
        return list(dict.fromkeys(chosen))

    def _schedulers(self) -> list[str]:
        from starpullm.runtime import DEFAULT_SCHEDULER

        chosen = self._list("schedulers") or [DEFAULT_SCHEDULER]
        for name in chosen:
            if name not in self.machine["schedulers"]:
                raise pytest.UsageError(
                    f'--starpullm-schedulers: found "{name}", expected one of {", ".join(self.machine["schedulers"])}'
                )
        return chosen
