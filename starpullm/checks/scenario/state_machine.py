"""A state machine: a runtime, and trainers that make the calls of a sequence, each beside its plain model.

The calls are methods of `StateMachine`. `submit` and `save_state` leave steps in flight and compare nothing, and `read`
compares one tensor meanwhile; the others wait, and compare everything.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from starpullm.binding import allocations
from starpullm.binding.library import find_library
from starpullm.checks.check_context import is_in_memory, limited_files
from starpullm.checks.dependencies.runtime_graph import RuntimeGraph
from starpullm.checks.expectations import Expectations
from starpullm.checks.leaks import KEPT_AFTER_RUNTIMES, bytes_on_node, left_allocations
from starpullm.checks.observer import Observer
from starpullm.checks.scenario.reference_model import TrainerWithReference
from starpullm.checks.scenario.saved import Description, SavedStates, complete_steps
from starpullm.checks.threads import check_binding, threads_here
from starpullm.checks.training import local_sequences
from starpullm.data.generator import generate_checkpoint, generate_parameters, generate_tokens
from starpullm.errors import (
    FileError,
    InvalidArgumentError,
    OutOfMemoryError,
    StarpullmError,
    StateError,
    TokenRangeError,
)
from starpullm.files.checkpoint import read_checkpoint
from starpullm.files.model import ModelConfig
from starpullm.golden.plain import Ids, PlainModel, Settings, new_state
from starpullm.instruments import Instruments
from starpullm.options import OFFLOAD_PLANS
from starpullm.processes import Comm
from starpullm.resume import training_state
from starpullm.runtime import DEFAULT_SCHEDULER, Runtime
from starpullm.trainer import Trainer

_HIGHEST_LIMIT = 1 << 27
"""Many times what the model of a sequence with a limit takes."""

_PLACES_WITHOUT_MEMORY = 4
"""Of each call."""


class Difference(Exception):  # noqa: N818 - not an error of the library's
    """The library did otherwise than the plain model."""


class Impossible(Exception):  # noqa: N818
    """A call that can't be made at this point of a sequence, such as one of a trainer that isn't open."""


class StateMachine:
    """A runtime, and the calls of a sequence; a context manager that closes it with its trainers.

    Sizes are those of `ModelConfig`; the model and all tokens are generated from the seed. With a memory limit, in
    bytes, data move to a disk, if the directory is on one; a trainer that is the only one then raises the limit until
    its data fit. A call raises `Difference` if the library and the plain model differ.
    """

    def __init__(
        self,
        partition: str = "1x1",
        scheduler: str = DEFAULT_SCHEDULER,
        *,
        comm: Comm | None = None,
        directory: Path | None = None,
        seed: int = 1,
        memory_limit: int = 0,
        offload_plan: str = OFFLOAD_PLANS[0],
        **sizes: int,
    ) -> None:
        self.config, self.expect = ModelConfig(**sizes), Expectations()
        self._seed, self._comm, self._batches = seed, comm, 0
        self._limit: dict[str, Any] = {"memory_limit": memory_limit, "offload_plan": offload_plan}
        self._pairs: dict[str, TrainerWithReference] = {}
        self._folders: dict[str, SavedStates] = {}
        self._counts_allocations = allocations.is_counting()
        if self._counts_allocations:
            allocations.start()
        with ExitStack() as exits:
            first = comm is None or comm.Get_rank() == 0
            folder = exits.enter_context(tempfile.TemporaryDirectory(dir=directory)) if first else ""
            self.folder = Path(comm.bcast(folder) if comm else folder)
            self._models = {"generated": new_state(self.config, dict(generate_parameters(self.config, seed)))}
            if first:
                generate_checkpoint(self.folder / "generated.bin", self.config, seed)
            self.runtime = self._start(partition, scheduler)
            exits.callback(lambda: self.runtime.close())  # noqa: PLW0108 - it may be another one by then
            self._exits = exits.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._comm and kind not in (None, Difference):
            return  # closing would wait for the other ranks
        with self._exits:
            if kind is None:
                self.end()
            for pair in self:
                self._exits.callback(pair.trainer.close)
        if kind is None and self._counts_allocations:
            self.expect.equal("what is left when all is closed", "", left_allocations(KEPT_AFTER_RUNTIMES))
            self._judge()

    def open(self, who: str, *, start: str = "", **options: Any) -> None:
        """Open a trainer with the last "state" or "checkpoint", or else with the generated model.

        A state is one of a trainer that has been closed, and the new one goes on to save into its folder. Options are
        those of `Trainer`, and the fields of `Instruments`.
        """
        _require(who not in self._pairs)
        closed = [folder for folder in self._folders if all(folder not in pair.folders for pair in self)]
        folder = closed[-1] if closed and start == "state" else ""
        name = "saved" if start == "checkpoint" and "saved" in self._models else "generated"
        state = self._folders[folder].newest if folder else self._models[name]
        instruments = {name: value for name, value in options.items() if name in Instruments.__annotations__}
        self._require_instruments(instruments, options.get("reduction", ""))
        _require(not (self._is_limited and (instruments.get("audit") or options.get("reduction") == "redux")))
        _require(options.get("weight_gradients") != "reused" or self._comm is None)
        others = {name: value for name, value in options.items() if name not in instruments}
        trainer = self._new_trainer(
            None if folder else self.folder / f"{name}.bin",
            resume=self.folder / folder if folder else None,
            instruments=Instruments(**instruments),
            **{**others, "trace": bool(instruments or options.get("trace"))},
        )
        settings = Settings(**{name: options[name] for name in Settings._fields if name in options})
        model = PlainModel(self.config, state, trainer.pipelines * trainer.batch_size, trainer.seq_len, settings)
        self._pairs[who] = TrainerWithReference(trainer, model, options, self.expect, [folder] if folder else [])
        self.expect.equal("sizes", self.config, trainer.config)
        self.compare(who)

    def step(self, who: str, *, rate: float | None = None) -> None:
        """Do a step."""
        self.submit(who, rate=rate)
        self._compare_step(who)

    def submit(self, who: str, *, rate: float | None = None) -> None:
        """Submit a step, and go on at once unless its gradients have no fixed bits and change parameters."""
        pair = self._pair(who) if rate == 0 else self._settled(who)
        pair.step(*self._batch(pair), rate)
        if pair.must_compare and rate != 0:
            self.compare(who)

    def train(self, who: str, *, steps: int) -> None:
        """Do so many steps, and compare after the last one."""
        for _ in range(steps):
            self.submit(who)
        self._compare_step(who)

    def evaluate(self, who: str) -> None:
        """Compute the loss of a batch."""
        pair = self._settled(who)
        pair.evaluate(*self._batch(pair))
        self.compare(who)

    def probabilities(self, who: str, *, sequence: int, position: int) -> None:
        """Compute the probabilities of the token after a position."""
        pair = self._settled(who)
        _require(self._comm is None and not pair.shares_sets)  # each rank would have a sequence of its own
        pair.forward(self._batch(pair)[0][0], sequence, position)
        self.compare(who)

    def read(self, who: str, *, group: str, name: str, layer: int | None) -> None:
        """Compare one tensor, while steps may be in flight."""
        self._settled(who).compare_tensor(group, name, layer)
        self._judge()

    def compare(self, who: str) -> None:
        """Wait for everything, and compare it."""
        self._pair(who).compare()
        self._judge()

    def _compare_step(self, who: str) -> None:
        """Compare everything; after a step ranks have no copies of each other's values, but those of redux."""
        self.compare(who)
        if self._comm and len(self._pairs) == 1 and self._pair(who).trainer.reduction != "redux":
            self.expect.equal("bytes of other ranks' values", 0, bytes_on_node())
            self._judge()

    def graph(self, who: str) -> None:
        """Compare StarPU's graph of held tasks with the one that their accesses require."""
        pair = self._pair(who)
        _require(pair.traced and not pair.audited and not pair.poisoned and self._comm is None)
        _require(not self._is_limited)  # StarPU has tasks of its own then
        self.step(who)
        observer = Observer(pair.trainer)
        observer.hold()
        pair.step(*self._batch(pair), 0.0)
        edges = observer.release()
        pair.take(RuntimeGraph().judge(pair.trainer.trace(), edges))
        self.compare(who)

    def save_state(self, who: str, *, keep: int = 2, folder: int = 0, slow: bool = False) -> None:
        """Save the state in one of the trainer's folders, or a new one, and go on at once.

        A slow save has little of one processor: the thread that saves is as the one that asks.
        """
        pair = self._settled(who)
        _require(not pair.audited)
        if folder >= len(pair.folders):
            pair.folders.append(f"states-{len(self._folders)}")
            self._folders[pair.folders[-1]] = SavedStates()
        name = pair.folders[min(folder, len(pair.folders) - 1)]
        states = self._folders[name]
        _require(pair.has_stepped or not states.last_two)  # the state that it was resumed from is another run's
        values = {"batches": self._batches, "seed": -1, "data_id": 2**64 - 1, "keep": keep}
        with ThreadPoolExecutor(1, initializer=_yield_to_all if slow else None) as caller:
            caller.submit(pair.trainer.save_state, self.folder / name, **values).result()
        sizes = {"batch_size": pair.model.batch_size, "seq_len": pair.model.seq_len}
        described = _description(pair.model.settings, batches=self._batches, **sizes)
        states.save(pair.model.state, keep, described, over_ranks=self._comm is not None)
        pair.saving = name

    def interrupt(self, who: str) -> None:
        """Copy the states being saved as a kill at this moment would leave them, to be resumed from.

        The process stands still meanwhile, so the copy may have half of a state. The state before is complete.
        """
        pair = self._pair(who)
        _require(bool(pair.saving) and self._comm is None)
        left = Path(tempfile.mkdtemp(dir=self.folder, prefix="left-"))
        _copy_at_one_moment(self.folder / pair.saving, left)
        states = self._folders[pair.saving]
        complete = complete_steps(left)
        if complete:
            self.expect.equal("a kill leaves one of the last two states", True, complete[-1] in states.last_two)
            self._folders[left.name] = states.after_a_kill(complete)
        else:
            self.expect.equal("states that a kill can lose", 1, len(states.last_two))
        self._judge()

    def save_checkpoint(self, who: str) -> None:
        """Save the model, and read it."""
        self.compare(who)
        pair = self._pair(who)
        path = self.folder / "saved.bin"
        pair.trainer.save_checkpoint(path)
        self._models["saved"] = new_state(self.config, pair.model.state.params)
        for tensor, values in read_checkpoint(path).parameters.items() if self.runtime.rank == 0 else ():
            self.expect.same_bits(f"{tensor} of the checkpoint", pair.model.tensor("params", tensor), values)
        self._judge()

    def refuse(self, who: str, what: str) -> None:
        """Make a call that is refused, and changes nothing."""
        kind, call = REFUSALS[what]
        pair = self._pair(who)
        _require(self._comm is None and not pair.audited)
        _require(not (self._is_limited and kind is FileError))  # the file of data would be limited too
        try:
            call(self, pair.trainer)
        except StarpullmError as error:
            self.expect.equal(f"refusal of {what}", kind.__name__, type(error).__name__)
        else:
            self.expect.equal(f"refusal of {what}", kind.__name__, "none")
        self._judge()

    def lack_memory(self, who: str, *, place: int = 0) -> None:
        """Train and save with other trainers, for each of which a place that has allocated before gets no memory."""
        pair = self._pair(who)
        _require(self._comm is None and not pair.audited)
        for other in self:
            other.trainer.wait()
            other.trainer.wait_saved()
        state = self._models["generated"]
        model = PlainModel(self.config, state, pair.model.batch_size, pair.model.seq_len, Settings())
        whole, own = self._batch(pair)
        model.step(*whole)
        expected = np.array(model.evaluate(*whole))

        def train() -> None:
            self.expect.same_bits("loss where memory is scarce", expected, np.array(self._steps_and_saves(own)))

        self._lack(place, train)
        self._judge()

    def close(self, who: str) -> None:
        """Compare a last time, and close a trainer; its saved states are complete then."""
        self.compare(who)
        pair = self._pairs.pop(who)
        pair.trainer.close()
        if self._comm:
            self._comm.Barrier()  # each rank has saved its part
        for name in pair.folders:
            states = self._folders[name]
            complete = complete_steps(self.folder / name)
            self.expect.equal(f"states in {name}", states.kept(complete), complete)
            newest = training_state(self.folder / name)
            expected = (states.newest.updates, self.config, -1, 2**64 - 1, self.runtime.ranks)
            found = (newest.step, newest.config, newest.seed, newest.data_id, newest.ranks)
            self.expect.equal("newest state", expected, found)
            if states.described is not None:
                sizes = {"batches": newest.batches, "batch_size": newest.batch_size, "seq_len": newest.seq_len}
                settings = Settings(0.0, newest.betas, newest.eps, newest.weight_decay)
                self.expect.equal("what the newest state says", states.described, _description(settings, **sizes))
        self._judge()

    def restart(self, partition: str, scheduler: str = DEFAULT_SCHEDULER, *, place: int | None = None) -> None:
        """Close everything, and start another runtime; before it some for which a place gets no memory."""
        self.end()
        self.runtime.close()
        if place is not None and self._counts_allocations and self._comm is None:
            self._lack(place, lambda: self._start(partition, scheduler).close())
        self.runtime = self._start(partition, scheduler)

    def end(self) -> None:
        """Close all trainers; by then the runtime has made its threads."""
        for who in list(self._pairs):
            self.close(who)
        check_binding(self.expect, self.runtime, self._threads)

    def __iter__(self) -> Iterator[TrainerWithReference]:
        return iter(self._pairs.values())

    def _start(self, partition: str, scheduler: str) -> Runtime:
        self._threads = threads_here()
        if self._limit["memory_limit"]:
            try:
                return Runtime(partition, scheduler, offload=self.folder, **self._limit)
            except InvalidArgumentError as error:
                if not is_in_memory(error):
                    raise
                self._limit["memory_limit"] = 0
        return Runtime(partition, scheduler, self._comm)

    def _new_trainer(self, *arguments: Any, **options: Any) -> Trainer:
        while True:
            try:
                return Trainer(self.runtime, *arguments, **options)
            except OutOfMemoryError:
                if not 0 < self._limit["memory_limit"] < _HIGHEST_LIMIT:
                    raise
                _require(not self._pairs)
            self._limit["memory_limit"] *= 2
            self.runtime.close()
            self.runtime = self._start(str(self.runtime.partition), self.runtime.scheduler)

    def _lack(self, place: int, call: Callable[[], object]) -> None:
        """Make a call several times, each time without memory for another place that has allocated before."""
        _require(self._counts_allocations)
        library = str(find_library())
        callers = sorted({site.caller for site in allocations.sites() if site.module == library})
        for number in range(_PLACES_WITHOUT_MEMORY):
            apart = number * len(callers) // _PLACES_WITHOUT_MEMORY
            allocations.refuse(callers[(place + apart) % len(callers)], 1 if place % 4 else 2)
            is_told = False
            try:
                call()
            except OutOfMemoryError:
                is_told = True
            finally:
                was_refused = allocations.not_reached() == 0
            self.expect.equal("memory lacks where it is said to", True, was_refused or self._is_limited or not is_told)

    def _steps_and_saves(self, batch: tuple[ArrayLike, ArrayLike]) -> np.float32:
        """Do two traced steps with a trainer of the generated model, save it, and return the second loss."""
        batch_size, seq_len = np.shape(batch[0])
        path = self.folder / "generated.bin"
        with Trainer(self.runtime, path, batch_size=batch_size, seq_len=seq_len, trace=True) as trainer:
            trainer.submit(*batch)
            loss = trainer.submit(*batch)
            trainer.save_state(Path(tempfile.mkdtemp(dir=self.folder, prefix="scarce-")))
            trainer.save_checkpoint(self.folder / "scarce.bin")
            return loss.result()

    @property
    def _is_limited(self) -> bool:
        return bool(self._limit["memory_limit"])

    def _require_instruments(self, instruments: Mapping[str, Any], reduction: str) -> None:
        """Require what instruments need of a trainer."""
        one_thread = self.runtime.partition == (1, 1) and reduction != "redux"
        _require(not instruments.get("audit") or (one_thread and not any(pair.audited for pair in self)))
        _require(self._comm is None or not {"audit", "poison"} & set(instruments))

    def _pair(self, who: str) -> TrainerWithReference:
        _require(who in self._pairs)
        return self._pairs[who]

    def _settled(self, who: str) -> TrainerWithReference:
        """Return the pair whose model has the trainer's gradients."""
        pair = self._pair(who)
        if pair.must_compare:
            self.compare(who)
        return pair

    def _batch(self, pair: TrainerWithReference) -> tuple[tuple[Ids, Ids], tuple[ArrayLike, ArrayLike]]:
        """Return the next inputs and targets of all ranks, and those of this one."""
        self._batches += 1
        model = pair.model
        sizes = (model.batch_size, model.seq_len, self.config.vocab_size)
        inputs, targets = generate_tokens(self._seed, self._batches, *sizes)
        own = local_sequences(self.runtime, model.batch_size, "the", self.runtime.ranks // pair.trainer.pipelines)
        return (inputs, targets), (self._as_a_caller_has(inputs[own]), self._as_a_caller_has(targets[own]))

    def _as_a_caller_has(self, tokens: Ids) -> NDArray[np.integer[Any]]:
        """Return equal tokens in one of three forms."""
        match self._batches % 3:
            case 0:
                return np.asfortranarray(tokens)
            case 1:
                return tokens.astype(np.int64)
            case _:
                return tokens

    def _judge(self) -> None:
        """Raise `Difference` on all ranks, if one has found something wrong."""
        wrong = "; ".join(finding.sentence for finding in self.expect.wrong[:3])
        of_ranks = self._comm.allgather(wrong) if self._comm else [wrong]
        if any(of_ranks):
            raise Difference(next(filter(None, of_ranks)))


def _require(possible: bool) -> None:
    if not possible:
        raise Impossible


def _yield_to_all() -> None:
    """Let this thread, and those that it starts, run on one processor only, and there after all other threads."""
    with suppress(PermissionError):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        niceness = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), max(niceness, 10))


def _description(settings: Settings, **sizes: int) -> Description:
    """Return what a state says of itself; its learning rate is that of the last step."""
    _, betas, *others = settings
    return {**sizes, "settings": [float(np.float32(value)) for value in (*betas, *others)]}


def _copy_at_one_moment(folder: Path, copy: Path) -> None:
    """Copy a folder while this process is stopped; a shell that waits for the process is told so."""
    done = subprocess.run(["sh", "-c", _COPY, "sh", folder, copy], check=False)
    _require(done.returncode != _NOT_STOPPED)  # on a busy machine
    done.check_returncode()


_NOT_STOPPED = 124  # as `timeout` says it
_COPY = r"""
trap 'kill -CONT $PPID' EXIT
kill -STOP $PPID
timeout 10 sh -c 'while grep -q "^State:.[RSD]" /proc/$0/task/*/status; do :; done' $PPID && cp -a "$1/." "$2"
"""
"""Stopping takes effect in each thread at a time of its own."""


def _tokens(trainer: Trainer, *last: int) -> list[Ids]:
    """Return inputs, or inputs and targets, of which the last token is given."""
    tokens = [np.zeros((trainer.batch_size, trainer.seq_len), np.int32) for _ in last]
    for sequence, token in zip(tokens, last, strict=True):
        sequence[-1, -1] = token
    return tokens


def _open_again(machine: StateMachine, trainer: Trainer, **options: Any) -> None:
    sizes = {"batch_size": trainer.batch_size, "seq_len": trainer.seq_len}
    Trainer(machine.runtime, machine.folder / "generated.bin", **{**sizes, **options}).close()


def _fill_disk(machine: StateMachine, trainer: Trainer, save: str) -> None:
    """Save while files may have a few bytes only."""
    for pair in machine:
        pair.trainer.wait_saved()
    with limited_files(64):
        getattr(trainer, save)(machine.folder / f"full_{save}")
        trainer.wait_saved()


REFUSALS: Mapping[str, tuple[type[StarpullmError], Callable[[StateMachine, Trainer], object]]] = {
    "input": (
        TokenRangeError,
        lambda machine, trainer: trainer.submit(*_tokens(trainer, machine.config.vocab_size, 0)),
    ),
    "target": (TokenRangeError, lambda machine, trainer: trainer.submit(*_tokens(trainer, 0, -1))),
    "evaluated target": (TokenRangeError, lambda machine, trainer: trainer.evaluate(*_tokens(trainer, 0, 2**31 - 1))),
    "shape": (InvalidArgumentError, lambda machine, trainer: trainer.submit([[0]], np.zeros((1, 2)))),
    "rate": (
        InvalidArgumentError,
        lambda machine, trainer: trainer.submit(*_tokens(trainer, 0, 0), learning_rate=-1.0),
    ),
    "layer": (InvalidArgumentError, lambda machine, trainer: trainer.tensor("m", "qkvw", machine.config.num_layers)),
    "missing folder": (
        FileError,
        lambda machine, trainer: trainer.save_checkpoint(machine.folder / "no" / "model.bin"),
    ),
    "full disk, checkpoint": (FileError, lambda machine, trainer: _fill_disk(machine, trainer, "save_checkpoint")),
    "full disk, state": (FileError, lambda machine, trainer: _fill_disk(machine, trainer, "save_state")),
    "T": (InvalidArgumentError, lambda machine, trainer: _open_again(machine, trainer, seq_len=2**31)),
    "sub-batches": (InvalidArgumentError, lambda machine, trainer: _open_again(machine, trainer, sub_batches=97)),
    "second runtime": (StateError, lambda machine, trainer: Runtime().close()),
    "runtime in use": (StateError, lambda machine, trainer: machine.runtime.close()),
}
"""Calls that are refused while a trainer is open, by what is wrong, with the kind of their errors."""
