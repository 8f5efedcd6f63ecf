"""The options: one table of their names, values and meanings, and what the options of a run choose on this machine.

Nothing is checked before it is asked for, because the options don't concern a run that has no test of the plugin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pytest

from starpullm.errors import MissingDependencyError, StarpullmError
from starpullm.pytest_plugin.items import RANK_MARKERS
from starpullm.pytest_plugin.ranks import launched_ranks, rank_and_size

if TYPE_CHECKING:
    from starpullm.checks.isolation import RuntimeConfiguration

DEFAULT_RECORDS = ("tiny", "odd", "small", "deep")
DEFAULT_RECORDS_OF_RANKS = ("tiny", "odd", "small")
"""Few, because ranks often share cores; 2, 3, 4 and 8 ranks divide the batch of at least one of them."""
PARITY_RECORDS_OF_RANKS = ("single", "ragged")
"""Of the records beyond thresholds, those with the largest batches."""
PERTURBING = ("eager", "random", "lws", "prio", "dmda", "ws")
DEFAULT_THROUGHPUT_RECORD = "small"
"""It is large enough to be measured, and small enough to be quick."""
_WEEK = 7 * 24 * 3600
"""Seconds; no child of a check lives longer."""

_T = TypeVar("_T", int, float)


class UnknownMachineError(Exception):
    """The native library doesn't describe this machine, for example because there is none; the text says why."""


# ---- Readers: from a text, and the folder of relative paths, to a value; a ValueError says what was expected ----


def _file(text: str, folder: Path) -> Path:
    path = folder / text
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    return path


def _output(text: str, folder: Path) -> Path:
    path = folder / text
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no directory {path.parent}")
    return path


def _record(text: str, folder: Path) -> str:
    from starpullm.checks.cases import find_record
    from starpullm.golden.records import SHIPPED_RECORDS

    name = text if text in SHIPPED_RECORDS else str(folder / text)
    if name != text and not Path(name).is_file():
        raise ValueError(f'found "{text}", expected a file or one of {", ".join(SHIPPED_RECORDS)}')
    find_record(name)
    return name


def _partition(text: str, folder: Path) -> str:
    from starpullm.runtime import Partition

    try:
        return text if text == "all" else str(Partition.parse(text))
    except StarpullmError as error:
        raise ValueError(f"{error}, or all") from error


def _reduction(text: str, folder: Path) -> str:
    from starpullm.trainer import REDUCTIONS

    return _one_of(text, REDUCTIONS)


def _name(text: str, folder: Path) -> str:
    return text  # which names there are is known only with the machine


def _count_or_all(text: str, folder: Path) -> int | str:
    return text if text == "all" else _number(int, 1, math.inf, "positive numbers separated by commas, or all")(text)


def _rounds(text: str, folder: Path) -> int:
    from starpullm.speed.gate import MIN_ROUNDS

    return _number(int, MIN_ROUNDS, math.inf, f"at least {MIN_ROUNDS}")(text)


def _budget(text: str, folder: Path) -> float:
    from starpullm.speed.gate import RESOLUTION

    return _number(float, 0, RESOLUTION, f"0 to {RESOLUTION:g}")(text)


def _number(kind: Callable[[str], _T], least: float, most: float, expected: str) -> Callable[..., _T]:
    def read(text: str, folder: Path | None = None) -> _T:
        try:
            value = kind(text)
        except ValueError:
            raise ValueError(f'found "{text}", expected {expected}') from None
        if not least <= value <= most:  # false for NaN
            raise ValueError(f"found {text}, expected {expected}")
        return value

    return read


def _one_of(text: str, known: Iterable[str]) -> str:
    if text not in known:
        raise ValueError(f'found "{text}", expected one of {", ".join(known)}')
    return text


_seed = _number(int, -math.inf, math.inf, "an integer")
_seconds = _number(float, 1e-3, _WEEK, f"a positive number of seconds, at most {_WEEK}")
_count = _number(int, 1, math.inf, "positive numbers separated by commas")


# ---- The table ----


class Kind(Enum):
    """How a value is written in the ini file: pytest's names."""

    FLAG = "bool"
    TEXT = "string"
    LIST = "linelist"


class Option(NamedTuple):
    """An option ``--starpullm-NAME``; in the ini file it is called ``starpullm_NAME``."""

    name: str
    kind: Kind
    metavar: str
    default: Any
    read: Callable[[str, Path], Any]
    """For a list, it reads one part; for a flag, nothing."""
    help: str

    @property
    def option(self) -> str:
        """The option of the command line."""
        return f"--starpullm-{self.name.replace('_', '-')}"

    @property
    def ini(self) -> str:
        """The name in the ini file, and of the attribute of pytest's options."""
        return f"starpullm_{self.name}"


def _flag(name: str, help_text: str) -> Option:
    return Option(name, Kind.FLAG, "", False, _name, help_text)


_TEXT, _LIST = Kind.TEXT, Kind.LIST
_TABLE = (
    Option("library", _TEXT, "PATH", None, _file, "native library to validate; default: the installed one"),
    Option(
        "partition", _LIST, "WxT,…", ("all",), _partition, "workers x threads; all: 1x1 and all that use every core"
    ),
    Option("schedulers", _LIST, "NAME,…", (), _name, "StarPU schedulers; default: lws, and for perturbed runs six"),
    Option("sub_batches", _LIST, "N,…", (), _count_or_all, "sub-batches, or all; default: 1 and one per sequence"),
    Option("reductions", _LIST, "NAME,…", (), _reduction, "reductions of gradients; default: ordered,tree,redux"),
    Option(
        "records",
        _LIST,
        "RECORD,…",
        (),
        _record,
        f"golden records, by name or file; default: {','.join(DEFAULT_RECORDS)}, and for parity four more",
    ),
    Option("llmc_library", _TEXT, "PATH", None, _file, "llm.c as a shared object, to compare with too"),
    _flag("skip_unknown_libm", "skip parity tests, which fail otherwise, if the records have another libm's bits"),
    Option("seed", _TEXT, "N", 1, _seed, "seed of batches, of delays and of StarPU's random scheduler; default: 1"),
    Option("time_limit", _TEXT, "SECONDS", 60.0, _seconds, "for each check; default: 60"),
    Option(
        "wait_limit",
        _TEXT,
        "SECONDS",
        3600.0,
        _seconds,
        "for each wait until another process has stopped using the machine; default: 3600",
    ),
    _flag("over_ranks", "under mpirun: all ranks are one run of pytest"),
    _flag("fresh", "start a new process for each check"),
    Option(
        "report",
        _TEXT,
        "PATH",
        None,
        _output,
        "folder for a report that people read, or FILE.json for its data alone; default: a file in pytest's cache",
    ),
    _flag("strict", "fail tests that are skipped, not comparable or inconclusive"),
    _flag("benchmark", "also run the tests of throughput; pytest-benchmark stores their results"),
    Option("baseline_library", _TEXT, "PATH", None, _file, "to compare throughput with; default: stored runs"),
    Option("blocks", _TEXT, "N", 64, _rounds, "rounds of a throughput comparison; default: 64"),
    Option("budget", _TEXT, "FRACTION", 0.02, _budget, "slowdown that is tolerated; default: 0.02"),
    Option("ranks", _LIST, "N,…", (1,), _count, "numbers of ranks to measure throughput with; default: 1"),
    _flag("accept_cost", "with stored runs: accept a task graph that costs more, and store its cost to compare with"),
)
OPTIONS = {option.name: option for option in _TABLE}
"""The options by name, in the order of ``pytest --help``."""
_OF_THROUGHPUT = ("baseline_library", "blocks", "budget", "ranks", "accept_cost")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options to the command line and to the ini file."""
    group = parser.getgroup("starpullm", "starpullm: tests that validate it (pytest --pyargs starpullm.suite)")
    for option in OPTIONS.values():
        # No option has a default here, so that it is known whether it was given.
        if option.kind is Kind.FLAG:
            group.addoption(option.option, dest=option.ini, action="store_true", default=None, help=option.help)
        else:
            is_list = option.kind is Kind.LIST
            text = option.help + "; may be repeated" * is_list
            action = "append" if is_list else "store"
            group.addoption(option.option, dest=option.ini, metavar=option.metavar, action=action, help=text)
        parser.addini(option.ini, f"as {option.option}", type=option.kind.value, default=None)


class Options:
    """The options of one run of pytest: those of the command line, otherwise those of the ini file.

    Raises
    ------
    pytest.UsageError
        From every attribute and method, for an option that can't be satisfied.
    UnknownMachineError
        From those that depend on the machine.
    """

    # Read from the table when they are first asked for.
    library: Path | None
    llmc_library: Path | None
    baseline_library: Path | None
    report: Path | None
    seed: int
    time_limit: float
    wait_limit: float
    blocks: int
    budget: float
    fresh: bool
    strict: bool
    benchmark: bool
    accept_cost: bool
    skip_unknown_libm: bool

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._unknown_machine: UnknownMachineError | None = None
        self.rank, self.ranks = rank_and_size(config)

    def __getattr__(self, name: str) -> Any:
        if name not in OPTIONS:
            raise AttributeError(name)
        value = vars(self)[name] = self.value(name)
        return value

    def value(self, name: str) -> Any:
        """Return the value of an option, of a list without repetitions, or its default."""
        option, given = OPTIONS[name], self._given(name)
        try:
            return option.default if given is None else self._read(option, given)
        except (ValueError, StarpullmError) as error:
            raise pytest.UsageError(f"{self.label(name)}: {error}") from error

    def label(self, name: str) -> str:
        """Return the name to use in messages: where the value comes from."""
        from_ini = self._given(name) is not None and not self._is_on_command_line(name)
        return OPTIONS[name].ini if from_ini else OPTIONS[name].option

    def _read(self, option: Option, given: Any) -> Any:
        ini = self._config.inipath
        is_relative_to_ini = ini is not None and not self._is_on_command_line(option.name)
        folder = ini.parent if ini and is_relative_to_ini else self._config.invocation_params.dir
        if option.kind is Kind.FLAG:
            return bool(given)
        if option.kind is Kind.TEXT:
            return option.read(str(given), folder)
        parts = [part.strip() for text in given for part in text.split(",") if part.strip()]
        if not parts:
            raise ValueError("found nothing, expected a list with commas")
        return tuple(dict.fromkeys(option.read(part, folder) for part in parts))

    def _given(self, name: str) -> object:
        """Return the value as it was given; None if it wasn't, or is empty in the ini file."""
        if self._is_on_command_line(name):
            return getattr(self._config.option, OPTIONS[name].ini)
        try:
            value: object = self._config.getini(OPTIONS[name].ini)
        except (TypeError, ValueError) as error:
            raise pytest.UsageError(f"{OPTIONS[name].ini}: {error}") from error
        return None if value in ("", []) else value

    def _is_on_command_line(self, name: str) -> bool:
        return getattr(self._config.option, OPTIONS[name].ini, None) is not None

    # ---- What they choose ----

    @property
    def report_is_folder(self) -> bool:
        """Whether ``--starpullm-report`` names a folder: not FILE.json, and nothing else that exists."""
        path = self.report
        return path is not None and path.suffix != ".json" and (path.is_dir() or not path.exists())

    @cached_property
    def machine(self) -> dict[str, Any]:
        """The results of ``starpullm doctor --json``, from a process of its own."""
        from starpullm.checks.isolation import machine_in_child

        if self._unknown_machine is None:
            try:
                return machine_in_child()
            except StarpullmError as error:
                text = f"this machine can't be inspected: {str(error).strip()}"
                self._unknown_machine = UnknownMachineError(text)
        raise self._unknown_machine

    @cached_property
    def records(self) -> Sequence[str]:
        """The chosen records: names of shipped ones, paths of others."""
        return self.value("records") or (DEFAULT_RECORDS if self.ranks == 1 else DEFAULT_RECORDS_OF_RANKS)

    @cached_property
    def parity_records(self) -> Sequence[str]:
        """The records that only parity is checked with: those beyond thresholds, unless records are chosen."""
        from starpullm.golden.records import THRESHOLD_RECORDS

        if self.value("records"):
            return ()
        return THRESHOLD_RECORDS if self.ranks == 1 else PARITY_RECORDS_OF_RANKS

    @cached_property
    def throughput_records(self) -> Sequence[str]:
        """The records whose throughput is measured."""
        return self.value("records") or (DEFAULT_THROUGHPUT_RECORD,)

    @cached_property
    def rank_counts(self) -> list[int]:
        """The numbers of ranks to measure throughput with."""
        return list(self.value("ranks"))

    @cached_property
    def reductions(self) -> Sequence[str]:
        """The chosen reduction modes."""
        from starpullm.trainer import REDUCTIONS

        return self.value("reductions") or REDUCTIONS

    def sub_batches(self, record: str, ranks: int = 1) -> list[int]:
        """Return the chosen numbers of sub-batches that divide each rank's part of a record's batch, ascending.

        By default these are 1 and one per sequence; of the records beyond thresholds also the divisor in the middle.
        """
        from starpullm.checks.cases import find_record
        from starpullm.data.sizes import divisors
        from starpullm.golden.records import THRESHOLD_RECORDS

        batch_size, rest = divmod(find_record(record).batch_size, ranks)
        if rest:
            return []
        counts = divisors(batch_size)
        chosen = self.value("sub_batches")
        if not chosen:
            middle = {counts[len(counts) // 2]} if record in THRESHOLD_RECORDS else set()
            return sorted({1, batch_size} | middle)
        return [count for count in counts if count in chosen or "all" in chosen]

    def ranks_of(self, test: pytest.Item) -> int:
        """Return on how many ranks a test's checks run: on all of this run if it is marked so, otherwise on one."""
        marked = any(test.get_closest_marker(name) for name in RANK_MARKERS)
        return self.ranks if marked else 1

    def configurations(self, ranks: int = 1) -> list[RuntimeConfiguration]:
        """Return every partition with every scheduler; the partition changes slowest."""
        from starpullm.checks.isolation import RuntimeConfiguration
        from starpullm.runtime import DEFAULT_SCHEDULER

        schedulers = self._schedulers() or [DEFAULT_SCHEDULER]
        return [RuntimeConfiguration(*of, ranks) for of in product(self._partitions(ranks), schedulers)]

    @cached_property
    def perturbing_configurations(self) -> list[RuntimeConfiguration]:
        """The partition with the most workers, with the chosen schedulers or else with each of `PERTURBING`."""
        from starpullm.checks.isolation import RuntimeConfiguration
        from starpullm.runtime import Partition

        partition = max(self._partitions(1), key=lambda text: Partition.parse(text).workers)
        known = self.machine["schedulers"]
        schedulers = self._schedulers() or [name for name in PERTURBING if name in known]
        return [RuntimeConfiguration(partition, scheduler) for scheduler in schedulers]

    def _partitions(self, ranks: int) -> list[str]:
        from starpullm.machine import full_partitions
        from starpullm.runtime import Partition

        cores = int(self.machine["cores"])
        chosen = []
        for text in self.value("partition"):
            if text == "all":
                limits = {name: self.machine[f"starpu_{name}"] for name in ("max_workers", "max_contexts")}
                parallel = self.machine["starpu_parallel_workers"]
                own = full_partitions(max(cores // ranks, 1), **limits, parallel_workers=parallel)
                chosen += ["1x1", *reversed(own)]
                continue
            needed = math.prod(Partition.parse(text))
            if needed > cores:
                raise pytest.UsageError(
                    f"{self.label('partition')}: found {text}, which needs {needed} cores, expected at most {cores}: "
                    "this machine has no more"
                )
            chosen.append(text)
        return list(dict.fromkeys(chosen))

    def _schedulers(self) -> list[str]:
        chosen = self.value("schedulers")
        try:
            return [_one_of(name, self.machine["schedulers"]) for name in chosen]
        except ValueError as error:
            raise pytest.UsageError(f"{self.label('schedulers')}: {error}") from error

    # ---- Checking all of them ----

    def check_options(self) -> None:
        """Raise a usage error for the first option that can't be satisfied, as far as the machine doesn't matter."""
        launched = launched_ranks(self._config.option)
        if launched > self.ranks:
            raise pytest.UsageError(
                f"--with-mpi: found {launched} ranks and tests that use starpullm, expected --starpullm-over-ranks too "
                "(or starpullm_over_ranks = true in the ini file), so that the ranks are one run"
            )
        if not self.benchmark:
            for name in filter(self._is_on_command_line, _OF_THROUGHPUT):
                raise pytest.UsageError(f"{self.label(name)}: expected --starpullm-benchmark with it")
        given = [name for name in OPTIONS if self._given(name) is not None]
        for name in given:
            self.value(name)
        if given or self.ranks > 1:
            self._check_sizes()
        try:
            if self.report_is_folder:
                from starpullm.report import require_packages

                require_packages()
        except MissingDependencyError as error:
            raise pytest.UsageError(f"{self.label('report')}: {error}") from error
        if self.benchmark:
            self._check_throughput()

    def _check_sizes(self) -> None:
        if not any(self.sub_batches(record) for record in self.records):
            raise pytest.UsageError(
                f"{self.label('sub_batches')}: expected a number that divides the batch of one of the records"
            )
        if not any(self.sub_batches(record, self.ranks) for record in self.records):
            raise pytest.UsageError(
                f"starpullm: found {self.ranks} ranks, which with these sub-batches divide the batch of none of the "
                f"records: {', '.join(self.records)}"
            )

    def _check_throughput(self) -> None:
        from starpullm.speed.gate_statistics import scipy_stats

        if not self._config.pluginmanager.hasplugin("benchmark"):
            raise pytest.UsageError(
                f"{self.label('benchmark')}: expected pytest-benchmark, which isn't installed: pip install "
                "'starpullm[bench]'"
            )
        try:
            scipy_stats()
        except MissingDependencyError as error:
            raise pytest.UsageError(f"{self.label('benchmark')}: {error}") from error
