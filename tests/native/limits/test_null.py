"""Every function of starpullm.h refuses NULL in place of each pointer, and a struct of another size."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from starpullm.binding import declarations, prototypes, structs
from starpullm.errors import InvalidArgumentError
from starpullm.loss import Loss
from starpullm.trainer import Trainer

from .refusals import refused
from .sizes import batch

pytestmark = [pytest.mark.child("one worker", preloads="allocations"), pytest.mark.usefixtures("nothing_left")]

_ROOM = 4096
_MAY_BE_NULL = ("session_submit_step", "learning_rate")
"""The one pointer that stands for a default."""

POINTERS = [
    (name, position)
    for name, (result, parameters) in declarations.functions().items()
    if result.type == "status"
    for position, parameter in enumerate(parameters)
    if parameter.pointers and (name, parameter.name) != _MAY_BE_NULL
]


def parameter_of(name: str, position: int) -> declarations.Declaration:
    return declarations.functions()[name][1][position]


def names_of(pointers: list[tuple[str, int]]) -> list[str]:
    return [f"{name}-{parameter_of(name, position).name}" for name, position in pointers]


def has_size(parameter: declarations.Declaration) -> bool:
    return parameter.type in declarations.structs() and any(
        member.name == "size" for member in declarations.structs()[parameter.type]
    )


SIZED = [(name, position) for name, position in POINTERS if has_size(parameter_of(name, position))]


@pytest.fixture(scope="module")
def call_with(train: Callable[..., Trainer]) -> Iterator[Callable[[str, int, Any], None]]:
    """Return a function that calls ``starpullm_<name>`` with another argument at a position.

    The other arguments are valid as far as the refusal needs them to be: open handles, structs of their size, room.
    """
    with train() as trainer:
        loss = trainer.submit(*batch(0))
        trainer.wait()

        def call(name: str, position: int, other: Any) -> None:
            arguments = list(_arguments(declarations.functions()[name][1], trainer, loss))
            arguments[position] = other
            prototypes._function(name)[0](*arguments)

        yield call


@pytest.mark.parametrize(("name", "position"), POINTERS, ids=names_of(POINTERS))
def test_null(call_with: Callable[[str, int, Any], None], name: str, position: int) -> None:
    with refused(InvalidArgumentError, f"starpullm_{name}: {parameter_of(name, position).name} is NULL"):
        call_with(name, position, None)


@pytest.mark.parametrize("change", [None, -1, 1])
@pytest.mark.parametrize(("name", "position"), SIZED, ids=names_of(SIZED))
def test_size(call_with: Callable[[str, int, Any], None], name: str, position: int, change: int | None) -> None:
    parameter = parameter_of(name, position)
    expected = ctypes.sizeof(structs.TYPES[parameter.type])
    struct = structs.new(parameter.type)
    struct.size = 0 if change is None else expected + change
    start = f"starpullm_{name}: {parameter.name}->size is {struct.size}, expected {expected}"
    with refused(InvalidArgumentError, start):
        call_with(name, position, ctypes.byref(struct))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("trace_destroy", None), ("loss_ready", 0), ("loss_destroy", None), ("session_destroy", None)],
)
def test_no_object(name: str, expected: int | None) -> None:
    """Functions without a status take NULL as no object: nothing to count, to wait for or to close."""
    assert prototypes._function(name)[0](None) == expected


def _arguments(parameters: list[declarations.Declaration], trainer: Trainer, loss: Loss) -> Iterator[Any]:
    handles = {"runtime": trainer.runtime._handle, "session": trainer._handle, "loss": loss._handle}
    for parameter in parameters:
        if not parameter.pointers:
            yield 0
        elif parameter.type == "char":
            yield b""
        elif parameter.type in handles and parameter.pointers == 1:
            yield handles[parameter.type]._pointer
        elif parameter.type in declarations.structs():
            struct = structs.new(parameter.type)
            yield ctypes.byref(struct if parameter.pointers == 1 else ctypes.pointer(struct))
        else:
            yield ctypes.create_string_buffer(_ROOM)
