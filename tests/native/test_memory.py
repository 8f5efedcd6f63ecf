"""Memory: the check of growth names what leaks, and failures leak nothing."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from starpullm.binding import allocations
from starpullm.checks import memory
from starpullm.checks.memory import find_growth
from starpullm.errors import OutOfMemoryError, StarpullmError, StateError

from .children import attempt, run_function
from .limits.operations import find_growth_of_each
from .limits.scarcity import Operation, fail_each
from .limits.statements import judged


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


def lines_of(growth: dict[str, Any]) -> list[str]:
    """Return the verdict, then the leaks."""
    result = judged(check="growth", unit="allocations", fault="memory is left", **growth)
    return [result.lines()[0], *(finding.sentence for finding in result.findings)]


def find_leaks(library: str) -> dict[str, list[str]]:
    """Return the lines of the check for each function of the library; the library under test is this one."""
    own = ctypes.CDLL(library)
    kept: list[object] = []
    memory.FREEING_SECONDS = 0.1  # no worker is about to free anything

    def check(function: Callable[[], object]) -> list[str]:
        def repeat(count: int) -> None:
            for _ in range(count):
                function()

        return lines_of(find_growth("calls", repeat, warm_up=10, repetitions=REPETITIONS, renewals=5))

    lines = {name: check(getattr(own, name)) for name in CASES}

    def keep_objects() -> None:
        own.frees()
        kept.extend(object() for _ in range(3))

    lines["objects"] = check(keep_objects)
    named = {"one that leaks": own.leaks_malloc, "one that frees": own.frees}
    lines["operations"] = lines_of(find_growth_of_each(named))
    named = {"a copy": own.leaks_in_libc, "one that frees": own.frees}
    lines["pools"] = lines_of(find_growth_of_each(named, pools=True))
    lines["nothing"] = [str(attempt(check, own.allocates_nothing)["text"])]
    return lines


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
    first, *leaks = found_leaks[name]
    patterns = CASES[name]
    assert len(leaks) == len(patterns), leaks
    assert all(map(fnmatchcase, leaks, patterns)), leaks
    assert first.startswith("growth: failed: memory is left (" if patterns else "growth: passed: ")
    assert first.endswith("; ".join([f": {leaks[0]}" if leaks else " allocations compared", "50 calls"]))


def test_objects_of_python_that_are_kept_are_found(found_leaks: dict[str, list[str]]) -> None:
    _, leak = found_leaks["objects"]
    assert leak.startswith("objects of Python: 15")


def test_a_leak_has_the_name_of_its_operation(found_leaks: dict[str, list[str]]) -> None:
    first, leak = found_leaks["operations"]
    assert first.startswith("growth: failed: memory is left (1 in ")
    assert first.endswith("; 2 operations, 10 times each")
    expected = "one that leaks: leaking_library.so, leaks_malloc*: 16 bytes a repetition, 10 left of 10 repetitions"
    assert fnmatchcase(leak, expected)


def test_pools_of_others_hide_no_leak_through_the_c_library(found_leaks: dict[str, list[str]]) -> None:
    _, leak = found_leaks["pools"]
    assert fnmatchcase(leak, "a copy: libc.so.6, *strndup*: 16 bytes a repetition, 10 left of 10 repetitions")


def test_a_library_that_allocated_nothing_was_not_checked(found_leaks: dict[str, list[str]]) -> None:
    assert found_leaks["nothing"] == ["growth: nothing was compared: 0 allocations compared; 50 calls"]


# ---- An allocation fails ----


def fail_allocations(library: str) -> dict[str, tuple[int, list[str]]]:
    """Return for two functions how many of their allocations failed, and what was found."""
    own = ctypes.CDLL(library)
    memory.FREEING_SECONDS = 0.1
    told: dict[str, type[StarpullmError]] = {"leaks_if_refused": OutOfMemoryError, "tells_otherwise": StateError}

    def call(name: str, opened: None) -> None:
        if not getattr(own, name)():
            raise told[name]("told")

    return {name: fail_each(Operation(name, nullcontext, partial(call, name))) for name in told}


def test_faults_when_an_allocation_fails_are_found(compiled: Callable[[str], Path]) -> None:
    """Of two allocations, which fail in turn."""
    library = compiled("leaking_library.c")
    environment = {**allocations.preloading(), "STARPULLM_LIB": str(library)}
    found = run_function(fail_allocations, library, environment=environment)
    number, [leak] = found["leaks_if_refused"]
    assert number == 2
    assert fnmatchcase(leak, "leaks_if_refused, *left 1 allocations: leaking_library.so, leaks_if_refused*: 16 bytes")
    number, faults = found["tells_otherwise"]
    assert (number, len(faults)) == (2, 2)
    assert all(fnmatchcase(fault, "*expected OutOfMemoryError, found StateError: told") for fault in faults)
