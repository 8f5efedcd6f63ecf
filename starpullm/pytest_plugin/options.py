"""The options: their help texts, what they mean on this machine, and usage errors for what can't be satisfied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from starpullm.errors import MissingDependencyError, StarpullmError
from starpullm.pytest_plugin.items import RANK_MARKERS
from starpullm.pytest_plugin.ranks import add_mpi_option, rank_and_size

if TYPE_CHECKING:
    from starpullm.checks.isolation import RuntimeConfiguration

DEFAULT_RECORDS = ("tiny", "odd", "small", "deep")
DEFAULT_RECORDS_OF_RANKS = ("tiny", "odd", "small")
"""Few, because ranks often share cores; 2, 3, 4 and 8 ranks divide the batch of at least one of them."""
PARITY_RECORDS_OF_RANKS = ("single", "ragged")
"""Of the records beyond thresholds, those with the largest batches."""
DEFAULT_TIME_LIMIT = 60.0
DISTURBING = ("eager", "random", "lws", "prio", "dmda", "ws")
DEFAULT_THROUGHPUT_RECORD = "small"
"""It is large enough to be measured, and small enough to be quick."""


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the options."""
    group = parser.getgroup("starpullm", "validation of starpullm")

    def add(name: str, metavar: str | None, text: str, **attributes: Any) -> None:
        action = {"action": "store_true"} if metavar is None else {"metavar": metavar}
        group.addoption(name, help=text, **action, **attributes)

    add("--starpullm-lib", "PATH", "native library to validate; default: the installed one")
    partitions = "W workers of T threads each; may be repeated; all (the default): 1x1 and those that use every core"
    add("--starpullm-partition", "WxT", partitions, action="append")
    add("--starpullm-schedulers", "NAME,…", "StarPU schedulers; default: lws")
    add("--starpullm-sub-batches", "N,…", "numbers of sub-batches, or all; default: 1 and one per sequence")
    add("--starpullm-reductions", "NAME,…", "reductions of gradients; default: ordered,tree,redux")
    records = f"golden records, by name or file; default: {','.join(DEFAULT_RECORDS)}, and for parity four more"
    add("--starpullm-records", "RECORD,…", records)
    add("--starpullm-llmc-lib", "PATH", "llm.c as a shared object, to compare with in addition to the golden records")
    seed = "seed of generated batches, of delays and of StarPU's random scheduler; default: 1"
    add("--starpullm-seed", "N", seed, type=int, default=1)
    limit = f"time limit of each check; default: {DEFAULT_TIME_LIMIT:g}"
    add("--starpullm-timeout", "SECONDS", limit, type=float, default=DEFAULT_TIME_LIMIT)
    benchmark = "also run the tests of throughput; pytest-benchmark stores their results"
    add("--benchmark", None, benchmark, dest="starpullm_benchmark")
    baseline = "native library to compare throughput with; default: the stored runs of pytest-benchmark"
    add("--starpullm-baseline-lib", "PATH", baseline)
    add("--starpullm-blocks", "N", "rounds of a throughput comparison; default: 64", type=int)
    add("--starpullm-budget", "FRACTION", "slowdown that is tolerated; default: 0.02", type=float)
    add("--starpullm-ranks", "N,…", "numbers of ranks to measure throughput with; default: 1")
    accept = "with stored runs: accept a task graph that costs more, and store its cost as the one to compare with"
    add("--starpullm-accept-cost", None, accept)
    add("--starpullm-fresh", None, "start a new process for each check")
    report = "folder for a report that people read, or FILE.json for its data alone; default: a file in pytest's cache"
    add("--starpullm-report", "PATH", report)
    add("--starpullm-strict", None, "fail tests that are skipped, not comparable or inconclusive")
    add_mpi_option(group, pluginmanager)


class Options:
    """The options of one run of pytest; most are read when they are first asked for.

    Raises
    ------
    pytest.UsageError
        From every property and method, for an option that can't be satisfied.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        option = config.option
        self.rank, self.ranks = rank_and_size(option)
        self.seed: int = option.starpullm_seed
        self.time_limit: float = option.starpullm_timeout
        self.benchmark: bool = option.starpullm_benchmark
        # Paths are relative to the directory that pytest was called in.
        self.library = self._path(option.starpullm_lib)
        self.llmc_library = self._path(option.starpullm_llmc_lib)
        self.baseline_library = self._path(option.starpullm_baseline_lib)
        self.report_path = self._path(option.starpullm_report)

    @property
    def has_options(self) -> bool:
        """Whether options were given that have to be checked before anything runs."""
        names = ("lib", "llmc_lib", "partition", "schedulers", "sub_batches", "reductions", "records", "report")
        of_throughput = ("baseline_lib", "blocks", "budget", "ranks")
        values = [getattr(self._config.option, f"starpullm_{name}") for name in (*names, *of_throughput)]
        return self.benchmark or self.time_limit != DEFAULT_TIME_LIMIT or any(value is not None for value in values)

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
        schedulers = self._schedulers() if self._list("schedulers") else [name for name in DISTURBING if name in known]
        return [RuntimeConfiguration(partition, scheduler) for scheduler in schedulers]

    @cached_property
    def records(self) -> list[str]:
        """The chosen records: names of shipped ones, paths of others."""
        from starpullm.checks.runs import find_record
        from starpullm.golden.records import SHIPPED_RECORDS

        found = []
        for name in self._list("records") or (DEFAULT_RECORDS if self.ranks == 1 else DEFAULT_RECORDS_OF_RANKS):
            path = self._config.invocation_params.dir / name
            if name not in SHIPPED_RECORDS and not path.is_file():
                raise _not_one_of("records", name, SHIPPED_RECORDS, "a file or one of")
            found.append(name if name in SHIPPED_RECORDS else str(path))
            try:
                find_record(found[-1])
            except StarpullmError as error:
                raise pytest.UsageError(f"--starpullm-records: {error}") from error
        return found

    @cached_property
    def parity_records(self) -> Sequence[str]:
        """The records that only parity is checked with: those beyond thresholds, unless records are chosen."""
        from starpullm.golden.records import THRESHOLD_RECORDS

        if self._list("records"):
            return ()
        return THRESHOLD_RECORDS if self.ranks == 1 else PARITY_RECORDS_OF_RANKS

    @cached_property
    def throughput_records(self) -> list[str]:
        """The records whose throughput is measured."""
        return self.records if self._list("records") else [DEFAULT_THROUGHPUT_RECORD]

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
        chosen = self._list("sub_batches")
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

        rounds: int | None = self._config.option.starpullm_blocks
        return ROUNDS if rounds is None else rounds

    @property
    def budget(self) -> float:
        """The slowdown that is tolerated, as a fraction."""
        from starpullm.speed.gate import BUDGET

        budget: float | None = self._config.option.starpullm_budget
        return BUDGET if budget is None else budget

    def check_options(self) -> None:
        """Raise a usage error for the first option that can't be satisfied."""
        if not self.time_limit > 0:
            raise pytest.UsageError(f"--starpullm-timeout: found {self.time_limit:g}, expected a positive number")
        if not any(self.sub_batches(record) for record in self.records):
            raise pytest.UsageError(
                "--starpullm-sub-batches: expected a number that divides the batch of one of the records"
            )
        check_file("--starpullm-llmc-lib", self.llmc_library)
        if not any(self.sub_batches(record, self.ranks) for record in self.records):
            raise pytest.UsageError(
                f"--with-mpi: found {self.ranks} ranks, which with these sub-batches divide the batch of none of the "
                f"records: {', '.join(self.records)}"
            )
        self._check_throughput()
        report = self.report_path
        if report is not None and not report.parent.is_dir():
            raise pytest.UsageError(f"--starpullm-report: {report}: there is no directory {report.parent}")
        if self.report_is_folder:
            from starpullm.report import require_packages

            try:
                require_packages()
            except MissingDependencyError as error:
                raise pytest.UsageError(f"--starpullm-report: {error}") from error
        assert self.reductions
        assert self.configurations()

    def _check_throughput(self) -> None:
        from starpullm.speed.gate import MIN_ROUNDS, RESOLUTION
        from starpullm.speed.gate_statistics import scipy_stats

        if not self.benchmark:
            for name in ("baseline-lib", "blocks", "budget", "ranks"):
                if self._config.getoption(f"--starpullm-{name}") is not None:
                    raise pytest.UsageError(f"--starpullm-{name}: expected --benchmark with it")
            return
        if not self._config.pluginmanager.hasplugin("benchmark"):
            raise pytest.UsageError(
                "--benchmark: expected pytest-benchmark, which isn't installed: pip install 'starpullm[bench]'"
            )
        try:
            scipy_stats()
        except MissingDependencyError as error:
            raise pytest.UsageError(f"--benchmark: {error}") from error
        if self.rounds < MIN_ROUNDS:
            raise pytest.UsageError(f"--starpullm-blocks: found {self.rounds}, expected at least {MIN_ROUNDS}")
        if not 0 <= self.budget <= RESOLUTION:
            raise pytest.UsageError(f"--starpullm-budget: found {self.budget:g}, expected 0 to {RESOLUTION:g}")
        check_file("--starpullm-baseline-lib", self.baseline_library)
        assert self.rank_counts

    # Reading one option

    def _path(self, text: str | None) -> Path | None:
        return None if text is None else self._config.invocation_params.dir / text

    def _list(self, option: str) -> list[str]:
        """Return the parts of an option with commas, each of them once; none if it wasn't given."""
        text: str | None = getattr(self._config.option, f"starpullm_{option}")
        if text is None:
            return []
        parts = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if not parts:
            raise pytest.UsageError(f"{_name(option)}: found nothing, expected a list with commas")
        return parts

    def _names(self, option: str, known: Iterable[str]) -> list[str]:
        chosen = self._list(option)
        for name in chosen:
            if name not in known:
                raise _not_one_of(option, name, known)
        return chosen

    def _counts(self, option: str, more: str = "") -> list[int]:
        chosen = self._list(option)
        for text in chosen:
            if not text.isascii() or not text.isdigit() or int(text) < 1:
                raise pytest.UsageError(
                    f'{_name(option)}: found "{text}", expected positive numbers separated by commas{more}'
                )
        return [int(text) for text in chosen]

    def _partitions(self, ranks: int) -> list[str]:
        from starpullm.machine import full_partitions
        from starpullm.runtime import Partition

        cores = int(self.machine["cores"])
        chosen = []
        for text in self._config.option.starpullm_partition or ["all"]:
            if text == "all":
                limits = {name: self.machine[f"starpu_{name}"] for name in ("max_workers", "max_contexts")}
                parallel = self.machine["starpu_parallel_workers"]
                own = full_partitions(max(cores // ranks, 1), **limits, parallel_workers=parallel)
                chosen += ["1x1", *reversed(own)]
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

        return self._names("schedulers", self.machine["schedulers"]) or [DEFAULT_SCHEDULER]


def _name(option: str) -> str:
    return f"--starpullm-{option.replace('_', '-')}"


def _not_one_of(option: str, found: str, known: Iterable[str], expected: str = "one of") -> pytest.UsageError:
    return pytest.UsageError(f'{_name(option)}: found "{found}", expected {expected} {", ".join(known)}')


def check_file(option: str, path: Path | None) -> None:
    """Raise a usage error if an option names a file that isn't there."""
    if path is not None and not path.is_file():
        raise pytest.UsageError(f"{option}: {path}: no such file")
