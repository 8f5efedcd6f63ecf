"""What happens when StarPU refuses a task of a step: one sentence, a trainer that can be closed, and nothing left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from starpullm.binding import allocations
from starpullm.checks.leaks import left_allocations
from starpullm.checks.observer import Observer
from starpullm.errors import RuntimeFailureError, StateError
from starpullm.instruments import Instruments
from starpullm.trainer import Trainer

from ...refusals import refuse_call
from ..children import names_in
from .refusals import refused
from .sizes import batch

pytestmark = pytest.mark.child("refused tasks", preloads="refusals")

_MANY = 10**6
"""More than the tasks of a step."""

_ERROR = -19
"""-ENODEV, which StarPU returns where no worker can run a task."""

_ERROR_OF_READ = -35
"""-EDEADLK, which StarPU returns to a task that would wait."""


class Step(NamedTuple):
    """A step of which nothing is refused: the operations of its tasks in the order of submission, and its loss."""

    operations: list[str]
    loss: float


@pytest.fixture(scope="module")
def traced(train: Callable[..., Trainer]) -> Callable[..., Trainer]:
    """Return a function from options to a trainer that is traced."""
    return lambda **options: train(sub_batches=2, trace=True, **options)


@pytest.fixture(scope="module")
def step(traced: Callable[..., Trainer]) -> Step:
    return whole_step(traced)


def whole_step(traced: Callable[..., Trainer]) -> Step:
    with traced() as trainer:
        refuse_call(_MANY)
        loss = trainer.submit(*batch(0)).result()
        submitted = _MANY - refuse_call(0)
        operations = [task.operation for task in trainer.trace()]
    assert submitted == len(operations)
    return Step(operations, float(loss))


@pytest.fixture(autouse=True)
def nothing_left(step: Step, traced: Callable[..., Trainer]) -> Iterator[None]:
    """Fail if a test leaves memory, or if a step after it has another loss."""
    allocations.start()
    yield
    allocations.stop()
    assert left_allocations() == ""
    assert whole_step(traced) == step


NUMBERS: Mapping[str, Callable[[int], int]] = {
    "first": lambda count: 1,
    "second": lambda count: 2,
    "after a third": lambda count: count // 3,
    "after two thirds": lambda count: count * 2 // 3,
    "last but one": lambda count: count - 1,
    "last": lambda count: count,
}


@pytest.mark.parametrize("held", [False, True], ids=["step", "held step"])
@pytest.mark.parametrize("which", NUMBERS)
def test_task(traced: Callable[..., Trainer], step: Step, which: str, held: bool) -> None:
    """From the first to the last of a step, each in a step of another trainer; also of a step that is held back."""
    number = NUMBERS[which](len(step.operations))
    with traced() as trainer:
        if held:
            Observer(trainer).hold()
        refuse_call(number)
        start = f"StarPU refused a task of {step.operations[number - 1]} in step 0 (error {_ERROR})"
        with refused(RuntimeFailureError, start):
            trainer.submit(*batch(0))
        assert refuse_call(0) == 0
        if held:  # StarPU's graph has no edge to a task that was not submitted
            assert [edge for edge in Observer(trainer).release().tolist() if max(edge) >= number - 1] == []
        with refused(StateError, "the session is unusable since a submission failed half way"):
            trainer.submit(*batch(0))


def test_task_that_holds_others_back(traced: Callable[..., Trainer]) -> None:
    with traced(instruments=Instruments(max_delay_us=1000)) as trainer:
        observer = Observer(trainer)
        refuse_call(1)
        with refused(RuntimeFailureError, f"StarPU refused the task that holds others back (error {_ERROR})"):
            observer.hold()
        before = trainer.submit(*batch(0))
        observer.hold()
        assert before.ready
        loss = trainer.submit(*batch(0))
        refuse_call(1)
        observer.release()
        assert refuse_call(0) == 1
        trainer.wait()
        assert loss.ready
        del before, loss


def test_reads_of_a_save(traced: Callable[..., Trainer], tmp_path: Path) -> None:
    """From the first to the last that a save asks for."""
    whole, states = tmp_path / "whole", tmp_path / "refused"
    with traced() as trainer:
        trainer.step(*batch(0))
        refuse_call(_MANY)
        trainer.save_state(whole)
        trainer.wait_saved()
        reads = _MANY - refuse_call(0)
        for number in (1, reads // 2, reads):
            refuse_call(number)
            with refused(
                RuntimeFailureError, "", f": StarPU refused access from the application (error {_ERROR_OF_READ})"
            ):
                trainer.save_state(states)
            trainer.wait_saved()
            assert names_in(states) == [".lock"]
        trainer.save_state(states)
    assert names_in(states) == names_in(whole)
