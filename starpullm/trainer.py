"""The trainer: a GPT-2 model that is trained step by step on a runtime, and whose tensors are read as NumPy arrays."""

from __future__ import annotations

import ctypes
import math
import operator
import os
import secrets
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from starpullm.binding import prototypes, structs
from starpullm.errors import InvalidArgumentError
from starpullm.files.header import StrPath
from starpullm.files.kinds import CHECKPOINT, STATES, expecting
from starpullm.instruments import Instruments
from starpullm.loss import Loss
from starpullm.memory import available_memory
from starpullm.options import TrainingOptions
from starpullm.processes.progress import report_phase
from starpullm.processes.ranks import check_same_options, common_call, failing_together
from starpullm.resource import Resource
from starpullm.resume import check_shared, model_config, options_of_all_ranks, training_state
from starpullm.runtime import Runtime
from starpullm.schedules import number_of_pipelines, session_options
from starpullm.tensors import GROUPS, Tensor, TensorGroup, TensorTable, chosen_sequences, token_ids
from starpullm.trace import Trace, read_trace


class Trainer(Resource):
    """A model that is being trained; a context manager.

    ``trainer.params["qkvw"]`` is a copy of a parameter, all layers together; likewise ``grads``, ``m``, ``v``,
    ``activations`` and ``activation_grads`` (see ``tensor``).

    Of the parameters, ``options`` are those that `starpullm.options.TrainingOptions` has, with their defaults.

    Parameters
    ----------
    runtime
        The runtime whose workers run the tasks. It must stay open as long as the trainer.
    checkpoint
        Model file (llm.c's format, version 3) to start from; m and v start at 0.
    resume
        Instead of a checkpoint: a training state's folder, or the folder above it, of which the newest complete state
        is taken (see ``save_state``). Parameters, m, v and the number of updates are those that were saved. With the
        same batches and options the run continues bit for bit, on any partition and any number of ranks.
    batch_size, seq_len
        B and T: a step is made of B sequences of T tokens. T is at most the model's longest sequence. Over R ranks each
        rank has B sequences of its own, and the whole batch has R·B, those of rank 0 first.
    sub_batches
        A divisor of B: the number of parts of each rank's batch, which run independently of each other.
    activation_sets
        The number of sub-batches of each rank that have buffers for activations, and so run, at a time; 0: all.
        Sub-batch s has those of set s modulo this number, and its forward pass waits for the backward pass of the
        sub-batch that had them before. With fewer sets than sub-batches, activations of the last ones can be read only
        (see ``kept_sequences``).
    reduction
        How the gradients of all S sub-batches are added. ``"ordered"``: in the order of the whole batch and with its
        bits; one set of gradients per rank. ``"tree"``: in a binary tree that depends on S only, so with the same bits
        on any placement; S sets over all ranks. ``"redux"``: by StarPU's own reduction; the bits change from run to
        run and the error is bounded; one set per worker.
    stages
        More than one: the blocks are cut into so many stages. So many ranks are a pipeline, with a stage on each, and
        submit the same batch of B sequences; R ranks are several pipelines. A sequence of numbers says how many blocks
        each stage has; the last, with the head, may have none. Not with ``"redux"``.
    schedule
        How far the forward passes of a stage are ahead of its backward passes. ``"gpipe"``: as many sub-batches as
        there are activation sets, ``"1f1b"``: W in the last stage, and W more in each stage before, with W workers.
        ``"zero-bubble"``: W·(P+2) with P stages; the gradients of weights fill the gaps, which needs
        ``gradient_buffers="block"``. A function of P and S returns the list of all passes (``starpullm.schedules``).
    gradient_buffers
        ``"block"``: each block has buffers for the gradients that those of the weights are computed from, so that its
        next backward pass needn't wait for them; 11·B·T·C floats for each block and activation set.
    weight_gradient_tiles
        With ``"ordered"``: the running sums that the gradient of each weight is cut into by rows, at most one a row. 0:
        so many that no chain of sums is longer than about a twentieth of a step, by the sizes of the model, S and the
        workers of all ranks. The bits are the same.
    learning_rate, betas, eps, weight_decay
        Settings of AdamW, also of a trainer that resumes from a training state, whatever that was saved with.
        ``submit`` can give each step a learning rate of its own.
    keep_activations
        Whether every activation and its gradient can be read after a step. This takes more memory.
    recompute
        What the backward pass of a block computes again, with the same bits, instead of each block keeping it.
        ``"attention"``: the probabilities and outputs of attention, ``"block"``: all but the block's output. Not with
        ``keep_activations``.
    weight_gradients
        ``"reused"``: the blocks have two sets of gradients in turn, and each is updated directly after its backward
        pass; their gradients can't be read then. On one rank with one sub-batch.
    steps_in_flight
        How many steps may be unfinished; ``submit`` waits if there are more.
    trace
        Whether every task is recorded, for ``trace()``.
    instruments
        What observes or perturbs the tasks; needs ``trace``.
    memory_limit
        The bytes for buffers that the ranks of this machine share equally; 0: any number. None: what the machine and
        its control groups leave. StarPU's own buffers, for messages and ``redux``, aren't counted.

    Raises
    ------
    InvalidArgumentError
        If an option can't be satisfied, or isn't the same on all ranks.
    FormatError, FileError
        If the checkpoint or training state has a wrong format or can't be read.
    StateError
        If the runtime is closed.
    OutOfMemoryError
        If the buffers take more than the limit, can't be allocated, or have a runtime's limit below that of the largest
        tasks. StarPU aborts (SIGABRT) where it finds none.
    """

    def __init__(
        self,
        runtime: Runtime,
        checkpoint: StrPath | None = None,
        *,
        resume: StrPath | None = None,
        batch_size: int,
        seq_len: int,
        learning_rate: float = 3e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        keep_activations: bool = False,
        steps_in_flight: int = 2,
        trace: bool = False,
        instruments: Instruments | None = None,
        memory_limit: int | None = None,
        **options: Any,
    ) -> None:
        self._handle = structs.Handle("session")
        if len(betas) != 2:
            raise InvalidArgumentError(f"betas: found {len(betas)} numbers, expected 2")
        training = TrainingOptions(**options)
        session = session_options(
            training,
            batch_size=batch_size,
            seq_len=seq_len,
            ranks=runtime.ranks,
            workers=runtime.most_workers,
            checkpoint=None if checkpoint is None else prototypes.c_string("checkpoint", checkpoint),
            resume=None if resume is None else prototypes.c_string("resume", resume),
            learning_rate=prototypes.binary32(learning_rate),
            beta1=prototypes.binary32(betas[0]),
            beta2=prototypes.binary32(betas[1]),
            eps=prototypes.binary32(eps),
            weight_decay=prototypes.binary32(weight_decay),
            keep_activations=keep_activations,
            steps_in_flight=prototypes.integer("steps_in_flight", steps_in_flight, 32),
            trace=trace,
            memory_limit=available_memory()
            if memory_limit is None
            else prototypes.integer("memory_limit", memory_limit, 64),
            **(instruments or Instruments()).options(),
        )
        if runtime.comm:
            runtime.comm.Barrier()  # until then a rank may save what the others resume from
            with failing_together(runtime.comm):
                same = options_of_all_ranks(session, checkpoint, resume)
            check_same_options(runtime.comm, {**same, "arithmetic": runtime.matmul})
        report_phase("loading the model", 0)
        self.runtime = runtime
        self.batch_size, self.seq_len, self.sub_batches = batch_size, seq_len, training.sub_batches
        self.reduction, self.learning_rate = training.reduction, learning_rate
        self.pipelines = number_of_pipelines(runtime.ranks, training.stages)
        source, kind = (resume or "", STATES) if checkpoint is None else (checkpoint, CHECKPOINT)
        with self._creating(), expecting(kind, Path(source)):
            prototypes.call("session_create", runtime._handle, session, self._handle.address)
            run = secrets.randbits(64)  # distinguishes the states of two runs
            self._run = runtime.comm.bcast(run) if runtime.comm else run
            (config,) = prototypes.results("session_config", self._handle)
            self.config = model_config(config)
            self._last_step = 0 if resume is None else training_state(resume).step
            self._tensors = TensorTable(self._handle)
            self._claimed: set[str] = set()
            report_phase("after loading the model", self._last_step)

    def submit(self, inputs: ArrayLike, targets: ArrayLike, *, learning_rate: float | None = None) -> Loss:
        """Submit one step (forward, backward, update) and return without waiting for it.

        Parameters
        ----------
        inputs, targets
            Token ids, integers (B, T); over ranks this rank's part of the batch, or with stages the batch.
        learning_rate
            Of this step's update, rounded to binary32; the same on all ranks. None: that of the trainer.

        Raises
        ------
        TokenRangeError
            If an id isn't in [0, V). Then nothing has been submitted.
        InvalidArgumentError
            If a shape isn't (B, T), or the learning rate isn't finite or is negative.
        StateError
            If the trainer is closed, or a step was submitted only in part.
        RuntimeFailureError
            If StarPU refuses a task of this step, or a task of an earlier one has failed.
        """
        rate = ctypes.c_float(prototypes.binary32(self.learning_rate if learning_rate is None else learning_rate))
        number = self._last_step + 1
        report_phase(f"submitting step {number}")
        loss = self._submit("session_submit_step", inputs, targets, rate, step=number)
        self._last_step = number
        report_phase(f"after submitting step {number}")
        return loss

    def step(self, inputs: ArrayLike, targets: ArrayLike, *, learning_rate: float | None = None) -> np.float32:
        """Do one step and return its mean loss, which is that before the update.

        Arguments and errors are those of ``submit``. RuntimeFailureError is raised too if a task of this step fails.
        """
        return self.submit(inputs, targets, learning_rate=learning_rate).result()

    def evaluate(self, inputs: ArrayLike, targets: ArrayLike) -> np.float32:
        """Return the mean loss of a batch and change no parameter.

        Arguments and errors are those of ``submit``. RuntimeFailureError is raised too if a task of it fails.
        """
        return self._submit("session_submit_evaluation", inputs, targets).result()

    def probabilities(self, inputs: ArrayLike, sequence: int, position: int) -> NDArray[np.float32]:
        """Run the forward pass on inputs (B, T) and return the probabilities (V) of the token after one position.

        Raises
        ------
        InvalidArgumentError
            If the shape isn't (B, T), or there is no such sequence or position.
        TokenRangeError
            If an id isn't in [0, V).
        RuntimeFailureError
            If StarPU refuses a task, or a task has failed.
        """
        _check_index("sequence", sequence, self.batch_size)
        _check_index("position", position, self.seq_len)
        self._call("session_submit_forward", self._tokens("inputs", inputs))
        probs = np.empty(self.config.vocab_size, np.float32)
        offset = (sequence * self.seq_len + position) * self.config.padded_vocab_size
        self._read("activations", self._tensors.named("activations", "probs"), 0, offset, probs)
        return probs

    def wait(self) -> None:
        """Wait until all submitted tasks have run; `RuntimeFailureError` is raised if one of them has failed."""
        prototypes.call("session_wait", self._handle)

    def tensor_names(self, group: str) -> list[str]:
        """Return the names of a group's tensors, in the checkpoint's order or in that in which they are computed.

        A tensor that exists for every layer appears once.
        """
        return list(self._tensors.of_group(group))

    def layers_of(self, group: str, name: str) -> int | None:
        """Return the number of layers that have this tensor, or None if it doesn't belong to a layer."""
        tensor = self._tensors.named(group, name)
        return tensor.instances if tensor.layered else None

    def kept_sequences(self, group: str, name: str) -> list[slice]:
        """Return the parts of the whole batch of which an activation, or its gradient, can be read after a step.

        With fewer activation sets than sub-batches, on any stage, these are each pipeline's last sub-batches.
        """
        kept = self._tensors.named(group, name).sub_batches_kept * (self.batch_size // self.sub_batches)
        ends = range(self.batch_size, (self.pipelines + 1) * self.batch_size, self.batch_size) if kept else ()
        return [slice(end - kept, end) for end in ends]

    def tensor(
        self, group: str, name: str, layer: int | None = None, *, sequences: slice | None = None
    ) -> NDArray[np.float32]:
        """Wait for the tasks that write a tensor and return a copy of it.

        Over ranks all ranks must call it, also those that don't need the tensor: on one rank alone, for example under
        ``if runtime.rank == 0``, it waits for ever. Each gets the whole tensor, with the activations of all ranks'
        sequences.

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
            Number of the layer. None: all layers of the tensor if it has any, with a first dimension L.
        sequences
            Of an activation or its gradient: which ones of the whole batch, one after the other. None: all.

        Raises
        ------
        InvalidArgumentError
            If there is no such group, tensor or layer, or no such sequences.
        StateError
            If the trainer is closed, or the tensor's layers share buffers (see ``keep_activations``, ``recompute`` and
            ``weight_gradients``), or sub-batches do (see ``activation_sets``), or its value was invalidated (see
            ``Runtime``, ``offload_plan``).
        RuntimeFailureError
            If a task has failed: the tensor may have been computed from what it left.
        """
        tensor = self._tensors.named(group, name)
        if not tensor.layered and layer is not None:
            raise InvalidArgumentError(f"{name}: found layer {layer}, expected none: the tensor exists once")
        layers = [0] if not tensor.layered else range(tensor.instances) if layer is None else [layer]
        first, count = (0, tensor.shape[0]) if sequences is None else chosen_sequences(sequences, group, tensor)
        values = np.empty((len(layers), count, *tensor.shape[1:]), np.float32)
        offset = first * math.prod(tensor.shape[1:])
        for position, number in enumerate(layers):
            self._read(group, tensor, prototypes.integer("layer", number, 32), offset, values[position])
        return values if tensor.layered and layer is None else values[0]

    @property
    def params(self) -> TensorGroup:
        """The parameters after the last submitted step."""
        return TensorGroup(self, "params")

    @property
    def grads(self) -> TensorGroup:
        """The gradients of the parameters, of the last submitted step."""
        return TensorGroup(self, "grads")

    @property
    def m(self) -> TensorGroup:
        """AdamW's first moments."""
        return TensorGroup(self, "m")

    @property
    def v(self) -> TensorGroup:
        """AdamW's second moments."""
        return TensorGroup(self, "v")

    @property
    def activations(self) -> TensorGroup:
        """The activations of the last submission."""
        return TensorGroup(self, "activations")

    @property
    def activation_grads(self) -> TensorGroup:
        """The gradients of the activations, of the last submitted step."""
        return TensorGroup(self, "activation_grads")

    def save_checkpoint(self, path: StrPath) -> None:
        """Write the parameters after the last submitted step to a file, atomically (temporary name, fsync, rename).

        Over ranks all ranks must call it; rank 0 writes, and only rank 0 raises errors.

        Raises
        ------
        FileError
            If the file can't be written. A file that existed before is unchanged.
        FormatError
            If the path exists and isn't a regular file.
        RuntimeFailureError, StateError
            If a task has failed, or a step was submitted only in part. Nothing is written then.
        """
        self._call("session_save_checkpoint", prototypes.c_string("path", path))

    def claim_directory(self, directory: StrPath) -> None:
        """Keep other runs from saving states into a directory until the trainer is closed.

        Each ``save_state`` does this. A run that calls it before its first step learns at its start that it can't save
        there, and no other run can save newer states there before its own first one. Over ranks all ranks must call it.

        Parameters
        ----------
        directory
            Where states will be saved; it is created if it doesn't exist.

        Raises
        ------
        FileError
            If the directory can't be created or locked. With ``errno.EBUSY``: another open run saves into it.
        InvalidArgumentError
            If it has a complete state of a later step than this trainer's; a run would resume from that one. If it is
            a state's own folder, or isn't shared by all ranks.
        """
        with expecting(STATES, Path(directory)):
            self._call("session_claim_directory", prototypes.c_string("directory", directory), self._run)
        if self.runtime.comm:
            check_shared(self.runtime.comm, directory)
        self._claimed.add(os.fspath(directory))

    def save_state(
        self, directory: StrPath, *, batches: int = 0, seed: int = 0, data_id: int = 0, keep: int = 2
    ) -> None:
        """Save the state after the last submitted step, from which a run can resume, while training goes on.

        Parameters, m and v are read between two updates and written during the next forward and backward pass. Each
        rank writes the tensors that it owns. This call waits for the previous save. An incomplete state is never
        resumed from, and the last complete state is kept.

        Parameters
        ----------
        directory
            Where the state's folder is created; it is created too if it doesn't exist.
        batches, seed, data_id
            Returned by ``training_state``: the number of batches read, and two numbers that the caller chooses.
            ``data_id`` has no sign; all three have 64 bits.
        keep
            Number of states to keep.

        Raises
        ------
        FileError
            If this save can't be started, or the previous one failed. With ``errno.EBUSY``: another open run saves into
            the directory.
        InvalidArgumentError
            If ``keep`` isn't positive, or a number has more than 64 bits. If the directory has a complete state of a
            later step, or another run's of this step, or is a state's own folder.
        RuntimeFailureError, StateError
            If a task has failed, or a step was submitted only in part. Nothing is saved then.
        """
        if self.runtime.comm and os.fspath(directory) not in self._claimed:
            self.claim_directory(directory)
        options = structs.new(
            "save_options",
            directory=prototypes.c_string("directory", directory),
            run=self._run,
            batches=prototypes.integer("batches", batches, 64),
            seed=prototypes.integer("seed", seed, 64),
            data_id=prototypes.unsigned("data_id", data_id, 64),
            keep=prototypes.integer("keep", keep, 32),
        )
        self._call("session_save_state", options)

    def wait_saved(self) -> None:
        """Wait until what this rank writes of the state of the last ``save_state`` is on the disk.

        If saving failed, `FileError` is raised; if a task failed before all tensors had been read,
        `RuntimeFailureError`, and nothing is saved.
        """
        prototypes.call("session_wait_saved", self._handle)

    def trace(self) -> Trace:
        """Wait for all submitted tasks and return those that were recorded since the last ``clear_trace``.

        Over ranks every rank has to call this, and gets the tasks of all ranks, but times and workers of its own only.

        Raises
        ------
        RuntimeFailureError
            If the ranks have submitted different tasks.
        StateError
            If the trainer was created without ``trace=True``.
        """
        return read_trace(self._handle, self.runtime.comm)

    def clear_trace(self) -> None:
        """Discard the recorded tasks, and what instruments found in them; errors as ``trace``."""
        prototypes.call("session_trace_clear", self._handle)

    @property
    def _own_runtime(self) -> Runtime:
        return self.runtime

    def _destroy(self) -> None:
        try:
            prototypes.call("session_wait_saved", self._handle)
        finally:
            prototypes.call("session_destroy", self._handle.address)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Trainer {self.batch_size}x{self.seq_len} on {self.runtime!r}, {state}>"

    def _submit(
        self, function: str, inputs: ArrayLike, targets: ArrayLike, *options: object, step: int | None = None
    ) -> Loss:
        loss = structs.Handle("loss")
        tokens = self._tokens("inputs", inputs), self._tokens("targets", targets)
        self._call(function, *tokens, *options, loss.address)
        return Loss(loss, step)

    def _call(self, function: str, *arguments: object) -> None:
        """Call a function that all ranks have to call."""
        with common_call(self.runtime.comm):
            prototypes.call(function, self._handle, *arguments)

    def _tokens(self, what: str, tokens: ArrayLike) -> NDArray[np.int32]:
        return token_ids(what, tokens, (self.batch_size, self.seq_len), self.config.vocab_size)

    def _read(self, group: str, tensor: Tensor, layer: int, offset: int, values: NDArray[np.float32]) -> None:
        where = (GROUPS.index(group), tensor.number, layer, offset)
        self._call("session_read_tensor", *where, values.size, values)


def _check_index(name: str, value: int, limit: int) -> None:
    if not 0 <= operator.index(value) < limit:
        raise InvalidArgumentError(f"{name}: found {value}, expected 0 to {limit - 1}")
