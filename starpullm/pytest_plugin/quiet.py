"""What the ranks above 0 do so that only rank 0 prints and writes files.

They use what pytest and its plugins offer for it: options that switch an output off, and environment variables. They
don't pose as workers of pytest-xdist, of which plugins expect more than that.
"""

from __future__ import annotations

import importlib
import io
import os
from pathlib import Path
from typing import Any

import pytest

_OUTPUTS: dict[str, Any] = {
    "xmlpath": None,
    "pastebin": None,
    "log_file": os.devnull,
    "benchmark_json": None,
    "benchmark_save": None,
    "benchmark_autosave": None,
    "benchmark_cprofile_dump": [],
    "benchmark_histogram": [],
}
"""Options of pytest and pytest-benchmark, with the values that leave the output to rank 0."""


def write_nothing(config: pytest.Config, rank: int) -> None:
    """Switch off the files of this rank, and give it a folder of its own for temporary ones."""
    for name, value in _OUTPUTS.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
    if config.option.basetemp is not None:
        config.option.basetemp += f"-rank{rank}"
    patch = pytest.MonkeyPatch()
    patch.setattr(pytest.Cache, "set", lambda *_: None)  # all ranks read pytest's cache
    config.add_cleanup(patch.undo)


def print_nothing(config: pytest.Config) -> None:
    """Let pytest's reporter of this rank write to nowhere."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        config.pluginmanager.unregister(reporter)
        config.pluginmanager.register(pytest.TerminalReporter(config, io.StringIO()), "terminalreporter")


def keep_coverage_apart(config: pytest.Config, rank: int) -> None:
    """Give this rank a coverage file of its own, which pytest-cov of rank 0 combines with its own file at the end.

    The name is that of rank 0's file and a suffix, as ``coverage combine`` expects. Only rank 0 reports. pytest-cov
    reads all that before it is configured, so this has to be called before the initial conftest files are loaded.
    """
    options = config.known_args_namespace
    if not getattr(options, "cov_source", None):
        return
    coverage: Any = importlib.import_module("coverage")  # it is there with pytest-cov
    data_file = coverage.Coverage(config_file=options.cov_config).get_option("run:data_file")
    patch = pytest.MonkeyPatch()
    patch.setenv("COVERAGE_FILE", f"{Path(str(data_file)).absolute()}.rank{rank}")
    config.add_cleanup(patch.undo)
    options.cov_report = {"": None}  # as --cov-report=
    options.cov_fail_under = 0
