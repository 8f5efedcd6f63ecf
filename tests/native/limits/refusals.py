"""What happens when StarPU refuses a task of a step: one sentence, a trainer that can be closed, and nothing left."""

from __future__ import annotations

from functools import partial

from starpullm.binding import allocations
from starpullm.checks.memory import left_allocations
from starpullm.checks.observer import Observer
from starpullm.checks.place import Place, Workplace
from starpullm.checks.result import Result
from starpullm.checks.training import new_trainer, own_batch
from starpullm.errors import RuntimeFailureError, StateError
from starpullm.instruments import Instruments
from starpullm.runtime import Runtime

from .options import TINY
from .refused_calls import refuse_call
from .statements import Statements

_MANY = 10**6
"""More than the tasks of a step."""

_OPTIONS = {"sub_batches": 2, "keep_activations": False, "trace": True}
_SEED = 1
_ERROR = -19
"""-ENODEV, which StarPU returns where no worker can run a task."""

_ERROR_OF_READ = -35
"""-EDEADLK, which StarPU returns to a task that would wait."""


def refused_tasks(workplace: Workplace) -> Result:
    """Let StarPU refuse tasks from the first to the last of a step, each in a step of another trainer; on one rank.

    Also of a step that is held back, and the task that holds it back. The process must have preloaded what refuses and
    what counts allocations.
    """
    statements = Statements("tasks that StarPU refuses")
    with Runtime() as runtime:
        place = Place(runtime, workplace.directory)
        operations, loss = _whole_step(place)
        count = len(operations)
        for number in sorted({1, 2, count // 3, count * 2 // 3, count - 1, count}):
            for held in (False, True):
                _refuse(statements, place, number, operations[number - 1], held=held)
        _refuse_hold(statements, place)
        _refuse_saves(statements, place)
        _, again = _whole_step(place)
        statements.equal("loss of a step after these", loss, again)
    return statements.result()


def _whole_step(place: Place) -> tuple[list[str], float]:
    """Return the operations of a step's tasks in the order of their submission, and its loss."""
    with new_trainer(place, TINY, **_OPTIONS) as trainer:
        refuse_call(_MANY)
        loss = trainer.submit(*own_batch(trainer, _SEED, 0)).result()
        submitted = _MANY - refuse_call(0)
        operations = [task.operation for task in trainer.trace()]
    if submitted != len(operations):
        raise RuntimeFailureError(f"tasks of a step: found {submitted} calls of StarPU, expected {len(operations)}")
    return operations, float(loss)


def _refuse(statements: Statements, place: Place, number: int, operation: str, *, held: bool) -> None:
    what = f"task {number}{' of a held step' if held else ''}"
    allocations.start()
    with new_trainer(place, TINY, **_OPTIONS) as trainer:
        batch = own_batch(trainer, _SEED, 0)
        if held:
            Observer(trainer).hold()
        refuse_call(number)
        sentence = f"StarPU refused a task of {operation} in step 0 (error {_ERROR})"
        statements.refused(what, RuntimeFailureError, sentence, partial(trainer.submit, *batch))
        statements.equal(f"{what}: calls that were missing", 0, refuse_call(0))
        if held:
            submitted = number - 1
            late = [edge for edge in Observer(trainer).release().tolist() if max(edge) >= submitted]
            statements.equal(f"{what}: edges of StarPU's graph to tasks that were not submitted", [], late)
        sentence = "the session is unusable since a submission failed half way"
        statements.refused(f"{what}: the next step", StateError, sentence, partial(trainer.submit, *batch))
    allocations.stop()
    statements.equal(f"{what}: what is left", "", left_allocations())


def _refuse_hold(statements: Statements, place: Place) -> None:
    slow = Instruments(max_delay_us=1000)
    allocations.start()
    with new_trainer(place, TINY, **_OPTIONS, instruments=slow) as trainer:
        observer, batch = Observer(trainer), own_batch(trainer, _SEED, 0)
        refuse_call(1)
        sentence = f"StarPU refused the task that holds others back (error {_ERROR})"
        statements.refused("a hold", RuntimeFailureError, sentence, observer.hold)
        before = trainer.submit(*batch)
        statements.allowed("a hold after a refused one", observer.hold)
        statements.equal("a hold: whether the step before it has ended", True, before.ready)
        loss = trainer.submit(*batch)
        refuse_call(1)
        statements.allowed("a release", observer.release)
        statements.equal("a release: calls that may be refused", 1, refuse_call(0))
        trainer.wait()
        statements.equal("a released step: whether its loss is known after a wait", True, loss.ready)
        del before, loss
    allocations.stop()
    statements.equal("a hold: what is left", "", left_allocations())


def _refuse_saves(statements: Statements, place: Place) -> None:
    whole, refused = place.directory / "whole", place.directory / "refused"
    allocations.start()
    with new_trainer(place, TINY, **_OPTIONS) as trainer:
        trainer.step(*own_batch(trainer, _SEED, 0))
        refuse_call(_MANY)
        trainer.save_state(whole)
        trainer.wait_saved()
        reads = _MANY - refuse_call(0)
        for number in (1, reads // 2, reads):
            what = f"read {number} of a save"
            refuse_call(number)
            sentence = f"*: StarPU refused access from the application (error {_ERROR_OF_READ})"
            statements.refused(what, RuntimeFailureError, sentence, partial(trainer.save_state, refused))
            statements.allowed(f"{what}: waiting for its end", trainer.wait_saved)
            statements.equal(f"{what}: what is left", [".lock"], [path.name for path in refused.iterdir()])
        statements.allowed("a save after refused ones", partial(trainer.save_state, refused))
    states = [sorted(path.name for path in folder.iterdir()) for folder in (whole, refused)]
    statements.equal("the states of both folders", *states)
    allocations.stop()
    statements.equal("saves: what is left", "", left_allocations())
