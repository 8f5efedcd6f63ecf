"""Every function of starpullm.h refuses NULL in place of each pointer, and a struct of another size."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import partial
from typing import Any

from starpullm.binding import header, prototypes, structs
from starpullm.errors import InvalidArgumentError
from starpullm.loss import Loss
from starpullm.trainer import Trainer

from .statements import Statements

_ROOM = 4096
_MAY_BE_NULL = ("session_submit_step", "learning_rate")
"""The one pointer that stands for a default."""


def call_as_is(name: str, *arguments: Any) -> Any:
    """Call ``starpullm_<name>`` with pointers as ctypes has them, None for NULL; a status raises as elsewhere."""
    return prototypes._function(name)[0](*arguments)


def check_pointers(statements: Statements, trainer: Trainer, loss: Loss) -> None:
    """State that each pointer is missed if it is NULL, and that each struct's size is looked at.

    The other arguments of these calls are valid as far as the refusal needs them to be.
    """
    for name, (result, parameters) in header.functions().items():
        if result.type != "status":
            continue
        for position, parameter in enumerate(parameters):
            if not parameter.pointers or (name, parameter.name) == _MAY_BE_NULL:
                continue
            with_null = list(_arguments(parameters, trainer, loss))
            with_null[position] = None
            statements.refused(
                f"{name} without {parameter.name}",
                InvalidArgumentError,
                f"starpullm_{name}: {parameter.name} is NULL",
                partial(call_as_is, name, *with_null),
            )
            if parameter.type not in header.structs() or not hasattr(structs.new(parameter.type), "size"):
                continue
            size = ctypes.sizeof(structs.TYPES[parameter.type])
            for other in (0, size - 1, size + 1):
                changed = list(_arguments(parameters, trainer, loss))
                struct = structs.new(parameter.type)
                struct.size = other
                changed[position] = ctypes.byref(struct)
                statements.refused(
                    f"{name} with {parameter.name} of {other} bytes",
                    InvalidArgumentError,
                    f"starpullm_{name}: {parameter.name}->size is {other}, expected {size}",
                    partial(call_as_is, name, *changed),
                )


def check_no_objects(statements: Statements) -> None:
    """State that functions without a status take NULL as no object: nothing to count, to wait for or to close."""
    for name, expected in (
        ("trace_destroy", None),
        ("loss_ready", 0),
        ("loss_destroy", None),
        ("session_destroy", None),
    ):
        statements.equal(f"{name} of NULL", expected, call_as_is(name, None))


def _arguments(parameters: list[header.Declaration], trainer: Trainer, loss: Loss) -> Iterator[Any]:
    """Yield an argument for each parameter: the open handles, structs of their size, room, 0 for numbers."""
    handles = {"runtime": trainer.runtime._handle, "session": trainer._handle, "loss": loss._handle}
    for parameter in parameters:
        if not parameter.pointers:
            yield 0
        elif parameter.type == "char":
            yield b""
        elif parameter.type in handles and parameter.pointers == 1:
            yield handles[parameter.type]._pointer
        elif parameter.type in header.structs():
            struct = structs.new(parameter.type)
            yield ctypes.byref(struct if parameter.pointers == 1 else ctypes.pointer(struct))
        else:
            yield ctypes.create_string_buffer(_ROOM)
