"""A pytest to run with the plugin, and the certainty that nothing of it is left running.

pytest loads it for this directory's tests.
"""

from __future__ import annotations

import importlib.metadata
import uuid
from collections.abc import Callable

import pytest

from starpullm import launch

pytest_plugins = ["pytester"]

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs pytest in a process of its own, on one partition unless told otherwise."""
    name = f"test-{uuid.uuid4().hex}"
    monkeypatch.setenv(launch.JOB_VARIABLE, name)
    # Neither the current directory nor the checkout may hide the installed package.
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("HWLOC_SYNTHETIC", "numa:1 core:2 pu:1")
    # The checkout's starpullm, if PYTHONPATH names it, isn't there to be found by its entry point.
    plugins = {entry.value for entry in importlib.metadata.entry_points(group="pytest11")}
    load = () if "starpullm.pytest_plugin" in plugins else ("-p", "starpullm.pytest_plugin")

    def run_pytest(*arguments: str, partition: str | None = "1x1", timeout: float = 90) -> pytest.RunResult:
        chosen = () if partition is None else ("--starpullm-partition", partition)
        result = pytester.runpytest_subprocess(
            *load, "-p", "no:cacheprovider", "-W", "error", *chosen, *arguments, timeout=timeout
        )
        assert launch.processes_of(name) == []
        return result

    return run_pytest
