"""The library with seeded defects, and the table of who caught what.

pytest loads it for this directory's tests. Without ``-m mutation`` only a spread of the defects is tried.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from starpullm.processes.lock import machine_lock

from .expected import EXPECTED, SPREAD
from .table import Table
from .test_alarms import QUICK_PART

NATIVE = Path(__file__).parents[2] / "native"
BUILD_SECONDS = 300.0

TABLE = pytest.StashKey[Table]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TABLE] = Table()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "mutation" in config.option.markexpr:
        return
    left_out = [item for item in items if Path(__file__).parent in item.path.parents and not is_quick(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def is_quick(item: pytest.Item) -> bool:
    """Whether a test is for every run."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return (
        "families" not in parameters
        and parameters.get("defect", SPREAD[0]) in SPREAD
        and parameters.get("part", QUICK_PART) == QUICK_PART
    )


@pytest.fixture(scope="session")
def defective_library(request: pytest.FixtureRequest) -> Path:
    """``--starpullm-lib``, or else what is built here."""
    chosen = request.config.getoption("--starpullm-lib")
    if chosen:
        return Path(request.config.invocation_params.dir, chosen)
    for command in (
        ["cmake", "--preset", "defects"],
        ["cmake", "--build", "--preset", "defects", "--target", "starpullm", "--parallel", "2"],
    ):
        with machine_lock():  # two at a time would write the same files
            run = subprocess.run(
                command, cwd=NATIVE, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
            )
        assert run.returncode == 0, f"{' '.join(command)}\n{run.stdout}{run.stderr}"
    return NATIVE.parent / ".cache" / "build" / "defects" / "libstarpullm.so"


@pytest.fixture(scope="session")
def table(request: pytest.FixtureRequest) -> Table:
    """What the run's tests fill."""
    return request.config.stash[TABLE]


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    table, results = config.stash[TABLE], config.getoption("--mutation-results")
    if not table.is_empty:
        terminalreporter.section("seeded defects", "=")
        for line in table.lines():
            terminalreporter.line(line)
    if results is not None:
        table = table.merged_into(Path(config.invocation_params.dir, results))
    page = config.getoption("--mutation-table")
    if page is not None:
        Path(config.invocation_params.dir, page).write_text(table.markdown(list(EXPECTED)), "utf-8")
        terminalreporter.line(f"written to {page}")
