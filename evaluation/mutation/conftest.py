"""Which patches are tried, the libraries with them, and the list of which check caught what.

Without ``-m mutation`` only the patches with ``Quick: yes`` are tried, of
a directory that ``--mutation-patches`` names all of them.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from starpullm.processes.lock import machine_lock

from .laboratory import FOUND, SECONDS
from .mutants import BUILD, Builder, Change
from .patches import FIELD, SHIPPED, Patch, PatchError, find_patches, read_patch

PATCHES = pytest.StashKey[list[Path]]()


def pytest_configure(config: pytest.Config) -> None:
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
    BUILD.parent.mkdir(parents=True, exist_ok=True)
    with (BUILD.parent / "mutants.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the workers of pytest-xdist, which have machine locks of their own, share it
        return Builder(tmp_path_factory.mktemp("mutants"))


@pytest.fixture(scope="session")
def build(builder: Builder) -> Callable[[Change], Path]:
    """Return a function that builds the library with a change."""

    def build_alone(change: Change) -> Path:
        with machine_lock():  # compilers would disturb what others measure
            return builder.build(change)

    return build_alone


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.getreports(outcome)]
    found = [dict(report.user_properties) for report in reports if report.when == "call"]
    found = [properties for properties in found if FOUND in properties]
    if found:
        terminalreporter.section("seeded defects and false alarms", "=")
        for properties in found:
            terminalreporter.line(properties[FOUND])
        seconds = [properties[SECONDS] for properties in found]
        terminalreporter.line(f"the median of {len(seconds)} took {median(seconds):.1f} s")
