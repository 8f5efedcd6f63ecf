"""A trainer's options on both sides of their limits."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from starpullm.binding import prototypes, structs
from starpullm.checks.place import Place
from starpullm.checks.result import Result
from starpullm.errors import InvalidArgumentError, OutOfMemoryError, StateError
from starpullm.golden.records import shipped_record
from starpullm.instruments import Instruments
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer

from .statements import Statements

TINY = shipped_record("tiny")
B, T, MODEL = TINY.batch_size, TINY.seq_len, TINY.model

_INT64_MAX = 2**63 - 1
_MOST_ELEMENTS = 2**32 - 1
_MOST_IN_FLIGHT = 1024
_MOST_DELAY_US = 1_000_000


def options_of_trainers(place: Place, *, seed: int) -> Result:
    """Create trainers with the last allowed and the first refused value of each option; on one rank."""
    del seed
    statements = Statements("limits of a trainer's options")
    checkpoint = place.checkpoint(TINY)
    create: Callable[..., Callable[[], object]] = partial(_creating, place.runtime, checkpoint)
    _check_sizes(statements, create, checkpoint)
    _check_numbers(statements, create)
    _check_instruments(statements, create, place.runtime)
    _check_sources(statements, place.runtime, checkpoint)
    return statements.result()


def create_as_is(runtime: Runtime, **members: Any) -> None:
    """Open a session with ``struct starpullm_session_options`` as it is given, and close it.

    What isn't given is as in the record ``tiny``, without a checkpoint.
    """
    given = {"batch_size": B, "seq_len": T, "sub_batches": 1, "steps_in_flight": 1, "learning_rate": 1e-3}
    options = structs.new("session_options", **{**given, "beta1": 0.9, "beta2": 0.9, **members})
    handle = structs.Handle("session")
    prototypes.call("session_create", runtime._handle, options, handle.address)
    prototypes.call("session_destroy", handle.address)


def _creating(runtime: Runtime, checkpoint: Path, **options: Any) -> Callable[[], Trainer]:
    return partial(Trainer, runtime, checkpoint, **{"batch_size": B, "seq_len": T, **options})


def _check_sizes(statements: Statements, create: Callable[..., Callable[[], object]], checkpoint: Path) -> None:
    refused = partial(statements.refused, kind=InvalidArgumentError)
    for size in (0, -1):
        refused(
            f"batch_size {size}",
            sentence=f"batch_size: found {size}, expected at least 1",
            call=create(batch_size=size),
        )
    statements.allowed("batch_size 1", create(batch_size=1))
    longest = MODEL.max_seq_len
    for length in (-1, 0, longest + 1, 2**32 + 1):
        refused(
            f"seq_len {length}",
            sentence=f"seq_len: found {length}, expected 1 to {longest}, the longest sequence that {checkpoint} has "
            "positions for",
            call=create(seq_len=length),
        )
    for length in (1, longest):
        statements.allowed(f"seq_len {length}", create(seq_len=length))
    for batch_size, number in ((B, 0), (B, -B), (B, B + 1), (B, 2 * B), (2**31, 2**31)):
        refused(
            f"sub_batches {number} of {batch_size}",
            sentence=f"sub_batches: found {number}, expected a divisor of the batch size {batch_size} that 32 bits "
            "hold",
            call=create(batch_size=batch_size, sub_batches=number),
        )
    statements.allowed(f"sub_batches {B}", create(sub_batches=B))
    for sets in (-1, B + 1):
        refused(
            f"activation_sets {sets}",
            sentence=f"activation_sets: found {sets}, expected 0 to {B}, the sub-batches",
            call=create(sub_batches=B, activation_sets=sets),
        )
    for recompute in ("attention", "block"):
        refused(
            f"recompute {recompute}, keep_activations",
            sentence="recompute: found it with keep_activations, expected one of them: what is kept needn't be "
            "computed again",
            call=create(recompute=recompute, keep_activations=True),
        )
    refused(
        "weight_gradients reused, two sub-batches",
        sentence="weight_gradients: found reused ones with 2 sub-batches on each of 1 ranks, expected one on one: the "
        "gradient of a block is a sum over all of them",
        call=create(weight_gradients="reused", sub_batches=2),
    )
    for option, words in (("recompute", "none, attention, block"), ("weight_gradients", "kept, reused")):
        refused(
            f"another {option}",
            sentence=f'{option}: found "other", expected one of {words}',
            call=create(**{option: "other"}),
        )
    longest_weight = max(MODEL.padded_vocab_size, 4 * MODEL.channels)
    for tiles in (-1, longest_weight + 1):
        refused(
            f"weight_gradient_tiles {tiles}",
            sentence=f"weight_gradient_tiles: found {tiles}, expected 0 to {longest_weight}, the rows of the longest "
            "weight",
            call=create(weight_gradient_tiles=tiles),
        )
    statements.allowed(f"weight_gradient_tiles {longest_weight}", create(weight_gradient_tiles=longest_weight))
    for reduction in ("tree", "redux"):
        refused(
            f"weight_gradient_tiles 2, {reduction}",
            sentence="weight_gradient_tiles: found 2, expected 0 or 1 without the reduction ordered: no other has "
            "running sums",
            call=create(weight_gradient_tiles=2, reduction=reduction),
        )
    refused(
        "a batch whose bytes leave 64 bits",
        sentence=f"activations with batch_size {2**60} and seq_len {T} are too large, expected at most {_INT64_MAX} "
        "bytes",
        call=create(batch_size=2**60),
    )
    refused(
        "a batch with larger vectors than StarPU's",
        sentence=f"activations/encoded: found {2**45 * T * MODEL.channels} elements in a sub-batch, expected at most "
        f"{_MOST_ELEMENTS}: StarPU has no larger vectors; more sub-batches make it smaller",
        call=create(batch_size=2**45),
    )
    number = 2**26
    statements.refused(
        "more handles than 31 bits count",
        OutOfMemoryError,
        f"a table of {_num_handles(number)} handles",
        create(batch_size=number, sub_batches=number),
    )
    for steps in (-1, 0, _MOST_IN_FLIGHT + 1):
        refused(
            f"steps_in_flight {steps}",
            sentence=f"steps_in_flight: found {steps}, expected 1 to {_MOST_IN_FLIGHT}",
            call=create(steps_in_flight=steps),
        )
    for steps in (1, _MOST_IN_FLIGHT):
        statements.allowed(f"steps_in_flight {steps}", create(steps_in_flight=steps))


def _num_handles(sub_batches: int) -> int:
    """Return how many handles a session with two steps in flight has, whose blocks share buffers.

    A step in flight has inputs and targets of each sub-batch, and a mean loss. Of 16 parameters, 12 have layers; each
    has a gradient, m and v. Of 23 activations, 13 have one for each layer; 15 have a gradient, and that of the losses
    is one constant.
    """
    parameters, activations = 4 + 12 * MODEL.num_layers, 10 + 13 * MODEL.num_layers
    return 2 * (2 * sub_batches + 1) + 4 * parameters + sub_batches * (activations + 15) + 1


def _check_numbers(statements: Statements, create: Callable[..., Callable[[], object]]) -> None:
    wrong = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "-0.5": -0.5}
    for option in ("learning_rate", "eps", "weight_decay"):
        for text, value in wrong.items():
            statements.refused(
                f"{option} {text}",
                InvalidArgumentError,
                f"{option}: found {text}, expected a finite number, at least 0",
                create(**{option: value}),
            )
        for value in (0.0, -0.0, 3e38):
            statements.allowed(f"{option} {value}", create(**{option: value}))
    for index in range(2):
        for text, value in {**wrong, "1": 1.0}.items():
            betas = [0.5, 0.5]
            betas[index] = value
            statements.refused(
                f"beta{index + 1} {text}",
                InvalidArgumentError,
                f"beta{index + 1}: found {text}, expected at least 0 and below 1",
                create(betas=betas),
            )
    for beta in (0.0, 1 - 2**-24):
        statements.allowed(f"betas {beta}", create(betas=(beta, beta)))


def _check_instruments(statements: Statements, create: Callable[..., Callable[[], object]], runtime: Runtime) -> None:
    for microseconds in (-1, _MOST_DELAY_US + 1):
        statements.refused(
            f"delays of {microseconds} us",
            InvalidArgumentError,
            f"max_delay_us: found {microseconds}, expected 0 to {_MOST_DELAY_US}",
            create(trace=True, instruments=Instruments(max_delay_us=microseconds)),
        )
    statements.allowed("the longest delays", create(trace=True, instruments=Instruments(max_delay_us=_MOST_DELAY_US)))
    for instruments in (Instruments(poison=True), Instruments(audit=True), Instruments(max_delay_us=1)):
        statements.refused(
            f"{instruments} without a trace",
            InvalidArgumentError,
            "instruments: found no trace, expected one: findings name its tasks",
            create(instruments=instruments),
        )
    audited = {"trace": True, "instruments": Instruments(audit=True)}
    if str(runtime.partition) == "1x1":
        statements.allowed("the audit", create(**audited))
        statements.refused(
            "the audit with redux",
            InvalidArgumentError,
            "instruments: found the audit with the reduction redux, expected another: StarPU sums in buffers of its "
            "own",
            create(reduction="redux", **audited),
        )
    else:
        statements.refused(
            "the audit",
            InvalidArgumentError,
            f"instruments: found the audit on partition {runtime.partition}, expected 1x1: pages are open to all "
            "threads",
            create(**audited),
        )


def _check_sources(statements: Statements, runtime: Runtime, checkpoint: Path) -> None:
    """Check what Python's options can't express or don't allow."""
    path = prototypes.c_string("checkpoint", checkpoint)
    statements.allowed("options of C", partial(create_as_is, runtime, checkpoint=path))
    for number in (-1, 3):
        statements.refused(
            f"reduction {number}",
            InvalidArgumentError,
            f"reduction: found {number}, expected 0 (ordered), 1 (tree) or 2 (redux)",
            partial(create_as_is, runtime, checkpoint=path, reduction=number),
        )
    for flags in (8, -1):
        statements.refused(
            f"instruments {flags}",
            InvalidArgumentError,
            f"instruments: found {flags}, expected a sum of 1, 2 and 4",
            partial(create_as_is, runtime, checkpoint=path, instruments=flags),
        )
    for found, given in (("neither", {}), ("both", {"checkpoint": path, "resume": path})):
        statements.refused(
            f"{found} checkpoint and resume",
            InvalidArgumentError,
            f"checkpoint, resume: found {found}, expected one of them",
            partial(create_as_is, runtime, **given),
        )
    elsewhere = ctypes.create_string_buffer(4096)
    closed = structs.Handle("runtime")
    closed._pointer = ctypes.c_void_p(ctypes.addressof(elsewhere))
    for name, arguments in (
        ("session_create", (closed, structs.new("session_options"), structs.Handle("session").address)),
        ("runtime_destroy", (closed.address,)),
    ):
        statements.refused(
            f"{name} with another runtime",
            StateError,
            "the runtime is closed, expected one that is running",
            partial(prototypes.call, name, *arguments),
        )
    statements.allowed("a trainer after these refusals", partial(create_as_is, runtime, checkpoint=path))
