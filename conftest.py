"""Settings that all tests share; pytest reads it first."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

import starpullm
from starpullm.processes.lock import LOCK_VARIABLE

CHECKOUT = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of evaluation/mutation and tests/native: pytest takes them from this file only; and a short name."""
    parser.addoption(
        "--benchmark", dest="starpullm_benchmark", action="store_true", default=None, help="as --starpullm-benchmark"
    )
    parser.getgroup("fuzzing", "damaged files").addoption(
        "--fuzz-files",
        metavar="N",
        type=int,
        default=6_000,
        help="how many mutated files tests/native/test_fuzzing.py reads, the same in every run; default 6000",
    )
    group = parser.getgroup("mutation", "seeded defects")
    group.addoption(
        "--mutation-patches",
        metavar="DIR",
        help="try every patch in this directory, instead of those in evaluation/mutation; see docs/contributing.md",
    )
    group.addoption(
        "--mutation-repetitions",
        metavar="N",
        type=int,
        default=1,
        help="how often all checks are repeated on a library without a defect; default 1",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers of evaluation/mutation and tests/cluster, and refuse a package that has no library.

    ``python -m pytest`` makes Python look for modules in the current folder first. There it finds the checkout's
    package, which has no library. Whoever names the checkout in PYTHONPATH has chosen it.
    """
    package = Path(starpullm.__file__).parents[1]
    chosen = [Path(path).resolve() for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if package == CHECKOUT and CHECKOUT not in chosen and not os.environ.get("STARPULLM_LIB"):
        raise pytest.UsageError(
            f"{package}: the checkout's starpullm was imported, which has no library, expected the installed one: run "
            "`pytest`, or `python -P -m pytest`"
        )
    config.addinivalue_line("markers", "mutation: the checks catch a seeded defect")
    config.addinivalue_line("markers", "slurm: runs jobs on a Slurm cluster of this machine; skipped if there is none")


@pytest.fixture(scope="session", autouse=True)
def lock_of_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give each worker of pytest-xdist a lock of its own: they are two, and no test expects a speed."""
    with pytest.MonkeyPatch.context() as patch:
        if "PYTEST_XDIST_WORKER" in os.environ and LOCK_VARIABLE not in os.environ:
            patch.setenv(LOCK_VARIABLE, str(tmp_path_factory.mktemp("lock") / "lock"))
        yield


@pytest.fixture(scope="session", autouse=True)
def starpu_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep StarPU's calibration files out of the user's home."""
    with pytest.MonkeyPatch.context() as patch:
        if "STARPU_HOME" not in os.environ:
            patch.setenv("STARPU_HOME", str(tmp_path_factory.mktemp("starpu")))
        yield


@pytest.fixture
def memory_group() -> Iterator[Path | None]:
    """Make a control group with 400 MB of memory; None where that isn't allowed."""
    name = f"starpullm-{uuid.uuid4().hex}"
    for group, limit in (
        (Path("/sys/fs/cgroup/memory", name), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup", name), "memory.max"),
    ):
        with suppress(OSError):
            group.mkdir()
            try:
                if (group / limit).exists():
                    (group / limit).write_text(str(400 * 2**20))
                    yield group
                    return
            finally:
                group.rmdir()
    yield None


@pytest.fixture(scope="session")
def llmc_stand_in(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function from seeded defects to a shared object that stands in for llm.c's and has them."""
    directory = tmp_path_factory.mktemp("llmc")
    source = CHECKOUT / "tests" / "native" / "llmc_stand_in.c"
    options = "-std=gnu11 -O2 -ffp-contract=off -fPIC -shared -Wall -Werror -Wno-unused-function".split()
    options += [f"-I{CHECKOUT / 'native'}", f"-I{CHECKOUT / 'native' / 'src'}"]

    @cache
    def compile_with(*defects: str) -> Path:
        library = directory / f"{'-'.join(defects) or 'whole'}.so"
        macros = [f"-DSTAND_IN_{defect}" for defect in defects]
        subprocess.run(["cc", *options, *macros, source, "-o", library, "-lm"], check=True, timeout=60)
        return library

    return compile_with
