"""The options of the command line and of the ini file, as they were given; `options.py` says what they mean.

Every option has an equivalent in the ini file. Nothing is checked before it is asked for, because the options don't
concern a run that has no test of the plugin.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

from starpullm.pytest_plugin.ranks import add_mpi_option

DEFAULT_RECORDS = ("tiny", "odd", "small", "deep")
DEFAULT_SEED = 1
DEFAULT_TIME_LIMIT = 60.0

_T = TypeVar("_T")


class Kind(Enum):
    """How a value is written in the ini file: pytest's names."""

    FLAG = "bool"
    TEXT = "string"
    LIST = "linelist"


class Setting(NamedTuple):
    """An option ``--starpullm-NAME``; in the ini file it is called ``starpullm_NAME``."""

    name: str
    metavar: str
    help: str
    kind: Kind = Kind.TEXT

    @property
    def option(self) -> str:
        """The option of the command line."""
        return "--benchmark" if self.name == "benchmark" else f"--starpullm-{self.name.replace('_', '-')}"

    @property
    def ini(self) -> str:
        """The name in the ini file, and of the attribute of pytest's options."""
        return f"starpullm_{self.name}"


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("lib", "PATH", "native library to validate; default: the installed one"),
        Setting(
            "partition",
            "WxT,…",
            "W workers of T threads each; all (the default): 1x1 and those that use every core",
            Kind.LIST,
        ),
        Setting("schedulers", "NAME,…", "StarPU schedulers; default: lws, and for perturbed runs six", Kind.LIST),
        Setting("sub_batches", "N,…", "numbers of sub-batches, or all; default: 1 and one per sequence", Kind.LIST),
        Setting("reductions", "NAME,…", "reductions of gradients; default: ordered,tree,redux", Kind.LIST),
        Setting(
            "records",
            "RECORD,…",
            f"golden records, by name or file; default: {','.join(DEFAULT_RECORDS)}, and for parity four more",
            Kind.LIST,
        ),
        Setting("llmc_lib", "PATH", "llm.c as a shared object, to compare with in addition to the golden records"),
        Setting("seed", "N", f"seed of batches, of delays and of StarPU's random scheduler; default: {DEFAULT_SEED}"),
        Setting("timeout", "SECONDS", f"time limit of each check; default: {DEFAULT_TIME_LIMIT:g}"),
        Setting("over_ranks", "", "with --with-mpi under mpirun: all ranks are one run of pytest", Kind.FLAG),
        Setting("fresh", "", "start a new process for each check", Kind.FLAG),
        Setting(
            "report",
            "PATH",
            "folder for a report that people read, or FILE.json for its data alone; default: a file in pytest's cache",
        ),
        Setting("strict", "", "fail tests that are skipped, not comparable or inconclusive", Kind.FLAG),
        Setting("benchmark", "", "also run the tests of throughput; pytest-benchmark stores their results", Kind.FLAG),
        Setting(
            "baseline_lib", "PATH", "native library to compare throughput with; default: pytest-benchmark's stored runs"
        ),
        Setting("blocks", "N", "rounds of a throughput comparison; default: 64"),
        Setting("budget", "FRACTION", "slowdown that is tolerated; default: 0.02"),
        Setting("ranks", "N,…", "numbers of ranks to measure throughput with; default: 1", Kind.LIST),
        Setting(
            "accept_cost",
            "",
            "with stored runs: accept a task graph that costs more, and store its cost as the one to compare with",
            Kind.FLAG,
        ),
    )
}
"""The options by name, in the order of ``pytest --help``."""


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the options to the command line and to the ini file."""
    group = parser.getgroup("starpullm", "starpullm: tests that validate it (pytest --pyargs starpullm.suite)")
    for setting in SETTINGS.values():
        # No option has a default here, so that it is known whether it was given.
        if setting.kind is Kind.FLAG:
            group.addoption(setting.option, dest=setting.ini, action="store_true", default=None, help=setting.help)
        else:
            more = "; may be repeated" if setting.kind is Kind.LIST else ""
            group.addoption(
                setting.option,
                dest=setting.ini,
                metavar=setting.metavar,
                action="append" if setting.kind is Kind.LIST else "store",
                help=setting.help + more,
            )
        parser.addini(setting.ini, f"as {setting.option}", type=setting.kind.value, default=None)
    add_mpi_option(group, pluginmanager)


class Settings:
    """The values that one run of pytest was given: those of the command line, otherwise those of the ini file.

    Raises
    ------
    pytest.UsageError
        From every method, if a value can't be read.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def was_given(self, name: str) -> bool:
        """Return whether there is a value, on the command line or in the ini file."""
        return self.is_on_command_line(name) or self._in_ini(name) is not None

    def label(self, name: str) -> str:
        """Return the name to use in messages: where the value comes from."""
        setting = SETTINGS[name]
        from_ini = not self.is_on_command_line(name) and self._in_ini(name) is not None
        return setting.ini if from_ini else setting.option

    def flag(self, name: str) -> bool:
        """Return whether a flag was set."""
        return bool(self._value(name))

    def text(self, name: str) -> str | None:
        """Return a text, or None."""
        value = self._value(name)
        return None if value is None else str(value)

    def number(self, name: str, kind: Callable[[str], _T], default: _T) -> _T:
        """Return a number, which ``kind`` reads from its text."""
        text = self.text(name)
        if text is None:
            return default
        try:
            return kind(text)
        except ValueError:
            expected = "an integer" if kind is int else "a number"
            raise pytest.UsageError(f'{self.label(name)}: found "{text}", expected {expected}') from None

    def parts(self, name: str) -> list[str]:
        """Return the parts of a list, each of them once; none if it wasn't given."""
        value = self._value(name)
        if value is None:
            return []
        assert isinstance(value, list)
        parts = list(dict.fromkeys(part.strip() for text in value for part in text.split(",") if part.strip()))
        if not parts:
            raise pytest.UsageError(f"{self.label(name)}: found nothing, expected a list with commas")
        return parts

    def path(self, name: str) -> Path | None:
        """Return a path, or None."""
        text = self.text(name)
        return None if text is None else self.directory(name) / text

    def directory(self, name: str) -> Path:
        """Return what paths are relative to: the folder that pytest was called in, or that of the ini file."""
        ini = self._config.inipath
        return self._config.invocation_params.dir if self.is_on_command_line(name) or ini is None else ini.parent

    def _value(self, name: str) -> object:
        return getattr(self._config.option, SETTINGS[name].ini) if self.is_on_command_line(name) else self._in_ini(name)

    def is_on_command_line(self, name: str) -> bool:
        """Return whether an option was given on the command line."""
        return getattr(self._config.option, SETTINGS[name].ini, None) is not None

    def _in_ini(self, name: str) -> object:
        """Return the value in the ini file; None if there is none, or an empty one."""
        try:
            value: object = self._config.getini(SETTINGS[name].ini)
        except (TypeError, ValueError) as error:
            raise pytest.UsageError(f"{SETTINGS[name].ini}: {error}") from error
        return None if value in ("", []) else value
