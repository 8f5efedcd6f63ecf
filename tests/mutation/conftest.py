"""Which patches are tried, the libraries with them, and the table of which check caught what.

pytest loads it for this directory's tests. Without ``-m mutation`` only the patches with ``Quick: yes`` are tried, of
a directory that ``--mutation-patches`` names all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from starpullm.processes.lock import machine_lock

from .mutants import Builder, Change, Mutant
from .patches import FIELD, SHIPPED, Patch, PatchError, find_patches, read_patch
from .table import Table

TABLE = pytest.StashKey[Table]()
PATCHES = pytest.StashKey[list[Path]]()
WORKER_RESULTS = "starpullm.mutation"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TABLE] = Table()
    directory = config.getoption("--mutation-patches")
    try:
        folders = [Path(config.invocation_params.dir, directory)] if directory else [SHIPPED, FIELD]
        config.stash[PATCHES] = [path for folder in folders for path in find_patches(folder)]
    except PatchError as error:
        raise pytest.UsageError(f"--mutation-patches: {error}") from error


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "patch_path" in metafunc.fixturenames:
        paths = metafunc.config.stash[PATCHES]
        metafunc.parametrize("patch_path", paths, ids=[path.stem for path in paths])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "mutation" in config.option.markexpr:
        return
    left_out = [item for item in items if Path(__file__).parent in item.path.parents and not is_quick(item, config)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def is_quick(item: pytest.Item, config: pytest.Config) -> bool:
    """Whether a test runs without ``-m mutation``."""
    if item.get_closest_marker("mutation") is None:
        return True
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    if "patch_path" in parameters:
        return config.getoption("--mutation-patches") is not None or quick_or_broken(parameters["patch_path"])
    return not {"part", "families"} & set(parameters)  # the suite has the same checks of the installed library


def quick_or_broken(path: Path) -> bool:
    """Whether every run tries a patch; one with a broken header too, whose test then says what is wrong with it."""
    try:
        return read_patch(path).is_quick
    except PatchError:
        return True


@pytest.fixture
def patch(patch_path: Path) -> Patch:
    """One of the patches."""
    try:
        return read_patch(patch_path)
    except PatchError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """The library without a defect, from this checkout's sources, and what is built from its objects."""
    with machine_lock():  # two at a time would write the same files
        return Builder(tmp_path_factory.mktemp("mutants"))


@pytest.fixture(scope="session")
def build(builder: Builder) -> Callable[[Change], Mutant]:
    """Return a function that builds the library with a change."""

    def build_alone(change: Change) -> Mutant:
        with machine_lock():  # compilers would disturb what others measure
            return builder.build(change)

    return build_alone


@pytest.fixture(scope="session")
def table(request: pytest.FixtureRequest) -> Table:
    """What the run's tests fill."""
    return request.config.stash[TABLE]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker of pytest-xdist: send the results to the process that prints them."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[WORKER_RESULTS] = session.config.stash[TABLE].values()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the results of a worker; one that has crashed sends none."""
    values = getattr(node, "workeroutput", {}).get(WORKER_RESULTS)
    if values is not None:
        node.config.stash[TABLE].add_values(values)


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    table, results = config.stash[TABLE], config.getoption("--mutation-results")
    if not table.is_empty:
        terminalreporter.section("seeded defects", "=")
        for line in table.lines():
            terminalreporter.line(line)
    if results is not None:
        table.merge_into(Path(config.invocation_params.dir, results))
