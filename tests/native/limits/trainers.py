"""What a trainer's functions refuse: tokens, names, places in a tensor, calls that aren't possible now."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from starpullm.binding import prototypes, structs
from starpullm.checks.observer import Observer
from starpullm.checks.place import Place
from starpullm.checks.references import record_trainer
from starpullm.checks.result import Result
from starpullm.checks.training import new_trainer, own_batch
from starpullm.errors import InvalidArgumentError, StateError, TokenRangeError
from starpullm.instruments import Instruments
from starpullm.trainer import Trainer

from .arithmetic import check_arithmetic
from .calls import check_no_objects, check_pointers
from .options import MODEL, TINY, B, T
from .statements import Statements

_HELD = "the session holds its tasks, expected a release first"
_NOT_TRACED = "the session isn't traced, expected one created with trace"


def calls_of_trainers(place: Place, *, seed: int) -> Result:
    """Call every function of a trainer with the last allowed and the first refused argument; on one rank, 1x1."""
    statements = Statements("limits of a trainer's functions")
    plain: dict[str, Any] = {"keep_activations": False}
    with new_trainer(place, TINY, **plain) as trainer:
        loss = trainer.submit(*own_batch(trainer, seed, 0))
        check_pointers(statements, trainer, loss)
        check_no_objects(statements)
        statements.refused(
            "a state without a directory",
            InvalidArgumentError,
            "starpullm_session_save_state: options->directory is NULL",
            partial(prototypes.call, "session_save_state", trainer._handle, structs.new("save_options", keep=1)),
        )
        _check_tokens(statements, trainer, seed)
        _check_tables(statements, trainer)
        _check_reads(statements, trainer)
        _check_what_is_not_there(statements, trainer)
    with new_trainer(place, TINY, **plain, recompute="block", weight_gradients="reused") as trainer:
        _check_reads_of_shared(statements, trainer)
    with new_trainer(place, TINY, **plain, sub_batches=B, activation_sets=1) as trainer:
        _check_reads_of_last(statements, trainer)
    with new_trainer(place, TINY, **plain, trace=True, instruments=Instruments(max_delay_us=1)) as trainer:
        _check_trace(statements, trainer)
        _check_hold(statements, trainer, seed, place.directory)
    for instruments in (Instruments(audit=True), Instruments(poison=True)):
        with new_trainer(place, TINY, **plain, trace=True, instruments=instruments) as trainer:
            _check_counts(statements, trainer, seed)
            _check_watched(statements, trainer, instruments, place.directory)
            if instruments.audit:
                sentence = "another session of this process is audited, expected none: close it"
                second = partial(record_trainer, place.runtime, TINY, place.checkpoint(TINY), **plain, trace=True)
                statements.refused("a second audit", StateError, sentence, partial(second, instruments=instruments))
    check_arithmetic(statements)
    return statements.result()


def _check_tokens(statements: Statements, trainer: Trainer, seed: int) -> None:
    """Try wrong tokens; a refused batch changes nothing, so the parameters are compared too."""
    good, targets = own_batch(trainer, seed, 1)
    before = {name: trainer.tensor("params", name) for name in trainer.tensor_names("params")}
    calls: dict[str, Callable[[Any], object]] = {
        "inputs of submit": lambda bad: trainer.submit(bad, targets),
        "targets of submit": lambda bad: trainer.submit(good, bad),
        "inputs of evaluate": lambda bad: trainer.evaluate(bad, targets),
        "targets of evaluate": lambda bad: trainer.evaluate(good, bad),
        "inputs of probabilities": lambda bad: trainer.probabilities(bad, 0, 0),
    }
    for what, call in calls.items():
        for token in (-1, MODEL.vocab_size, MODEL.padded_vocab_size, -(2**31)):
            bad = good.copy()
            bad[1, 3] = token
            statements.refused(
                f"token {token} in {what}",
                TokenRangeError,
                f"{what.split()[0]}[1, 3]: token {token} is out of range, expected 0 to {MODEL.vocab_size - 1}",
                partial(call, bad),
            )
    for rate in (float("nan"), float("inf"), 1e39, -1e-3):
        sentence = "learning_rate: found *, expected a finite number, at least 0"
        step = partial(trainer.submit, good, targets, learning_rate=rate)
        statements.refused(f"a step with learning rate {rate}", InvalidArgumentError, sentence, step)
    for name, values in before.items():
        statements.same_bits(f"{name} after refused tokens", values, trainer.tensor("params", name))
    extremes = np.where(np.arange(good.size).reshape(good.shape) % 2, 0, MODEL.vocab_size - 1)
    for what, call in calls.items():
        statements.allowed(f"the first and the last token in {what}", partial(call, extremes))
    for what, sequence, position, sentence in (
        ("sequence", B, 0, f"sequence: found {B}, expected 0 to {B - 1}"),
        ("position", 0, T, f"position: found {T}, expected 0 to {T - 1}"),
    ):
        statements.refused(
            what, InvalidArgumentError, sentence, partial(trainer.probabilities, good, sequence, position)
        )
    statements.allowed("the last position", partial(trainer.probabilities, good, B - 1, T - 1))


def _check_tables(statements: Statements, trainer: Trainer) -> None:
    counts = [prototypes.call("tensor_count", group) for group in (-1, 0, 1, 2, 3, 4, 5, 6)]
    statements.equal("numbers of tensors of groups -1 to 6", [0, 16, 16, 16, 16, 23, 23, 0], counts)
    info = structs.new("tensor_info")
    for group in (-1, 6):
        for name, arguments in (
            ("session_tensor_info", (0, info)),
            ("session_read_tensor", (0, 0, 0, 0, np.empty(1, np.float32))),
        ):
            statements.refused(
                f"{name} of group {group}",
                InvalidArgumentError,
                f"group: found {group}, expected 0 to 5",
                partial(prototypes.call, name, trainer._handle, group, *arguments),
            )
    for group, count in ((0, 16), (3, 16), (4, 23), (5, 23)):
        for number in (-1, count):
            statements.refused(
                f"tensor {number} of group {group}",
                InvalidArgumentError,
                f"tensor: found number {number}, expected 0 to {count - 1}",
                partial(prototypes.call, "session_tensor_info", trainer._handle, group, number, info),
            )
    operations = list(prototypes.names("operation_name"))
    statements.equal("the last operations", ["report_loss", "transfer"], operations[-2:])
    statements.equal("operations that have a name twice", len(operations), len(set(operations)))
    statements.equal("operation -1", None, prototypes.call("operation_name", -1))


def _check_reads(statements: Statements, trainer: Trainer) -> None:
    whole = MODEL.padded_vocab_size * MODEL.channels  # of wte
    values = np.zeros(whole, np.float32)

    def read(offset: int, count: int) -> Callable[[], object]:
        return partial(prototypes.call, "session_read_tensor", trainer._handle, 0, 0, 0, offset, count, values)

    for offset, count in ((-1, 1), (0, -1), (0, whole + 1), (whole - 1, 2), (whole + 1, 0), (whole, 1)):
        statements.refused(
            f"{count} elements of wte from {offset} on",
            InvalidArgumentError,
            f"wte: found {count} elements from {offset} on, expected a part of {whole}",
            read(offset, count),
        )
    for offset, count in ((0, whole), (whole - 1, 1), (whole, 0)):
        statements.allowed(f"{count} elements of wte from {offset} on", read(offset, count))
    wte = trainer.tensor("params", "wte").ravel()
    read(5, 7)()
    statements.same_bits("elements 5 to 11 of wte", wte[5:12], values[:7])
    for name, layers in (("qkvw", MODEL.num_layers), ("ln2_mean", MODEL.num_layers)):
        group = "params" if name == "qkvw" else "activations"
        for layer in (-1, layers):
            statements.refused(
                f"layer {layer} of {name}",
                InvalidArgumentError,
                f"{name}: found layer {layer}, expected 0 to {layers - 1}",
                partial(trainer.tensor, group, name, layer),
            )
        statements.allowed(f"the last layer of {name}", partial(trainer.tensor, group, name, layers - 1))
    for group, name in (
        *(("activations", name) for name in ("preatt", "attproj", "fcproj")),
        *(("activation_grads", name) for name in ("qkv", "ln1", "residual3")),
    ):
        statements.refused(
            f"{group}/{name} of blocks that share it",
            StateError,
            f"{group}/{name}: its layers share one buffer, expected a session with keep_activations to read it",
            partial(trainer.tensor, group, name, 0),
        )


def _check_reads_of_shared(statements: Statements, trainer: Trainer) -> None:
    expected = "its layers share two buffers, expected a session with kept weight_gradients to read it"
    read = partial(trainer.tensor, "grads", "qkvw", 1)
    statements.refused("a reused gradient", StateError, f"grads/qkvw: {expected}", read)
    expected = "its layers share one buffer, expected a session with keep_activations to read it"
    for name in ("ln1", "att", "residual2", "fch_gelu"):
        read = partial(trainer.tensor, "activations", name, 1)
        statements.refused(f"{name}, which is recomputed", StateError, f"activations/{name}: {expected}", read)
    for group, name in (("grads", "wte"), ("activations", "residual3"), ("activation_grads", "encoded")):
        statements.allowed(f"{group}/{name}", partial(trainer.tensor, group, name))


def _check_reads_of_last(statements: Statements, trainer: Trainer) -> None:
    read = partial(trainer.tensor, "activations", "logits")
    last = B - B // trainer.sub_batches
    statements.equal("sequences kept", [slice(last, B)], trainer.kept_sequences("activations", "logits"))
    for first, end in ((0, B), (0, last)):
        sentence = (
            "activations/logits: found sub-batch 0, whose activation set another one has had since, expected one of "
            f"the last 1 of {trainer.sub_batches}"
        )
        statements.refused(
            f"sequences {first} to {end}", StateError, sentence, partial(read, sequences=slice(first, end))
        )
    statements.allowed("the last", partial(read, sequences=slice(last, B)))
    for group, name, sequences in (
        ("activations", "logits", slice(1, 1)),
        ("activations", "logits", slice(0, B, 2)),
        ("activations", "logits", slice(B, B + 1)),
        ("params", "wte", slice(0, 1)),
    ):
        sentence = f"sequences: found {sequences} of {group}, expected some of an activation"
        call = partial(trainer.tensor, group, name, sequences=sequences)
        statements.refused(f"{sequences} of {group}", InvalidArgumentError, sentence, call)


def _check_what_is_not_there(statements: Statements, trainer: Trainer) -> None:
    observer = Observer(trainer)
    for what, sentence, call in (
        ("a trace", _NOT_TRACED, trainer.trace),
        ("a trace to clear", _NOT_TRACED, trainer.clear_trace),
        ("findings", "the session has no instruments, expected one created with some", observer.findings),
        ("a hold", "hold: the session isn't traced, expected one created with trace", observer.hold),
        ("a release", "release: the session holds no tasks, expected a hold before", observer.release),
    ):
        statements.refused(f"{what} without trace", StateError, sentence, call)


def _check_trace(statements: Statements, trainer: Trainer) -> None:
    session = trainer._handle
    for name, array, sentence in (
        ("session_findings_read", np.empty(1, structs.FINDING), "findings: room for 1, expected 0"),
        ("session_runtime_edges", np.empty(2, np.int64), "edges: room for 1, expected 0"),
    ):
        statements.refused(
            f"{name} with too much room",
            InvalidArgumentError,
            sentence,
            partial(prototypes.call, name, session, array, 1),
        )


def _check_hold(statements: Statements, trainer: Trainer, seed: int, directory: Path) -> None:
    """While tasks are held back, whatever would wait for them is refused."""
    observer, batch = Observer(trainer), own_batch(trainer, seed, 0)
    trainer.save_state(directory / "before")
    observer.hold()
    statements.allowed("waiting for a state saved before", trainer.wait_saved)
    statements.refused(
        "a second hold", StateError, "hold: the session holds its tasks already, expected a release", observer.hold
    )
    slots = 2  # as in new_trainer; the second is the evaluation's
    losses = [trainer.submit(*batch)]
    statements.refused("an evaluation while tasks are held", StateError, _HELD, partial(trainer.evaluate, *batch))
    for loss in losses:
        statements.equal("the loss of a held submission is ready", False, loss.ready)
        statements.refused("the loss of a held submission", StateError, _HELD, loss.result)
    statements.refused(
        "one submission more",
        StateError,
        f"the session holds {slots} submissions, expected a release before the next",
        partial(trainer.submit, *batch),
    )
    calls: dict[str, Callable[[], object]] = {
        "a tensor": partial(trainer.tensor, "params", "wte"),
        "the trace": trainer.trace,
        "clearing the trace": trainer.clear_trace,
        "the findings": observer.findings,
        "the counts": observer.counts,
        "a checkpoint": partial(trainer.save_checkpoint, directory / "held.bin"),
        "a state": partial(trainer.save_state, directory / "held"),
    }
    for what, call in calls.items():
        statements.refused(f"{what} while tasks are held", StateError, _HELD, call)
    for name in ("held.bin", "held"):
        statements.equal(f"{name} was written", False, Path(directory, name).exists())
    statements.allowed("the release", observer.release)
    statements.equal("the loss of a released submission", True, math.isfinite(losses[0].result()))
    statements.allowed("submissions after it", partial(trainer.step, *batch))


def _check_counts(statements: Statements, trainer: Trainer, seed: int) -> None:
    """State that what the instruments have counted is forgotten with the trace."""
    trainer.step(*own_batch(trainer, seed, 0))
    observer = Observer(trainer)
    statements.equal("the instruments have counted", True, any(_counted(observer)))
    trainer.clear_trace()
    statements.equal("counts of cleared instruments", [0, 0, 0, 0], _counted(observer))


def _counted(observer: Observer) -> list[int]:
    counts = observer.counts()
    return [counts.pages, counts.poisoned, counts.poisoned_between, counts.searched]


def _check_watched(statements: Statements, trainer: Trainer, instruments: Instruments, directory: Path) -> None:
    statements.refused(
        f"a hold with {instruments}",
        StateError,
        "hold: the session is audited or poisoned, expected neither: both wait for all tasks before a submission",
        Observer(trainer).hold,
    )
    sentence = f"{directory / 'watched'}: number of batches is -1, expected at least 0"
    if not instruments.audit:
        call = partial(trainer.save_state, directory / "watched", batches=-1)
        statements.refused("a state after -1 batches", InvalidArgumentError, sentence, call)
        Path(directory, "watched", ".lock").unlink()
        Path(directory, "watched").rmdir()
    for keep in (0, -1):
        statements.refused(
            f"keeping {keep} states",
            InvalidArgumentError,
            f"keep: found {keep}, expected at least 1",
            partial(trainer.save_state, directory / "watched", keep=keep),
        )
    if instruments.audit:
        statements.refused(
            "a state of an audited trainer",
            StateError,
            "the session is audited, expected one that isn't: a state is written while tasks run, from memory that the "
            "audit closes outside of tasks",
            partial(trainer.save_state, directory / "watched"),
        )
    statements.equal("a state was saved", False, Path(directory, "watched").exists())
