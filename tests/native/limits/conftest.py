"""A runtime in a child, and what tests do with it: models, trainers, batches, folders."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from starpullm.binding import allocations, prototypes, structs
from starpullm.checks.leaks import left_allocations
from starpullm.processes.rank_wrapper import rank_and_size_from_environment
from starpullm.processes.ranks import world
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer

from ...pytest_in_child import Children
from .sizes import B, T, batch


def pytest_configure(config: pytest.Config) -> None:
    Children.register(config)


@pytest.fixture(scope="session")
def runtime() -> Iterator[Runtime]:
    """One worker; of as many ranks as the child has."""
    _, ranks = rank_and_size_from_environment()
    with Runtime("1x1", "lws", world() if ranks > 1 else None) as runtime:
        yield runtime


@pytest.fixture(scope="session")
def scratch_memory(train: Callable[..., Trainer]) -> None:
    """Let the workers have the memory that they keep from their first step on."""
    with train() as trainer:
        trainer.step(*batch(0))


@pytest.fixture
def nothing_left(scratch_memory: None) -> Iterator[None]:
    """Fail if a test leaves memory of the library's, open files or threads; what outlives it has to be open before."""
    before = _open_files_and_threads()
    allocations.start()
    yield
    allocations.stop()
    assert left_allocations() == ""
    deadline = time.monotonic() + 1  # a thread that was joined may be listed for a moment
    while _open_files_and_threads() != before and time.monotonic() < deadline:
        time.sleep(0.001)
    assert _open_files_and_threads() == before


def _open_files_and_threads() -> tuple[int, int]:
    files, threads = (len(list(Path("/proc/self", kind).iterdir())) for kind in ("fd", "task"))
    return files, threads


@pytest.fixture(scope="session")
def train(runtime: Runtime, tiny_checkpoint: Path) -> Callable[..., Trainer]:
    """Return a function from options to a trainer of tiny, with two steps in flight."""
    defaults = {"batch_size": B, "seq_len": T, "steps_in_flight": 2, "keep_activations": False}

    def open_trainer(**options: Any) -> Trainer:
        checkpoint = None if "resume" in options else tiny_checkpoint
        return Trainer(runtime, checkpoint, **{**defaults, **options})

    return open_trainer


@pytest.fixture(scope="session")
def create_in_c(runtime: Runtime, tiny_checkpoint: Path) -> Callable[..., None]:
    """Return a function that opens a session with ``struct starpullm_session_options`` as it is given, and closes it.

    What isn't given is as in tiny's record.
    """
    given: dict[str, Any] = {"batch_size": B, "seq_len": T, "sub_batches": 1, "steps_in_flight": 1}
    given |= {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.9}
    given["checkpoint"] = prototypes.c_string("checkpoint", tiny_checkpoint)

    def create(**members: Any) -> None:
        options = structs.new("session_options", **{**given, **members})
        handle = structs.Handle("session")
        prototypes.call("session_create", runtime._handle, options, handle.address)
        prototypes.call("session_destroy", handle.address)

    return create
