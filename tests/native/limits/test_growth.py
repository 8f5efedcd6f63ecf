"""What each operation of a trainer leaves that is repeated, also of those that are refused.

The suite repeats steps, whole trainers and runtimes.
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
from starpullm.checks.check_context import limited_files
from starpullm.checks.leaks import OBJECTS_KEPT_EARLY, find_growth
from starpullm.checks.observer import Observer
from starpullm.checks.result import Finding
from starpullm.errors import (
    FileError,
    FormatError,
    InvalidArgumentError,
    RuntimeFailureError,
    StarpullmError,
    StateError,
    TokenRangeError,
)
from starpullm.instruments import Instruments
from starpullm.predict.plan import make_plan
from starpullm.resume import training_state
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer

from ..readers.state_file import StateFile
from .sizes import MODEL, B, T, batch


class Bench:
    """What operations are repeated on: two trainers, of which the first is traced, and a folder."""

    def __init__(
        self, runtime: Runtime, train: Callable[..., Trainer], trainers: Sequence[Trainer], folder: Path
    ) -> None:
        self.runtime, self.train, self.folder = runtime, train, folder
        self.trainer, *self.others = trainers

    def submit(self) -> None:
        self.trainer.submit(*batch(0))

    def submit_and(self, call: Callable[[], object]) -> None:
        self.submit()
        call()

    def traced(self, call: Callable[[], object]) -> None:
        call()
        self.trainer.clear_trace()

    def save(self, folder: str) -> None:
        self.trainer.save_state(self.folder / folder)
        self.trainer.wait_saved()

    def save_checkpoint(self, path: str) -> None:
        self.trainer.save_checkpoint(self.folder / path)

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

    def on_a_full_disk(self, save: Callable[[], object]) -> None:
        with limited_files(1024):
            save()

    def observe(self, instruments: Instruments) -> None:
        with self.train(trace=True, instruments=instruments) as trainer:
            trainer.submit(*batch(0))
            Observer(trainer).findings()

    def open(self, **options: Any) -> None:
        self.train(**options).close()

    def open_file(self, name: str) -> None:
        Trainer(self.runtime, self.folder / name, batch_size=B, seq_len=T).close()


Operation = Callable[[Bench], object]

OPERATIONS: Mapping[str, Operation] = {
    "an evaluation": lambda of: of.traced(partial(of.trainer.evaluate, *batch(0))),
    "a forward pass": lambda of: of.traced(partial(of.trainer.probabilities, batch(0)[0], 0, 0)),
    "a step whose loss nobody reads": lambda of: of.traced(of.submit),
    "a trace": lambda of: of.traced(lambda: of.submit_and(of.trainer.trace)),
    "reading gradients": lambda of: of.traced(lambda: of.submit_and(lambda: of.trainer.tensor("grads", "qkvw"))),
    "a checkpoint": lambda of: of.save_checkpoint("model.bin"),
    "a state that is saved while steps are in flight": lambda of: of.save_while_training(),
}
"""Those that several ranks do together."""

OF_ONE_RANK: Mapping[str, Operation] = {
    "tasks held back": lambda of: of.hold_and(Observer.release),
    "held tasks that are waited for": lambda of: of.hold_and(lambda _: of.trainer.wait()),
    "a description of a state": lambda of: training_state(of.folder / "good"),
    "a description of a folder whose newest state is damaged": lambda of: training_state(of.folder / "passed-over"),
    "a resumed trainer": lambda of: of.open(resume=of.folder / "good"),
    "a plan": lambda of: make_plan(MODEL, batch_size=B, seq_len=T, sub_batches=1, ranks=2, reduction="tree"),
    "a trainer": lambda of: of.open(),
    "a poisoned trainer": lambda of: of.observe(Instruments(poison=True)),
    "a delayed trainer": lambda of: of.observe(Instruments(max_delay_us=1)),
    "an audited trainer": lambda of: of.observe(Instruments(audit=True)),
}

REFUSED: Mapping[str, tuple[type[StarpullmError], Operation]] = {
    "a step with tokens out of range": (
        TokenRangeError,
        lambda of: of.trainer.submit(batch(0)[0] + MODEL.vocab_size, batch(0)[1]),
    ),
    "a trace while tasks are held": (StateError, lambda of: of.hold_and(lambda _: of.trainer.trace())),
    "a checkpoint in a missing folder": (FileError, lambda of: of.save_checkpoint("missing/model.bin")),
    "a checkpoint below a file": (FileError, lambda of: of.save_checkpoint("file/model.bin")),
    "a checkpoint in place of a folder": (FormatError, lambda of: of.save_checkpoint("folder")),
    "a checkpoint on a full disk": (FileError, lambda of: of.on_a_full_disk(lambda: of.save_checkpoint("full.bin"))),
    "a state on a full disk": (FileError, lambda of: of.on_a_full_disk(lambda: of.save("full"))),
    "a state in a missing folder": (FileError, lambda of: of.save("missing/states")),
    "a state below a file": (FileError, lambda of: of.save("file")),
    "a state in another run's folder": (FileError, lambda of: of.others[0].save_state(of.folder / "locked")),
    "a state whose file is a folder": (FileError, lambda of: of.save("impossible")),
    "a state of which none is kept": (
        InvalidArgumentError,
        lambda of: of.trainer.save_state(of.folder / "locked", keep=0),
    ),
    "a description of a folder without a state": (FormatError, lambda of: training_state(of.folder / "folder")),
    "a description of no folder": (FileError, lambda of: training_state(of.folder / "missing")),
    "a trainer from a damaged state": (FormatError, lambda of: of.open(resume=of.folder / "damaged")),
    "a trainer from a folder without a state": (FormatError, lambda of: of.open(resume=of.folder / "folder")),
    "a trainer from no checkpoint": (FileError, lambda of: of.open_file("missing.bin")),
    "a trainer from a truncated checkpoint": (FormatError, lambda of: of.open_file("truncated.bin")),
    "a trainer with too long sequences": (InvalidArgumentError, lambda of: of.open(seq_len=MODEL.max_seq_len + 1)),
    "a trainer with too many sub-batches": (InvalidArgumentError, lambda of: of.open(sub_batches=B + 1)),
    "a second runtime": (StateError, lambda _: Runtime().close()),
}


@pytest.fixture(scope="module")
def bench(
    runtime: Runtime, train: Callable[..., Trainer], tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path
) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("growth")
    if runtime.comm is not None:
        with train(reduction="ordered", trace=True) as trainer:
            yield Bench(runtime, train, [trainer], Path(runtime.comm.bcast(str(folder))))
        return
    with train(sub_batches=2, reduction="ordered", trace=True) as trainer, train() as other:
        bench = Bench(runtime, train, [trainer, other], folder)
        (folder / "folder").mkdir()
        (folder / "file").touch()
        (folder / "truncated.bin").write_bytes(tiny_checkpoint.read_bytes()[:-4])
        for name in ("locked", "impossible", "good"):
            bench.save(name)
        path = next((folder / "impossible").glob("*/*.state"))
        path.unlink()
        path.mkdir()
        path = next((folder / "good").glob("*/*.state"))
        for name in ("damaged", "passed-over"):  # one that only its checksums show as damaged; one below an empty file
            shutil.copytree(folder / "good", folder / name)
        state = StateFile.read(path)
        state.with_byte(state.entry(0)[3][0]).write(folder / "damaged" / path.relative_to(folder / "good"))
        newest = folder / "passed-over" / "step-999999999999"
        newest.mkdir()
        (newest / path.name).touch()
        yield bench


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
    assert found["compared"] > 0 or name == "a checkpoint"  # which allocates nothing


@one_rank
@pytest.mark.parametrize("name", REFUSED)
def test_refused_operation_leaves_nothing(bench: Bench, frozen_objects: None, name: str) -> None:
    kind, operation = REFUSED[name]

    def refused() -> None:
        try:
            operation(bench)
        except kind:
            return
        raise RuntimeFailureError(f"{name}: nothing was refused, expected {kind.__name__}")

    assert find_growth_of(refused)["findings"] == []


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
