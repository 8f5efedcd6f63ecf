"""Memory: the check of growth names what leaks, and failures leak nothing."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import pytest

from starpullm.binding import allocations
from starpullm.checks import leaks
from starpullm.checks.leaks import find_growth
from starpullm.checks.result import Finding
from starpullm.errors import OutOfMemoryError, StarpullmError, StateError

from .children import run_function
from .limits.scarcity import Operation, fail_each
from .limits.test_growth import of_library


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes a shared library from a source of this directory."""
    directory = tmp_path_factory.mktemp("libraries")

    def compile_source(name: str) -> Path:
        source, library = Path(__file__).with_name(name), (directory / name).with_suffix(".so")
        options = "-std=gnu11 -O2 -Wall -Werror -fPIC -shared".split()
        subprocess.run(["cc", *options, source, "-o", library, "-ldl", "-lpthread"], check=True, timeout=60)
        return library

    return compile_source


# ---- The check finds what leaks ----

REPETITIONS = 50

CASES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("frees", "frees_two_calls_later", "grows_once", "frees_in_another_thread"), ()),
    **{
        f"leaks_{name}": (f"leaking_library.so, leaks_{name}: {left} of 50 repetitions",)
        for name, left in {
            "malloc": "16 bytes a repetition, 50 left",
            "calloc": "16 bytes a repetition, 50 left",
            "realloc": "16 bytes a repetition, 50 left",
            "aligned": "64 bytes a repetition, 50 left",
            "mapping": "4096 bytes a repetition, 50 left",
            "every_tenth_time": "1.6 bytes a repetition, 5 left",
        }.items()
    },
    "leaks_in_libc": ("libc.so.6, *strndup*: 16 bytes a repetition, 50 left of 50 repetitions",),
    "leaks_descriptor": ("file descriptors: 50 left of 50 repetitions",),
    "leaks_thread": ("*: * bytes a repetition, 50 left of 50 repetitions", "threads: 50 left of 50 repetitions"),
}
"""Functions of leaking_library.c, and patterns of the leaks that have to be found."""


def find_leaks(library: str) -> dict[str, list[str]]:
    """Return the leaks of each function of the library, which is the one under test."""
    own = ctypes.CDLL(library)
    kept: list[object] = []
    leaks.FREEING_SECONDS = 0.1  # no worker is about to free anything

    def check(function: Callable[[], object]) -> list[str]:
        def repeat(count: int) -> None:
            for _ in range(count):
                function()

        found = find_growth("calls", repeat, warm_up=10, repetitions=REPETITIONS, renewals=5)
        assert (found["compared"] > 0) == (function is not own.allocates_nothing)
        return [leak.sentence for leak in found["findings"]]

    found = {name: check(getattr(own, name)) for name in CASES}

    def keep_objects() -> None:
        own.frees()
        kept.extend(object() for _ in range(3))

    found["objects"] = check(keep_objects)
    found["nothing"] = check(own.allocates_nothing)
    in_libc = [Finding(leak) for leak in found["leaks_in_libc"]]
    assert of_library([*in_libc, Finding("libstarpu-1.4.so, pool: 16 bytes")]) == in_libc
    return found


@pytest.fixture(scope="module")
def found_leaks(compiled: Callable[[str], Path]) -> dict[str, list[str]]:
    library = compiled("leaking_library.c")
    environment = {**allocations.preloading(), "STARPULLM_LIB": str(library)}
    found: dict[str, list[str]] = run_function(find_leaks, library, environment=environment)
    return found


def test_an_allocator_that_maps_memory_with_its_lock_held(
    compiled: Callable[[str], Path], found_leaks: dict[str, list[str]]
) -> None:
    """It calls the counting functions while it allocates; what leaks is the same."""
    library = compiled("leaking_library.c")
    environment = {**allocations.preloading(compiled("mapping_allocator.c")), "STARPULLM_LIB": str(library)}
    found: dict[str, list[str]] = run_function(find_leaks, library, environment=environment)
    assert found == found_leaks


@pytest.mark.parametrize("name", CASES)
def test_what_leaks_is_named_with_its_size(found_leaks: dict[str, list[str]], name: str) -> None:
    leaks, patterns = found_leaks[name], CASES[name]
    assert len(leaks) == len(patterns), leaks
    assert all(map(fnmatchcase, leaks, patterns)), leaks


def test_objects_of_python_that_are_kept_are_found(found_leaks: dict[str, list[str]]) -> None:
    (leak,) = found_leaks["objects"]
    assert leak.startswith("objects of Python: 15")


# ---- An allocation fails ----


def fail_allocations(library: str) -> dict[str, tuple[int, list[str]]]:
    """Return for two functions how many of their allocations failed, and what was found."""
    own = ctypes.CDLL(library)
    leaks.FREEING_SECONDS = 0.1
    told: dict[str, type[StarpullmError]] = {"leaks_if_refused": OutOfMemoryError, "tells_otherwise": StateError}

    def call(name: str, opened: None) -> None:
        if not getattr(own, name)():
            raise told[name]("told")

    return {name: fail_each(Operation(nullcontext, partial(call, name))) for name in told}


def test_faults_when_an_allocation_fails_are_found(compiled: Callable[[str], Path]) -> None:
    """Of two allocations, which fail in turn."""
    library = compiled("leaking_library.c")
    environment = {**allocations.preloading(), "STARPULLM_LIB": str(library)}
    found = run_function(fail_allocations, library, environment=environment)
    number, [leak] = found["leaks_if_refused"]
    assert number == 2
    assert fnmatchcase(leak, "*left 1 allocations: leaking_library.so, leaks_if_refused*: 16 bytes")
    number, faults = found["tells_otherwise"]
    assert (number, len(faults)) == (2, 2)
    assert all(fnmatchcase(fault, "*expected OutOfMemoryError, found StateError: told") for fault in faults)
