"""A pytest to run with the plugin, and the certainty that nothing of it is left running."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from starpullm import machine
from starpullm.processes.job import JOB_VARIABLE, processes_of
from starpullm.processes.lock import LOCK_VARIABLE

from ..pytest_children import UNUSED, load_plugin

pytest_plugins = ["pytester"]

Run = Callable[..., pytest.RunResult]

_MACHINE = machine.machine_in_child


@contextmanager
def job_environment(directory: Path) -> Iterator[None]:
    """Let pytest's processes see two cores and the installed package; afterwards none of them is left."""
    name = f"test-{uuid.uuid4().hex}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(JOB_VARIABLE, name)
        # Neither the current directory nor the checkout may hide the installed package.
        patch.setenv("PYTHONSAFEPATH", "1")
        patch.setenv("HWLOC_SYNTHETIC", "numa:1 core:2 pu:1")
        # pytest-benchmark would take them for workers of pytest-xdist.
        for variable in [name for name in os.environ if name.startswith("PYTEST_XDIST_")]:
            patch.delenv(variable)
        # The run that this test is part of may hold the lock.
        patch.setenv(LOCK_VARIABLE, str(directory / "lock"))
        yield
    assert processes_of(name) == []


@pytest.fixture
def job(tmp_path: Path) -> Iterator[None]:
    """The environment of the processes of one test."""
    with job_environment(tmp_path):
        yield


@pytest.fixture
def settings(pytester: pytest.Pytester) -> None:
    """Settings of its own, so that pytest doesn't look for them in the directories above the test's."""
    pytester.makeini("[pytest]\n")


@pytest.fixture
def imported() -> Iterator[Imported]:
    """Keep what runs of pytest in this process import; set up before `pytester`, which forgets it."""
    imported = Imported()
    yield imported
    sys.modules.update(imported.modules)


class Imported:
    """Notes what is imported but the modules of tests: NumPy and others can't be imported twice."""

    def __init__(self) -> None:
        self.modules: dict[str, ModuleType] = {}

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Note it before pytester forgets it."""
        own = str(config.invocation_params.dir)
        for name, module in sys.modules.items():
            if module is not None and not (getattr(module, "__file__", None) or "").startswith(own):
                self.modules[name] = module


@pytest.fixture
def run(
    imported: Imported, pytester: pytest.Pytester, job: None, settings: None, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Return a function that runs pytest in this process, on one partition unless told otherwise.

    Checks run in processes of their own, as they always do. The machine is inspected once.
    """
    monkeypatch.setattr(machine, "machine_in_child", lambda: _inspected(*map(os.environ.get, _INSPECTED)))

    def run_pytest(*arguments: str, partition: str | None = "1x1", cache: bool = False) -> pytest.RunResult:
        # The outer run's faulthandler stays as it is.
        words = (*_options(cache), "-p", "no:faulthandler", *_chosen(partition), *arguments)
        result = pytester.runpytest_inprocess(*words, plugins=[imported])
        sys.modules.update(imported.modules)
        return result

    return run_pytest


_INSPECTED = ("HWLOC_SYNTHETIC", "HWLOC_THISSYSTEM", "STARPULLM_LIB")


@cache
def _inspected(*_: str | None) -> dict[str, Any]:
    return _MACHINE()


@pytest.fixture
def run_apart(pytester: pytest.Pytester, job: None, settings: None) -> Run:
    """Return a function that runs pytest in a process of its own."""

    def run_pytest(*arguments: str, partition: str | None = "1x1") -> pytest.RunResult:
        return pytester.runpytest_subprocess(*_options(), *_chosen(partition), *arguments, timeout=90)

    return run_pytest


@pytest.fixture
def run_ranks(pytester: pytest.Pytester, job: None, settings: None) -> Run:
    """Return a function that runs pytest on two ranks, each of which has one core."""

    def run_pytest(*arguments: str, over_ranks: bool = True, timeout: float = 90) -> pytest.RunResult:
        base = f"--basetemp={pytester.path / 'base'}"
        together = ("--starpullm-over-ranks",) if over_ranks else ()
        options = (*_options(), base, "--color=no", "--with-mpi", *together)
        command = (*mpirun(), sys.executable, "-m", "pytest", *options, *arguments)
        return pytester.run(*command, timeout=timeout)

    return run_pytest


def mpirun() -> tuple[str, ...]:
    """The words that start two ranks."""
    root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    return ("mpirun", "-n", "2", "--oversubscribe", "--bind-to", "none", *root)


def _chosen(partition: str | None) -> tuple[str, ...]:
    return () if partition is None else ("--starpullm-partition", partition)


def _options(cache: bool = False) -> tuple[str, ...]:
    return (*load_plugin(), *(() if cache else ("-p", "no:cacheprovider")), *UNUSED, "-W", "error")
