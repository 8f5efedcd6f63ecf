"""The options: one table of their names, values and meanings, and what the options of a run choose on this machine.

Nothing is checked before it is asked for, because the options don't concern a run that has no test of the plugin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, cycle, product
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

from starpullm.errors import MissingDependencyError, StarpullmError
from starpullm.options import ARITHMETICS, MAX_SECONDS, REDUCTIONS, RuntimeConfiguration
from starpullm.pytest_plugin.ranked_run import launched_ranks, rank_and_size

DEFAULT_RECORDS = ("tiny", "odd", "small", "deep")
DEFAULT_RECORDS_OF_RANKS = ("tiny", "odd", "small")
"""Few, because ranks often share cores; 2, 3, 4 and 8 ranks divide the batch of at least one of them."""
PARITY_RECORDS_OF_RANKS = ("single", "ragged")
"""Of the records beyond thresholds, those with the largest batches."""
PERTURBING = ("eager", "random", "lws", "prio", "dmda", "ws")
DEFAULT_THROUGHPUT_RECORD = "small"
"""It is large enough to be measured, and small enough to be quick."""
MIN_BLOCKS = 16
"""With fewer rounds the bootstrap's standard error is not reliable."""
MAX_BUDGET = 0.05

_N = TypeVar("_N", int, float)


class UnknownMachineError(Exception):
    """The native library doesn't describe this machine, for example because there is none; the text says why."""

    id = "unknown"
    """In a test's name, in place of a configuration."""


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
    find_record(name)
    return name


def _partition(text: str, folder: Path) -> str:
    from starpullm.runtime import Partition

    try:
        return text if text == "all" else str(Partition.parse(text))
    except StarpullmError as error:
        raise ValueError(f"{error}, or all") from error


def _name(text: str, folder: Path) -> str:
    return text  # which names there are is known only with the machine


def _count_or_all(text: str, folder: Path) -> int | str:
    return text if text == "all" else _positive(text, folder)


def _number(kind: Callable[[str], _N], least: float, most: float, expected: str) -> Callable[[str, Path], _N]:
    def read(text: str, folder: Path) -> _N:
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


def _devices(text: str, folder: Path) -> int | str:
    return text if text == "all" else _number(int, 0, math.inf, "a number, or all")(text, folder)


_seconds = _number(float, 1e-3, MAX_SECONDS, f"a positive number of seconds, at most {MAX_SECONDS:.0f}")
_blocks = _number(int, MIN_BLOCKS, math.inf, f"at least {MIN_BLOCKS}")
_budget = _number(float, 0, MAX_BUDGET, f"0 to {MAX_BUDGET}")
_seed = _number(int, -math.inf, math.inf, "an integer")
_count = _number(int, 1, math.inf, "positive numbers separated by commas")
_positive = _number(int, 1, math.inf, "positive numbers separated by commas, or all")


@dataclass
class Option:
    """An option ``--starpullm-NAME``, in the ini file ``starpullm_NAME``: an attribute of `Options` of that name."""

    kind: Literal["bool", "string", "linelist"]
    """How it is written in the ini file: a name of pytest's."""
    metavar: str
    default: Any
    """If it is a function, of the other options."""
    read: Callable[[str, Path], Any]
    """For a list, it reads one part; for a flag, nothing."""
    help: str
    name: str = ""
    """Given where the attribute has another one."""

    def __set_name__(self, owner: type, attribute: str) -> None:
        self.attribute, self.name = attribute, self.name or attribute
        self.ini, self.option = f"starpullm_{self.name}", f"--starpullm-{self.name.replace('_', '-')}"

    def __get__(self, options: Options | None, owner: type) -> Any:
        """Return the value that was given, or the default; it is read once."""
        if options is None:
            return self
        given, label, folder = options.given(self)
        if given is None:
            value = self.default(options) if callable(self.default) else self.default
        else:
            try:
                value = self._convert(given, folder)
            except (ValueError, StarpullmError) as error:
                raise pytest.UsageError(f"{label}: {error}") from error
        vars(options)[self.attribute] = value
        return value

    def _convert(self, given: Any, folder: Path) -> Any:
        if self.kind == "bool":
            return bool(given)
        if self.kind == "string":
            return self.read(str(given), folder)
        parts = [part.strip() for text in given for part in text.split(",") if part.strip()]
        if not parts:
            raise ValueError("found nothing, expected a list with commas")
        return tuple(dict.fromkeys(self.read(part, folder) for part in parts))


_flag = partial(Option, "bool", "", False, _name)
_text = partial(Option, "string")
_list = partial(Option, "linelist")


class Options:
    """The options of one run of pytest: those of the command line, otherwise those of the ini file.

    What needs an option that can't be satisfied raises a `pytest.UsageError`, what needs the machine an
    `UnknownMachineError`.
    """

    library = _text("PATH", None, _file, "native library to validate; default: the installed one")
    partition = _list("WxT,…", ("all",), _partition, "workers x threads; all: 1x1 and all that use every core")
    schedulers = _list("NAME,…", (), _name, "StarPU schedulers; default: lws, and for perturbed runs six")
    chosen_sub_batches = _list(
        "N,…", (), _count_or_all, "sub-batches, or all; default: 1 and one per sequence", "sub_batches"
    )
    reductions = _list(
        "NAME,…",
        REDUCTIONS,
        lambda text, _: _one_of(text, REDUCTIONS),
        "reductions of gradients; default: ordered,tree,redux",
    )
    arithmetics = _list(
        "NAME,…",
        ARITHMETICS,
        lambda text, _: _one_of(text, ARITHMETICS),
        "of parity, which the first has all cases of, each other one two; default: strict,fused",
    )
    devices = _text("N", 1, _devices, "OpenCL devices, or all, of the check devices; 0: it is left out")
    records = _list(
        "RECORD,…",
        lambda options: DEFAULT_RECORDS if options.ranks == 1 else DEFAULT_RECORDS_OF_RANKS,
        _record,
        f"golden records, by name or file; default: {','.join(DEFAULT_RECORDS)}, and for parity four more",
    )
    llmc_library = _text("PATH", None, _file, "llm.c as a shared object, to compare with too")
    seed = _text("N", 1, _seed, "seed of batches, of delays and of StarPU's random scheduler")
    time_limit = _text("SECONDS", 60.0, _seconds, "for each check")
    wait_limit = _text("SECONDS", 3600.0, _seconds, "for each wait until another process has stopped using the machine")
    over_ranks = _flag("under mpirun: all ranks are one run of pytest")
    fresh = _flag("start a new process for each check")
    report = _text(
        "PATH",
        None,
        _output,
        "folder for a report (a page and its data), or FILE.json for the data alone; default: a file in pytest's cache",
    )
    strict = _flag("fail tests that are skipped, not comparable or inconclusive")
    benchmark = _flag("also run the tests of throughput; pytest-benchmark stores their results")
    baseline_library = _text("PATH", None, _file, "to compare throughput with")
    blocks = _text("N", 64, _blocks, "rounds of a throughput comparison")
    budget = _text("FRACTION", 0.02, _budget, "slowdown that is tolerated")
    rank_counts = _list("N,…", (1,), _count, "numbers of ranks to measure throughput with; default: 1", "ranks")

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.rank, self.ranks = rank_and_size(config)

    def label(self, name: str) -> str:
        """Return the name of an option to use in messages: where its value comes from."""
        return self.given(OPTIONS[name])[1]

    def given(self, option: Option) -> tuple[Any, str, Path]:
        """Return the value as it was given, its name there, and the folder of relative paths.

        The value is None if it wasn't given, or is empty in the ini file.
        """
        folder = self._config.invocation_params.dir
        value = getattr(self._config.option, option.ini, None)
        if value is not None:
            return value, option.option, folder
        try:
            value = self._config.getini(option.ini)
        except (TypeError, ValueError) as error:
            raise pytest.UsageError(f"{option.ini}: {error}") from error
        if value in (None, "", []):
            return None, option.option, folder
        return value, option.ini, self._config.inipath.parent if self._config.inipath else folder

    @property
    def report_is_folder(self) -> bool:
        """Whether ``--starpullm-report`` names a folder: not FILE.json, and nothing else that exists."""
        path = self.report
        return path is not None and path.suffix != ".json" and (path.is_dir() or not path.exists())

    @cached_property
    def parity_records(self) -> Sequence[str]:
        """The records that only parity is checked with: those beyond thresholds, unless records are chosen."""
        from starpullm.golden.records import THRESHOLD_RECORDS

        if self._records_are_chosen:
            return ()
        return THRESHOLD_RECORDS if self.ranks == 1 else PARITY_RECORDS_OF_RANKS

    @property
    def throughput_records(self) -> Sequence[str]:
        """The records whose throughput is measured."""
        return self.records if self._records_are_chosen else (DEFAULT_THROUGHPUT_RECORD,)

    @property
    def _records_are_chosen(self) -> bool:
        return self.given(OPTIONS["records"])[0] is not None

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
        chosen = self.chosen_sub_batches
        if not chosen:
            middle = {counts[len(counts) // 2]} if record in THRESHOLD_RECORDS else set()
            return sorted({1, batch_size} | middle)
        return [count for count in counts if count in chosen or "all" in chosen]

    def configurations(self, ranks: int = 1) -> list[RuntimeConfiguration]:
        """Return every partition with every scheduler; the partition changes slowest."""
        from starpullm.runtime import DEFAULT_SCHEDULER

        schedulers = self.schedulers or [DEFAULT_SCHEDULER]
        return [RuntimeConfiguration(*placement, ranks) for placement in product(self._partitions(ranks), schedulers)]

    @property
    def perturbing_configurations(self) -> list[RuntimeConfiguration]:
        """The chosen schedulers, or else each of `PERTURBING`, with the partition that has the most workers.

        Unless partitions are chosen, they take turns with partitions that have more workers than there are cores.
        """
        from starpullm.runtime import Partition

        usual = self._partitions(1)
        most = max(usual, key=lambda text: Partition.parse(text).workers)
        others = [text for text in self._partitions(1, crowded=True) if text not in usual]
        return list(map(RuntimeConfiguration, cycle([most, *others]), self.schedulers or PERTURBING))

    def _partitions(self, ranks: int, *, crowded: bool = False) -> list[str]:
        """Return the chosen partitions. Tests are named by them, so nothing is started or loaded to find them."""
        from starpullm.binding.library import find_library, starpu_limits
        from starpullm.machine import count_cores, crowded_partitions, full_partitions

        try:
            limits = starpu_limits(find_library())
        except StarpullmError as error:
            raise UnknownMachineError(f"this machine can't be inspected: {error}") from error
        own = (crowded_partitions if crowded else full_partitions)(max(count_cores() // ranks, 1), *limits)
        groups = (["1x1", *reversed(own)] if text == "all" else [text] for text in self.partition)
        return list(dict.fromkeys(chain(*groups)))

    @property
    def machine(self) -> dict[str, Any]:
        """The results of ``starpullm doctor --json``, from a process of its own."""
        if isinstance(self._inspection, UnknownMachineError):
            raise self._inspection
        return self._inspection

    @cached_property
    def _inspection(self) -> dict[str, Any] | UnknownMachineError:
        from starpullm.binding.library import find_library
        from starpullm.machine import machine_in_child

        try:
            find_library()
            return machine_in_child()
        except StarpullmError as error:
            return UnknownMachineError(f"this machine can't be inspected: {str(error).strip()}")

    def check_machine(self) -> None:
        """Raise a usage error for the first option that this machine can't satisfy."""
        from starpullm.machine import count_cores
        from starpullm.runtime import Partition

        label, cores = self.label("partition"), self.machine["cores"]
        for text in self.partition:
            if text == "all" and cores != count_cores():
                raise pytest.UsageError(
                    f"{label}: found all, tests were named for {count_cores()} cores and hwloc has found {cores} here, "
                    "expected partitions by name"
                )
            if text != "all" and (needed := math.prod(Partition.parse(text))) > cores:
                raise pytest.UsageError(
                    f"{label}: found {text}, which needs {needed} cores, expected at most {cores}: this machine has no "
                    "more"
                )
            if text != "all" and Partition.parse(text).threads > 1 and not self.machine["starpu_max_contexts"]:
                raise pytest.UsageError(
                    f"{label}: found {text}, expected workers of one thread: this StarPU has no parallel workers"
                )
        try:
            for name in self.schedulers:
                _one_of(name, self.machine["schedulers"])
        except ValueError as error:
            raise pytest.UsageError(f"{self.label('schedulers')}: {error}") from error

    def check_options(self) -> None:
        """Raise a usage error for the first option that can't be satisfied, as far as the machine doesn't matter."""
        launched = launched_ranks(self._config.option)
        if launched > self.ranks:
            raise pytest.UsageError(
                f"--with-mpi: found {launched} ranks and tests that use starpullm, expected --starpullm-over-ranks too "
                "(or starpullm_over_ranks = true in the ini file), so that the ranks are one run"
            )
        if not self.benchmark:
            for option in (OPTIONS[name] for name in _OF_THROUGHPUT):
                if getattr(self._config.option, option.ini, None) is not None:
                    raise pytest.UsageError(f"{option.option}: expected --starpullm-benchmark with it")
        given = [option.attribute for option in OPTIONS.values() if self.given(option)[0] is not None]
        for attribute in given:
            getattr(self, attribute)
        if given and not any(self.sub_batches(record) for record in self.records):
            raise pytest.UsageError(
                f"{self.label('sub_batches')}: expected a number that divides the batch of one of the records"
            )
        if self.ranks > 1 and not any(self.sub_batches(record, self.ranks) for record in self.records):
            raise pytest.UsageError(
                f"starpullm: found {self.ranks} ranks, which with these sub-batches divide the batch of none of the "
                f"records: {', '.join(self.records)}"
            )
        self._check_packages()
        if self.benchmark and self.baseline_library is None:
            raise pytest.UsageError(f"{self.label('benchmark')}: expected --starpullm-baseline-library with it")

    def _check_packages(self) -> None:
        name = "report"
        try:
            if self.report_is_folder:
                from starpullm.report.folder import require_packages

                require_packages()
            name = "benchmark"
            if self.benchmark and not self._config.pluginmanager.hasplugin("benchmark"):
                raise MissingDependencyError(
                    "expected pytest-benchmark, which isn't installed: pip install 'starpullm[bench]'"
                )
        except MissingDependencyError as error:
            raise pytest.UsageError(f"{self.label(name)}: {error}") from error


OPTIONS = {option.name: option for option in vars(Options).values() if isinstance(option, Option)}
"""The options by name, in the order of ``pytest --help``."""
_OF_THROUGHPUT = ("baseline_library", "blocks", "budget", "ranks")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options to the command line and to the ini file."""
    group = parser.getgroup("starpullm", "starpullm: tests that validate it (pytest --pyargs starpullm.suite)")
    for option in OPTIONS.values():
        # No option has a default here, so that it is known whether it was given.
        told = f"; default: {option.default:g}" if isinstance(option.default, int | float) and option.metavar else ""
        more = "; may be repeated" if option.kind == "linelist" else ""
        common: dict[str, Any] = {"dest": option.ini, "default": None, "help": option.help + told + more}
        if option.kind == "bool":
            group.addoption(option.option, action="store_true", **common)
        else:
            action = "append" if option.kind == "linelist" else "store"
            group.addoption(option.option, metavar=option.metavar, action=action, **common)
        parser.addini(option.ini, f"as {option.option}", type=option.kind, default=None)
