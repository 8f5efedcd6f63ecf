"""A trainer's options on both sides of their limits."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import pytest

from starpullm.binding import prototypes, structs
from starpullm.errors import InvalidArgumentError, OutOfMemoryError, StateError
from starpullm.instruments import Instruments
from starpullm.trainer import Trainer

from .refusals import refused, words
from .sizes import MODEL, B, T

pytestmark = [pytest.mark.child("one worker", preloads="allocations"), pytest.mark.usefixtures("nothing_left")]

Train = Callable[..., Trainer]
Options = dict[str, Any]

_MOST_IN_FLIGHT = 1024
_LONGEST_DELAY_US = 1_000_000
_LONGEST_WEIGHT = max(MODEL.padded_vocab_size, 4 * MODEL.channels)
_MANY_HANDLES = 2**26

_NO_RATE = (math.nan, math.inf, -math.inf, -0.5)
_NO_BETA = (*_NO_RATE, 1.0)

REFUSED: list[tuple[str, Options]] = [
    *((f"batch_size: found {size},", {"batch_size": size}) for size in (0, -1)),
    *(
        (f"seq_len: found {length}, expected 1 to {MODEL.max_seq_len},", {"seq_len": length})
        for length in (-1, 0, MODEL.max_seq_len + 1, 2**32 + 1)
    ),
    *(
        (f"sub_batches: found {number},", {"batch_size": size, "sub_batches": number})
        for size, number in ((B, 0), (B, -B), (B, B + 1), (B, 2 * B), (2**31, 2**31))
    ),
    *(
        (f"activation_sets: found {sets}, expected 0 to {B},", {"sub_batches": B, "activation_sets": sets})
        for sets in (-1, B + 1)
    ),
    *(("recompute: ", {"recompute": word, "keep_activations": True}) for word in ("attention", "block")),
    ("weight_gradients: ", {"weight_gradients": "reused", "sub_batches": 2}),
    ('recompute: found "other", expected one of none, attention, block', {"recompute": "other"}),
    ('weight_gradients: found "other", expected one of kept, reused', {"weight_gradients": "other"}),
    *(
        (f"weight_gradient_tiles: found {tiles}, expected 0 to {_LONGEST_WEIGHT},", {"weight_gradient_tiles": tiles})
        for tiles in (-1, _LONGEST_WEIGHT + 1)
    ),
    *(
        ("weight_gradient_tiles: found 2,", {"weight_gradient_tiles": 2, "reduction": reduction})
        for reduction in ("tree", "redux")
    ),
    # Activations whose bytes leave 64 bits, and those that are larger than StarPU's vectors.
    (f"activations with batch_size {2**60} and seq_len {T} are too large", {"batch_size": 2**60}),
    (f"activations/encoded: found {2**45 * T * MODEL.channels} elements", {"batch_size": 2**45}),
    *(
        (f"steps_in_flight: found {steps}, expected 1 to {_MOST_IN_FLIGHT}", {"steps_in_flight": steps})
        for steps in (-1, 0, _MOST_IN_FLIGHT + 1)
    ),
    *((f"{name}: ", {name: value}) for name in ("learning_rate", "eps", "weight_decay") for value in _NO_RATE),
    *(("beta1: ", {"betas": (value, 0.5)}) for value in _NO_BETA),
    *(("beta2: ", {"betas": (0.5, value)}) for value in _NO_BETA),
    *(
        (f"max_delay_us: found {delay}, ", {"trace": True, "instruments": Instruments(max_delay_us=delay)})
        for delay in (-1, _LONGEST_DELAY_US + 1)
    ),
    *(
        ("instruments: found no trace,", {"instruments": instruments})
        for instruments in (Instruments(poison=True), Instruments(audit=True), Instruments(max_delay_us=1))
    ),
    (
        "instruments: found the audit with the reduction redux,",
        {"instruments": Instruments(audit=True), "trace": True, "reduction": "redux"},
    ),
]

ALLOWED: list[Options] = [
    {"batch_size": 1},
    *({"seq_len": length} for length in (1, MODEL.max_seq_len)),
    {"sub_batches": B},
    {"weight_gradient_tiles": _LONGEST_WEIGHT},
    *({"steps_in_flight": steps} for steps in (1, _MOST_IN_FLIGHT)),
    *({name: value} for name in ("learning_rate", "eps", "weight_decay") for value in (0.0, -0.0, 3e38)),
    *({"betas": (beta, beta)} for beta in (0.0, 1 - 2**-24)),
    {"trace": True, "instruments": Instruments(max_delay_us=_LONGEST_DELAY_US)},
    {"trace": True, "instruments": Instruments(audit=True)},
]

REFUSED_IN_C: list[tuple[str, Options]] = [
    *((f"reduction: found {number},", {"reduction": number}) for number in (-1, 3)),
    *((f"instruments: found {flags},", {"instruments": flags}) for flags in (16, -1)),
    ("checkpoint, resume: found neither,", {"checkpoint": None}),
    ("checkpoint, resume: found both,", {"resume": b"states"}),
]


@pytest.mark.parametrize(("start", "options"), REFUSED, ids=[words(options) for _, options in REFUSED])
def test_refused(train: Train, start: str, options: Options) -> None:
    with refused(InvalidArgumentError, start):
        train(**options).close()


@pytest.mark.parametrize("options", ALLOWED, ids=words)
def test_allowed(train: Train, options: Options) -> None:
    train(**options).close()


def test_more_handles_than_31_bits_count(train: Train) -> None:
    """The number is the handles of a session with two steps in flight, whose blocks share buffers.

    A step in flight has inputs and targets of each sub-batch, and a mean loss. Of 16 parameters, 12 have layers; each
    has a gradient, m and v. Of 23 activations, 13 have one for each layer; 15 have a gradient, and that of the losses
    is one constant.
    """
    parameters, activations = 4 + 12 * MODEL.num_layers, 10 + 13 * MODEL.num_layers
    handles = 2 * (2 * _MANY_HANDLES + 1) + 4 * parameters + _MANY_HANDLES * (activations + 15) + 1
    with refused(OutOfMemoryError, f"a table of {handles} handles"):
        train(batch_size=_MANY_HANDLES, sub_batches=_MANY_HANDLES).close()


# ---- What Python's options can't express ----


@pytest.mark.parametrize(("start", "options"), REFUSED_IN_C, ids=[words(options) for _, options in REFUSED_IN_C])
def test_refused_in_c(create_in_c: Callable[..., None], start: str, options: Options) -> None:
    with refused(InvalidArgumentError, start):
        create_in_c(**options)
    create_in_c()


@pytest.mark.parametrize("name", ["session_create", "runtime_destroy"])
def test_another_runtime(name: str) -> None:
    elsewhere = ctypes.create_string_buffer(4096)
    other = structs.Handle("runtime")
    other._pointer = ctypes.c_void_p(ctypes.addressof(elsewhere))
    session = (other, structs.new("session_options"), structs.Handle("session").address)
    with refused(StateError, "the runtime is closed"):
        prototypes.call(name, *(session if name == "session_create" else (other.address,)))
