"""What each operation of a trainer leaves that is repeated; the suite repeats steps, whole trainers and runtimes.

What is refused is looked at once, in its own test: see `nothing_left`.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from starpullm.binding.library import find_library
from starpullm.checks.leaks import OBJECTS_KEPT_EARLY, find_growth
from starpullm.checks.observer import Observer
from starpullm.checks.result import Finding
from starpullm.errors import (
    StateError,
)
from starpullm.instruments import Instruments
from starpullm.predict.plan import make_plan
from starpullm.resume import training_state
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer

from .sizes import MODEL, B, T, batch


class Bench:
    """What operations are repeated on: a trainer that is traced, and a folder."""

    def __init__(self, runtime: Runtime, train: Callable[..., Trainer], trainer: Trainer, folder: Path) -> None:
        self.runtime, self.train, self.trainer, self.folder = runtime, train, trainer, folder

    def submit(self) -> None:
        self.trainer.submit(*batch(0))

    def submit_and(self, call: Callable[[], object]) -> None:
        self.submit()
        call()

    def traced(self, call: Callable[[], object]) -> None:
        call()
        self.trainer.clear_trace()

    def save_while_training(self) -> None:
        self.submit()
        self.trainer.save_state(self.folder / "states", keep=1)
        self.submit()
        self.traced(self.trainer.wait_saved)

    def hold_and(self, let_go: Callable[[Observer], object]) -> None:
        observer = Observer(self.trainer)
        observer.hold()
        self.submit()
        try:
            let_go(observer)
        finally:
            self.trainer.wait()
            self.trainer.clear_trace()

    def refused(self, call: Callable[[], object]) -> None:
        with pytest.raises(StateError):
            call()

    def observe(self, instruments: Instruments) -> None:
        with self.train(trace=True, instruments=instruments) as trainer:
            trainer.submit(*batch(0))
            Observer(trainer).findings()

    def open(self, **options: Any) -> None:
        self.train(**options).close()


Operation = Callable[[Bench], object]

OPERATIONS: Mapping[str, Operation] = {
    "an evaluation": lambda setting: setting.traced(partial(setting.trainer.evaluate, *batch(0))),
    "a forward pass": lambda setting: setting.traced(partial(setting.trainer.probabilities, batch(0)[0], 0, 0)),
    "a step whose loss nobody reads": lambda setting: setting.traced(setting.submit),
    "a trace": lambda setting: setting.traced(lambda: setting.submit_and(setting.trainer.trace)),
    "reading gradients": lambda setting: setting.traced(
        lambda: setting.submit_and(lambda: setting.trainer.tensor("grads", "qkvw"))
    ),
    "a checkpoint": lambda setting: setting.trainer.save_checkpoint(setting.folder / "model.bin"),
    "a state that is saved while steps are in flight": lambda setting: setting.save_while_training(),
}
"""Those that several ranks do together."""

OF_ONE_RANK: Mapping[str, Operation] = {
    "tasks held back": lambda setting: setting.hold_and(Observer.release),
    "held tasks that are waited for": lambda setting: setting.hold_and(lambda _: setting.trainer.wait()),
    "a description of a state": lambda setting: training_state(setting.folder / "good"),
    "a description of a folder whose newest state is damaged": lambda setting: training_state(
        setting.folder / "passed-over"
    ),
    "a resumed trainer": lambda setting: setting.open(resume=setting.folder / "good"),
    "a trace that is refused while tasks are held": lambda setting: setting.hold_and(
        lambda _: setting.refused(setting.trainer.trace)
    ),
    "a second runtime, which is refused": lambda setting: setting.refused(Runtime),
    "a plan": lambda setting: make_plan(MODEL, batch_size=B, seq_len=T, sub_batches=1, ranks=2, reduction="tree"),
    "a trainer": lambda setting: setting.open(),
    "a poisoned trainer": lambda setting: setting.observe(Instruments(poison=True)),
    "a delayed trainer": lambda setting: setting.observe(Instruments(max_delay_us=1)),
    "an audited trainer": lambda setting: setting.observe(Instruments(audit=True)),
}

WITHOUT_ALLOCATIONS = ("a checkpoint", "a second runtime, which is refused")


@pytest.fixture(scope="module")
def bench(runtime: Runtime, train: Callable[..., Trainer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("growth")
    if runtime.comm is not None:
        with train(reduction="ordered", trace=True) as trainer:
            yield Bench(runtime, train, trainer, Path(runtime.comm.bcast(str(folder))))
        return
    with train(sub_batches=2, reduction="ordered", trace=True) as trainer:
        trainer.save_state(folder / "good")
        trainer.wait_saved()
        shutil.copytree(folder / "good", folder / "passed-over")
        newest = folder / "passed-over" / "step-999999999999"
        newest.mkdir()
        (newest / "rank-00000-of-00001.state").touch()
        yield Bench(runtime, train, trainer, folder)


@pytest.fixture(scope="module")
def frozen_objects(bench: Bench) -> Iterator[None]:
    """Looking for unreachable objects, which is done for each operation, is fast."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


one_rank = pytest.mark.child("growth", preloads="allocations")


@one_rank
@pytest.mark.parametrize("name", [*OPERATIONS, *OF_ONE_RANK])
def test_operation_leaves_nothing(bench: Bench, frozen_objects: None, name: str) -> None:
    operation = {**OPERATIONS, **OF_ONE_RANK}[name]
    found = find_growth_of(partial(operation, bench))
    assert found["findings"] == []
    assert found["compared"] > 0 or name in WITHOUT_ALLOCATIONS


@pytest.mark.child("growth over ranks", ranks=2, preloads="allocations")
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_of_ranks_leaves_nothing(bench: Bench, frozen_objects: None, name: str) -> None:
    """No rank is ahead of the other one after an operation.

    StarPU-MPI and MPI have pools that may grow in so few repetitions, for messages of ranks that are ahead.
    """
    comm = bench.runtime.comm
    assert comm is not None

    def together() -> None:
        OPERATIONS[name](bench)
        comm.Barrier()

    found = find_growth_of(together, warm_up=2, repetitions=6, renewals=1)
    assert of_library(found["findings"]) == []


def find_growth_of(
    call: Callable[[], object], *, warm_up: int = 3, repetitions: int = 10, renewals: int = 3
) -> dict[str, Any]:
    """Return what ``find_growth`` finds of a few calls."""

    def repeat(count: int) -> None:
        for _ in range(count):
            call()

    times = {"warm_up": warm_up, "repetitions": repetitions, "renewals": renewals}
    return find_growth("times", repeat, **times, objects_kept=OBJECTS_KEPT_EARLY)


def of_library(leaks: Sequence[Finding]) -> list[Finding]:
    """Return the leaks but those of other modules: what the library allocates, by itself or through the C library."""
    starts = (f"{find_library().name}, ", "libc.", "objects ", "file ", "threads")
    return [leak for leak in leaks if leak.sentence.startswith(starts)]
