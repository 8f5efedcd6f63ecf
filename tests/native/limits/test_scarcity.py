"""What happens when there is no memory: see `scarcity`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from starpullm.checks.kernels.kernel_cases import CASES
from starpullm.checks.leaks import KEPT_AFTER_RUNTIMES
from starpullm.checks.observer import Observer
from starpullm.instruments import Instruments
from starpullm.resume import training_state
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer

from .scarcity import Operation, fail_each, kernel_operations
from .sizes import batch

pytestmark = pytest.mark.child("scarcity", preloads="allocations")


class Setting(NamedTuple):
    """What operations are called with: a function that opens trainers, and a folder with a state."""

    train: Callable[..., Trainer]
    states: Path

    def open(self, **options: Any) -> Trainer:
        return self.train(sub_batches=2, reduction="ordered", trace=True, **options)


def step(_: Setting, trainer: Trainer) -> tuple[object, object]:
    return trainer.step(*batch(0)), trainer.evaluate(*batch(1))


def hold(_: Setting, trainer: Trainer) -> None:
    Observer(trainer).hold()
    trainer.submit(*batch(0))
    Observer(trainer).release()


def save(setting: Setting, trainer: Trainer) -> None:
    trainer.save_state(tempfile.mkdtemp(dir=setting.states))  # a folder with another run's state is refused
    trainer.wait_saved()


def save_checkpoint(setting: Setting, trainer: Trainer) -> bytes:
    path = Path(tempfile.mkdtemp(dir=setting.states), "model.bin")
    trainer.save_checkpoint(path)
    return path.read_bytes()


Opening = Callable[[Setting], AbstractContextManager[Any]]

OPERATIONS: Mapping[str, tuple[Opening, Callable[[Setting, Any], object]]] = {
    "a trainer": (lambda _: nullcontext(), lambda setting, _: setting.open().close()),
    "a resumed trainer": (lambda _: nullcontext(), lambda setting, _: setting.open(resume=setting.states).close()),
    "a description of a state": (lambda _: nullcontext(), lambda setting, _: training_state(setting.states)),
    "a step": (Setting.open, step),
    "an audited step": (lambda setting: setting.open(instruments=Instruments(audit=True)), step),
    "a checkpoint": (Setting.open, save_checkpoint),
    "tasks held back": (Setting.open, hold),
    "a state": (Setting.open, save),
}


@pytest.fixture(scope="module")
def setting(train: Callable[..., Trainer], tmp_path_factory: pytest.TempPathFactory) -> Setting:
    setting = Setting(train, tmp_path_factory.mktemp("states"))
    with setting.open() as trainer:
        trainer.save_state(setting.states)
    return setting


@pytest.mark.parametrize("kernel", CASES)
def test_kernel(kernel: str) -> None:
    """At each level; no runtime is started."""
    for name, operation in kernel_operations().items():
        if name.startswith(f"{kernel} at "):
            assert fail_each(operation)[1] == [], name


def test_start_of_a_runtime() -> None:
    """Before the module's own runtime starts."""
    start = Operation(nullcontext, lambda _: Runtime("1x1").close(), stays=KEPT_AFTER_RUNTIMES)
    failed, wrong = fail_each(start)
    assert wrong == []
    assert failed > 0


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation(setting: Setting, name: str) -> None:
    opening, call = OPERATIONS[name]
    failed, wrong = fail_each(Operation(partial(opening, setting), partial(call, setting)))
    assert wrong == []
    assert failed > 0
