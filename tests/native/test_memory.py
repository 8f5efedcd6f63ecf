"""Memory: the real model stays below llm.c's; the check of growth names what leaks; and failures leak nothing.

Collected by pytest; the runs are in child processes, which preload what counts allocations.
"""

from __future__ import annotations

import ctypes
import subprocess
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from starpullm.binding import allocations
from starpullm.binding.library import find_library
from starpullm.checks import memory
from starpullm.checks.memory import check_growth
from starpullm.data.generator import generate_tokens
from starpullm.errors import OutOfMemoryError
from starpullm.golden.records import shipped_record
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer

from .children import TWO_CORES, Reply, attempt, run_function, run_python

# llm.c at B = 4, T = 64.
LLMC_RESIDENT_BYTES = 2.6e9

REAL_SIZE = """
import resource, sys
from pathlib import Path
from starpullm import Runtime, Trainer
from starpullm.data.generator import generate_checkpoint, generate_tokens
from starpullm.golden.records import shipped_record

record = shipped_record("gpt2-124m")
checkpoint = Path(sys.argv[1]) / "model.bin"
generate_checkpoint(checkpoint, record.model, record.seed)
with Runtime("2x1") as runtime, Trainer(runtime, checkpoint, batch_size=4, seq_len=64, sub_batches=2) as trainer:
    for step in range(2):
        loss = trainer.submit(*generate_tokens(record.seed, step, 4, 64, record.model.vocab_size))
    trainer.wait()
    checkpoint.unlink()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.timeout(240)
def test_gpt2_124m_is_below_llmc(tmp_path: Path) -> None:
    peak = int(run_python(REAL_SIZE, tmp_path, timeout=220).stdout)
    assert peak < LLMC_RESIDENT_BYTES, f"peak {peak / 1e9:.2f} GB"


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
    "leaks_in_libc": ("libc.so.6, *strdup*: 16 bytes a repetition, 50 left of 50 repetitions",),
    "leaks_descriptor": ("file descriptors: 50 left of 50 repetitions",),
    "leaks_thread": ("*: * bytes a repetition, 50 left of 50 repetitions", "threads: 50 left of 50 repetitions"),
}
"""Functions of leaking_library.c, and patterns of the leaks that have to be found."""


def find_leaks(library: str) -> dict[str, list[str]]:
    """Return the lines of the check for each function of the library; the library under test is this one."""
    own = ctypes.CDLL(library)
    kept: list[object] = []
    memory.FREEING_SECONDS = 0.1  # no worker is about to free anything

    def check(function: Callable[[], object]) -> list[str]:
        def repeat(count: int) -> None:
            for _ in range(count):
                function()

        return check_growth("calls", repeat, warm_up=10, repetitions=REPETITIONS, renewals=5).describe()

    lines = {name: check(getattr(own, name)) for name in CASES}
    lines["objects"] = check(lambda: (own.frees(), kept.extend(object() for _ in range(3))))
    lines["nothing"] = [str(attempt(check, own.allocates_nothing)["text"])]
    return lines


@pytest.fixture(scope="module")
def found_leaks(compiled: Callable[[str], Path]) -> dict[str, list[str]]:
    library = compiled("leaking_library.c")
    environment = {**allocations.preloading(), "STARPULLM_LIB": str(library)}
    found: dict[str, list[str]] = run_function(find_leaks, library, environment=environment)
    return found


@pytest.mark.parametrize("name", CASES)
def test_what_leaks_is_named_with_its_size(found_leaks: dict[str, list[str]], name: str) -> None:
    first, *leaks = (line.strip() for line in found_leaks[name])
    patterns = CASES[name]
    assert len(leaks) == len(patterns), leaks
    assert all(map(fnmatchcase, leaks, patterns)), leaks
    outcome = "failed" if patterns else "passed"
    assert first == "; ".join([f"memory growth: {outcome}: {len(leaks)} leaks in 50 calls", *leaks[:1]])


def test_objects_of_python_that_are_kept_are_found(found_leaks: dict[str, list[str]]) -> None:
    _, leak = found_leaks["objects"]
    assert leak.strip().startswith("objects of Python: 15")


def test_a_library_that_allocated_nothing_was_not_checked(found_leaks: dict[str, list[str]]) -> None:
    assert found_leaks["nothing"] == ["memory growth: nothing was compared: 0 leaks in 50 calls"]


# ---- An allocation fails ----

TINY = shipped_record("tiny")


def fail_each_allocation(checkpoint: str, shim: str) -> list[tuple[Reply, int]]:
    """Let every allocation of creating a trainer fail, each in a creation of its own, then those of a step.

    Return how each went, and how many of the library's allocations were left.
    """
    fail_allocation = ctypes.CDLL(shim).fail_allocation
    fail_allocation.argtypes, fail_allocation.restype = [ctypes.c_long], ctypes.c_long
    batch = generate_tokens(TINY.seed, 0, TINY.batch_size, TINY.seq_len, TINY.model.vocab_size)
    tries: list[tuple[Reply, int]] = []

    def open_trainer(runtime: Runtime) -> Trainer:
        sizes = {"batch_size": TINY.batch_size, "seq_len": TINY.seq_len}
        return Trainer(runtime, checkpoint, **sizes, sub_batches=2, trace=True)

    def fails_at(number: int, runtime: Runtime, what: str) -> bool:
        allocations.start()
        trainer = open_trainer(runtime) if what == "step" else None
        fail_allocation(number)
        reply = attempt(trainer.step, *batch) if trainer else attempt(lambda: open_trainer(runtime).close())
        not_reached = fail_allocation(0)
        if trainer:
            trainer.close()
        allocations.stop()
        tries.append((reply, left_allocations()))
        return not_reached == 0

    with Runtime() as runtime:
        with open_trainer(runtime) as trainer:
            trainer.step(*batch)
        for what in ("creation", "step"):
            number = 1
            while fails_at(number, runtime, what):
                number += 1
    return tries


def left_allocations() -> int:
    """Return how many of the library's allocations are left, when workers have had time to free theirs."""
    own, deadline = str(find_library()), time.monotonic() + 2
    while True:
        left = sum(site.live for site in allocations.sites() if site.module == own)
        if left == 0 or time.monotonic() > deadline:
            return left
        time.sleep(0.001)


@pytest.fixture(scope="module")
def failed_allocations(tiny_checkpoint: Path, compiled: Callable[[str], Path]) -> list[tuple[Reply, int]]:
    shim = compiled("failing_allocation.c")
    preloaded = f"{shim}:{allocations.preloading()['LD_PRELOAD']}"
    environment = {**TWO_CORES, "LD_PRELOAD": preloaded}
    return run_function(fail_each_allocation, tiny_checkpoint, shim, environment=environment)


def test_an_allocation_that_fails_is_reported_and_leaks_nothing(failed_allocations: list[tuple[Reply, int]]) -> None:
    """So neither does a loss whose step can't be submitted."""
    refused = [reply for reply, _ in failed_allocations if reply["raised"] is not None]
    succeeded = len(failed_allocations) - len(refused)
    assert succeeded == 2
    assert len(refused) > 100
    assert {reply["raised"] for reply in refused} == {OutOfMemoryError.__name__}
    assert [(reply, left) for reply, left in failed_allocations if left] == []
    assert any("a loss could not be allocated" in reply["text"] for reply in refused)
    assert any("a task of encoder_forward" in reply["text"] for reply in refused)
