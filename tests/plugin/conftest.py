"""A pytest to run with the plugin, and the certainty that nothing of it is left running.

pytest loads it for this directory's tests.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from starpullm.processes.job import JOB_VARIABLE, processes_of
from starpullm.processes.lock import LOCK_VARIABLE

from ..pytest_children import UNUSED, load_plugin

pytest_plugins = ["pytester"]

Run = Callable[..., pytest.RunResult]


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
def run(pytester: pytest.Pytester, job: None, settings: None) -> Run:
    """Return a function that runs pytest in a process of its own, on one partition unless told otherwise."""

    def run_pytest(
        *arguments: str, partition: str | None = "1x1", cache: bool = False, timeout: float = 90
    ) -> pytest.RunResult:
        chosen = () if partition is None else ("--starpullm-partition", partition)
        return pytester.runpytest_subprocess(*_options(cache), *chosen, *arguments, timeout=timeout)

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


def _options(cache: bool = False) -> tuple[str, ...]:
    return (*load_plugin(), *(() if cache else ("-p", "no:cacheprovider")), *UNUSED, "-W", "error")
