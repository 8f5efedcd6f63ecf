"""The trainer: a GPT-2 model on a runtime, trained step by step; tensors are read back as NumPy arrays.

Users, the command line and the checks call it.
"""

from __future__ import annotations

import operator
import os
import secrets
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from starpullm import _native
from starpullm.errors import InvalidArgumentError, TokenRangeError
from starpullm.formats import ModelConfig, checkpoint_config
from starpullm.progress import report_phase
from starpullm.ranks import check_same_options
from starpullm.resource import Resource
from starpullm.runtime import Runtime
from starpullm.trace import Finding, FindingKind, HandleInfo, Trace

__all__ = ["GROUPS", "REDUCTIONS", "Instruments", "Loss", "Trainer", "TrainingState", "training_state"]

GROUPS = ("params", "grads", "m", "v", "activations", "activation_grads")
REDUCTIONS = ("ordered", "tree", "redux")


class Loss:
    """A mean loss that arrives when its tasks have run."""

    def __init__(self, handle: _native.LossHandle) -> None:
        self._handle = handle
        self._value: np.float32 | None = None

    @property
    def ready(self) -> bool:
        """Whether the value is there already."""
        return self._value is not None or bool(_native.call("loss_ready", self._handle))

    @property
    def value(self) -> np.float32:
        """The mean loss over the batch, in nats per token, binary32; waits for it."""
        if self._value is None:
            self._value = _native.loss_value(self._handle)
            self._release()
        return self._value

    def __float__(self) -> float:
        return float(self.value)

    def __repr__(self) -> str:
        return f"<Loss {self._value}>" if self._value is not None else "<Loss, not read yet>"

    def _release(self) -> None:
        # Given up before it is destroyed: an interrupt in between then leaks it instead of destroying it twice.
        handle, self._handle = self._handle, _native.LossHandle()
        if handle:
            _native.call("loss_destroy", handle)

    def __del__(self) -> None:
        self._release()


@dataclass(frozen=True)
class TrainingState:
    """What is known of a saved training state without reading its tensors.

    ``step`` updates led to it; ``batches`` of ``batch_size`` sequences (all ranks together) of ``seq_len`` tokens had
    been taken; ``ranks`` wrote it; ``seed`` and ``data_id`` are the caller's. ``passed_over`` says what is wrong with
    the newest of the newer states that aren't complete, "" if there is none. ``strict`` is False if a BLAS computed the
    matmuls of some of its steps.
    """

    path: Path
    config: ModelConfig
    step: int
    batches: int
    batch_size: int
    seq_len: int
    seed: int
    data_id: int
    ranks: int
    passed_over: str
    learning_rate: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    strict: bool


def training_state(path: str | os.PathLike[str]) -> TrainingState:
    """Return the newest complete training state in a folder, or the one whose folder it is.

    Raises
    ------
    FormatError
        If there is none, with what is wrong with the newest.
    FileError
        If the folder can't be read.
    """
    info = _native.TrainingStateInfo()
    _native.call("training_state_info", _native.c_string("path", path), info)
    return TrainingState(
        path=Path(os.fsdecode(info.path)),
        config=_model_config(info.config),
        step=info.step,
        batches=info.batches,
        batch_size=info.batch_size,
        seq_len=info.seq_len,
        seed=info.seed,
        data_id=info.data_id,
        ranks=info.ranks,
        passed_over=_native.text(info.passed_over),
        learning_rate=info.learning_rate,
        betas=(info.beta1, info.beta2),
        eps=info.eps,
        weight_decay=info.weight_decay,
        strict=not info.blas,
    )


def _model_config(struct: _native.ModelConfigStruct) -> ModelConfig:
    return ModelConfig(**{field.name: getattr(struct, field.name) for field in fields(ModelConfig)})


@dataclass(frozen=True)
class Instruments:
    """What looks into a trainer's run, or disturbs it, for checks; all of it costs time and none changes a result.

    Parameters
    ----------
    audit
        Memory is closed outside of tasks, and the first access to each page is compared with what the task declared.
        On one rank with partition 1x1, not with the reduction ``redux``; such a trainer doesn't save states.
    poison
        Buffers that a task declares to write, and between submissions everything that none needs of the one before, are
        filled with a signalling NaN. What a submission doesn't write can't be read back after it. On one rank.
    max_delay_us, delay_seed
        Every task waits for 0 to so many microseconds before its kernel; the seed and the task's number decide.
    """

    audit: bool = False
    poison: bool = False
    max_delay_us: int = 0
    delay_seed: int = 0


class _Tensor(NamedTuple):
    """A line of the native library's tensor table; shape is one layer's."""

    number: int
    layered: bool
    instances: int
    shape: tuple[int, ...]


class Trainer(Resource):
    """A model being trained; a context manager.

    Parameters
    ----------
    runtime
        The runtime whose workers run the tasks; must stay open as long as the trainer.
    checkpoint
        Model file (llm.c's format, version 3) to start from; m and v start at 0.
    resume
        Instead: folder of training states (see ``save_state``), of which the newest complete one is taken, or the
        folder of one. Parameters, m, v and the number of updates are as they were when it was saved, so a run goes on
        bit for bit, on any partition and any number of ranks, if the batches and the options go on likewise.
    batch_size, seq_len
        B sequences of T tokens make one step; T at most the checkpoint's longest sequence. Over R ranks each brings B
        sequences of its own, and the whole batch is R·B, rank 0's first.
    sub_batches
        A divisor of B: each rank's batch is cut into so many parts that run independently of each other.
    reduction
        How the gradients of the S sub-batches of all ranks become one. ``"ordered"``: in the whole batch's order,
        with its bits; one set of gradients per rank. ``"tree"``: in a binary tree whose shape S alone decides, so with
        the same bits wherever it runs; S sets over all ranks. ``"redux"``: by StarPU's own reduction; the bits vary
        from run to run, the error is bounded; one set per worker.
    learning_rate, betas, eps, weight_decay
        AdamW's.
    keep_activations
        Every activation and its gradient can be read after a step; takes more memory.
    steps_in_flight
        Steps that may be submitted and unfinished; ``submit`` waits beyond that.
    trace
        Record every task, for ``trace()``.
    instruments
        What looks into the run; needs ``trace``. ``findings()`` returns what they found.

    Raises
    ------
    InvalidArgumentError
        If an option can't be served, or isn't the same on all ranks; the sentence says which and what was expected.
    FormatError, FileError
        If the checkpoint isn't one, or can't be read.
    StateError
        If the runtime is closed.
    OutOfMemoryError
        If the buffers can't be allocated.
    """

    def __init__(
        self,
        runtime: Runtime,
        checkpoint: str | os.PathLike[str] | None = None,
        *,
        resume: str | os.PathLike[str] | None = None,
        batch_size: int,
        seq_len: int,
        sub_batches: int = 1,
        reduction: str = "ordered",
        learning_rate: float = 3e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        keep_activations: bool = False,
        steps_in_flight: int = 2,
        trace: bool = False,
        instruments: Instruments | None = None,
    ) -> None:
        self._handle = _native.SessionHandle()
        if reduction not in REDUCTIONS:
            raise InvalidArgumentError(f'reduction: found "{reduction}", expected one of {", ".join(REDUCTIONS)}')
        if len(betas) != 2:
            raise InvalidArgumentError(f"betas: found {len(betas)} numbers, expected 2")
        options = _native.SessionOptions(
            checkpoint=None if checkpoint is None else _native.c_string("checkpoint", checkpoint),
            resume=None if resume is None else _native.c_string("resume", resume),
            batch_size=_native.integer("batch_size", batch_size, 64),
            seq_len=_native.integer("seq_len", seq_len, 64),
            sub_batches=_native.integer("sub_batches", sub_batches, 64),
            reduction=REDUCTIONS.index(reduction),
            learning_rate=learning_rate,
            beta1=betas[0],
            beta2=betas[1],
            eps=eps,
            weight_decay=weight_decay,
            keep_activations=keep_activations,
            steps_in_flight=_native.integer("steps_in_flight", steps_in_flight, 32),
            trace=trace,
            **_instrument_options(instruments or Instruments()),
        )
        if runtime.comm:
            check_same_options(
                runtime.comm, {**_options_of_all_ranks(options, checkpoint, resume), "matmul": runtime.matmul}
            )
        report_phase("loading the model")
        _native.call("session_create", runtime._handle, options, self._handle.address)
        self.runtime = runtime
        self.batch_size, self.seq_len, self.sub_batches = batch_size, seq_len, sub_batches
        self.reduction = reduction
        # States of two runs are told apart by it.
        self._run = secrets.randbits(64)
        if runtime.comm:
            self._run = runtime.comm.bcast(self._run)
        self.config = self._read_config()
        self._tensors = {group: self._read_tensor_table(number) for number, group in enumerate(GROUPS)}

    def submit(self, inputs: ArrayLike, targets: ArrayLike) -> Loss:
        """Submit one step (forward, backward, update) and return at once.

        Parameters
        ----------
        inputs, targets
            Token ids, integers (B, T); over ranks this rank's part of the batch.

        Raises
        ------
        TokenRangeError
            If an id is negative or not below the vocabulary's size; nothing was changed.
        InvalidArgumentError
            If a shape isn't (B, T).
        StateError
            If the trainer is closed.
        """
        return self._submit("session_submit_step", inputs, targets)

    def step(self, inputs: ArrayLike, targets: ArrayLike) -> np.float32:
        """Do one step and return its mean loss (before the update); as ``submit``, but waits for the loss."""
        return self.submit(inputs, targets).value

    def evaluate(self, inputs: ArrayLike, targets: ArrayLike) -> np.float32:
        """Return the mean loss of a batch with the parameters as they are; arguments and errors as ``submit``."""
        return self._submit("session_submit_evaluation", inputs, targets).value

    def probabilities(self, inputs: ArrayLike, sequence: int, position: int) -> NDArray[np.float32]:
        """Run the forward pass on inputs (B, T) and return the probabilities (V) after one position of a sequence."""
        _check_index("sequence", sequence, self.batch_size)
        _check_index("position", position, self.seq_len)
        _native.call("session_submit_forward", self._handle, self._tokens("inputs", inputs))
        probs = np.empty(self.config.vocab_size, np.float32)
        offset = (sequence * self.seq_len + position) * self.config.padded_vocab_size
        self._read("activations", self._named("activations", "probs"), 0, offset, probs)
        return probs

    def wait(self) -> None:
        """Wait until everything that was submitted has run."""
        _native.call("session_wait", self._handle)

    def tensor_names(self, group: str) -> list[str]:
        """Return the tensors of a group, in the checkpoint's order or in order of execution.

        Tensors that exist once per layer appear once.
        """
        return list(self._group(group))

    def layers_of(self, group: str, name: str) -> int | None:
        """Return how many layers a tensor exists for, or None if it exists once."""
        tensor = self._named(group, name)
        return tensor.instances if tensor.layered else None

    def gather(self) -> None:
        """Over ranks, begin to bring every tensor here: ``tensor`` then doesn't wait for one after the other.

        Every rank calls it, or none does. Takes the memory of all tensors until they have been read.
        """
        _native.call("session_gather", self._handle)

    def tensor(self, group: str, name: str, layer: int | None = None) -> NDArray[np.float32]:
        """Wait for the tasks that write a tensor and return a copy of it.

        Over ranks every rank calls it and every rank gets the whole, with the activations of all ranks' sequences.

        Parameters
        ----------
        group
            One of ``params``, ``grads``, ``m``, ``v``, ``activations``, ``activation_grads``.
        name
            Parameters, also of ``grads``, ``m``, ``v``: wte (Vp, C), wpe (maxT, C), ln1w, ln1b (C), qkvw (3C, C),
            qkvb (3C), attprojw (C, C), attprojb (C), ln2w, ln2b (C), fcw (4C, C), fcb (4C), fcprojw (C, 4C),
            fcprojb (C), lnfw, lnfb (C). Activations and their gradients: encoded, ln1, atty, attproj, residual2, ln2,
            fcproj, residual3, lnf (B, T, C), ln1_mean, ln1_rstd, ln2_mean, ln2_rstd, lnf_mean, lnf_rstd, losses
            (B, T), qkv (B, T, 3C), preatt, att (B, NH, T, T), fch, fch_gelu (B, T, 4C), logits, probs (B, T, Vp).
        layer
            Which layer's; None for a tensor with layers gives all of them, with a first dimension L.

        Raises
        ------
        InvalidArgumentError
            If there is no such group, tensor or layer.
        StateError
            If the trainer is closed, or the tensor's layers share a buffer (see ``keep_activations``).
        """
        tensor = self._named(group, name)
        if not tensor.layered and layer is not None:
            raise InvalidArgumentError(f"{name}: found layer {layer}, expected none: the tensor exists once")
        layers = [0] if not tensor.layered else range(tensor.instances) if layer is None else [layer]
        values = np.empty((len(layers), *tensor.shape), np.float32)
        for position, number in enumerate(layers):
            self._read(group, tensor, _native.integer("layer", number, 32), 0, values[position])
        return values if tensor.layered and layer is None else values[0]

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write the parameters after the last submitted step, atomically: temporary name, fsync, rename.

        Over ranks every rank calls it and rank 0 writes; only there can it fail.

        Raises
        ------
        FileError
            If the file can't be written; what was there before is still there.
        FormatError
            If something that isn't a regular file is in its place.
        """
        _native.call("session_save_checkpoint", self._handle, _native.c_string("path", path))

    def save_state(
        self,
        directory: str | os.PathLike[str],
        *,
        batches: int = 0,
        seed: int = 0,
        data_id: int = 0,
        keep: int = 2,
    ) -> None:
        """Save what a run resumes from, after the last submitted step, while the next ones go on.

        Parameters, m and v are read between two updates; the next step's forward and backward run while they are
        written, by each rank what it owns. Waits for the save before. A state that isn't whole, for whatever reason, is
        never taken for one, and the last complete one stays.

        Parameters
        ----------
        directory
            Gets a folder per state; made if it isn't there.
        batches, seed, data_id
            Where the data are, as ``training_state`` gives it back: batches taken, and numbers of the caller's.
        keep
            How many states stay.

        Raises
        ------
        FileError
            If this save can't be begun, or the one before failed. ``errno.EBUSY``: another run that is still open
            saves into the directory.
        InvalidArgumentError
            If ``keep`` isn't positive.
        """
        options = _native.SaveOptions(
            directory=_native.c_string("directory", directory),
            run=self._run,
            batches=_native.integer("batches", batches, 64),
            seed=_native.integer("seed", seed, 64),
            data_id=data_id,
            keep=_native.integer("keep", keep, 32),
        )
        _native.call("session_save_state", self._handle, options)

    def wait_saved(self) -> None:
        """Wait until the last ``save_state`` is on the disk.

        Raises
        ------
        FileError
            If it failed.
        """
        _native.call("session_wait_saved", self._handle)

    def trace(self) -> Trace:
        """Wait for everything that was submitted and return all tasks recorded since the last ``clear_trace``.

        Raises
        ------
        StateError
            If the trainer was made without ``trace=True``.
        """
        tasks, accesses = _native.trace_size(self._handle)
        task_table = np.empty(tasks, _native.TRACE_TASK)
        access_table = np.empty(accesses, _native.TRACE_ACCESS)
        _native.call("session_trace_read", self._handle, task_table, len(task_table), access_table, len(access_table))
        return Trace(task_table, access_table, tuple(_native.names("operation_name")), self._read_handles())

    def hold(self) -> None:
        """Wait for everything that was submitted, and hold back the tasks of the next ``steps_in_flight`` submissions.

        None runs before ``release``, so don't wait for a loss until then.

        Raises
        ------
        StateError
            If the trainer can't: it was made without ``trace``, over ranks, or with ``audit`` or ``poison``; or it
            holds tasks already.
        """
        _native.call("session_hold", self._handle)

    def release(self) -> NDArray[np.int64]:
        """Ask StarPU which of the held tasks wait for which, let them go, and return what it said.

        Returns
        -------
        Integers (E, 2): the id in the trace of a task, and of one that waits for it. Ids below 0 are tasks that StarPU
        added itself.

        Raises
        ------
        StateError
            If no tasks are held.
        """
        return _native.release(self._handle)

    def findings(self) -> list[Finding]:
        """Wait for everything that was submitted and return what the instruments found since the last ``clear_trace``.

        Raises
        ------
        StateError
            If the trainer was made without instruments.
        """
        table = np.empty(_native.findings_size(self._handle), _native.FINDING)
        _native.call("session_findings_read", self._handle, table, len(table))
        handles = self._read_handles()
        return [
            Finding(None if task < 0 else task, handles[handle], FindingKind(kind), offset, count)
            for task, handle, kind, offset, count in table.tolist()
        ]

    def clear_trace(self) -> None:
        """Forget what was recorded, and what instruments found."""
        _native.call("session_trace_clear", self._handle)

    def _destroy(self) -> None:
        # Given up first, as a loss is.
        handle, self._handle = self._handle, _native.SessionHandle()
        _native.call("session_destroy", handle)

    def __del__(self) -> None:
        # One that is dropped unclosed would keep the runtime from closing. Without a handle __init__ wasn't reached; at
        # the program's end there is nothing left to keep.
        if hasattr(self, "_handle") and not sys.is_finalizing():
            self.close()

    def _submit(self, function: str, inputs: ArrayLike, targets: ArrayLike) -> Loss:
        loss = _native.LossHandle()
        _native.call(
            function,
            self._handle,
            self._tokens("inputs", inputs),
            self._tokens("targets", targets),
            loss.address,
        )
        return Loss(loss)

    def _tokens(self, what: str, tokens: ArrayLike) -> NDArray[np.int32]:
        expected = (self.batch_size, self.seq_len)
        try:
            array = np.asarray(tokens)
        except ValueError as error:
            raise InvalidArgumentError(f"{what}: expected integers {expected} (batch, sequence): {error}") from error
        if array.shape != expected or array.dtype.kind not in "iu":
            raise InvalidArgumentError(
                f"{what}: found {array.dtype} {array.shape}, expected integers {expected} (batch, sequence)"
            )
        # C checks the ids, but couldn't tell those that only look valid in their lower 32 bits.
        limits = np.iinfo(np.int32)
        outside = (array < limits.min) | (array > limits.max)
        if outside.any():
            b, t = np.argwhere(outside)[0]
            raise TokenRangeError(
                f"{what}[{b}, {t}]: token {array[b, t]} is out of range, expected 0 to {self.config.vocab_size - 1}"
            )
        return np.ascontiguousarray(array, np.int32)

    def _read_config(self) -> ModelConfig:
        struct = _native.ModelConfigStruct()
        _native.call("session_config", self._handle, struct)
        return _model_config(struct)

    def _read_tensor_table(self, group: int) -> dict[str, _Tensor]:
        table: dict[str, _Tensor] = {}
        info = _native.TensorInfo()
        for index in range(_native.call("tensor_count", group)):
            _native.call("session_tensor_info", self._handle, group, index, info)
            name = _native.text(info.name)
            table[name] = _Tensor(index, bool(info.layered), int(info.instances), tuple(info.dims[: info.num_dims]))
        return table

    def _read_handles(self) -> tuple[HandleInfo, ...]:
        handles = []
        info = _native.HandleInfo()
        for index in range(_native.call("session_handle_count", self._handle)):
            _native.call("session_handle_info", self._handle, index, info)
            handles.append(HandleInfo(index, _native.text(info.name), int(info.bytes)))
        return tuple(handles)

    def _read(self, group: str, tensor: _Tensor, layer: int, offset: int, values: NDArray[np.float32]) -> None:
        group_number = GROUPS.index(group)
        _native.call(
            "session_read_tensor",
            self._handle,
            group_number,
            tensor.number,
            layer,
            offset,
            values.size,
            values,
        )

    def _group(self, group: str) -> dict[str, _Tensor]:
        if group not in self._tensors:
            raise InvalidArgumentError(f'group: found "{group}", expected one of {", ".join(GROUPS)}')
        return self._tensors[group]

    def _named(self, group: str, name: str) -> _Tensor:
        tensors = self._group(group)
        if name not in tensors:
            raise InvalidArgumentError(f'{group}: found tensor "{name}", expected one of {", ".join(tensors)}')
        return tensors[name]


def _instrument_options(instruments: Instruments) -> dict[str, int]:
    """Return the options of the C ABI; their bits are ``enum starpullm_instrument``."""
    flags = (instruments.audit, instruments.poison, instruments.max_delay_us != 0)
    return {
        "instruments": sum(bool(flag) << bit for bit, flag in enumerate(flags)),
        "max_delay_us": _native.integer("max_delay_us", instruments.max_delay_us, 32),
        "delay_seed": _native.integer("delay_seed", instruments.delay_seed, 64) % 2**64,
    }


def _options_of_all_ranks(
    options: _native.SessionOptions,
    checkpoint: str | os.PathLike[str] | None,
    resume: str | os.PathLike[str] | None,
) -> dict[str, object]:
    """Return what must be the same on all ranks; of files what is in them: each machine may have its own copy."""
    same = {name: getattr(options, name) for name, *_ in options._fields_ if name not in ("checkpoint", "resume")}
    if checkpoint is not None:
        same["checkpoint's model"] = checkpoint_config(checkpoint)
    if resume is not None:
        state = training_state(resume)
        same["training state"] = (state.step, state.batches, state.data_id)
    return same


def _check_index(name: str, value: int, limit: int) -> None:
    if not 0 <= operator.index(value) < limit:
        raise InvalidArgumentError(f"{name}: found {value}, expected 0 to {limit - 1}")
