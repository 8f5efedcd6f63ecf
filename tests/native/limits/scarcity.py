"""What happens when there is no memory: each place of the library that allocates fails, which leaves nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from starpullm.binding import allocations, prototypes
from starpullm.binding.allocations import Site
from starpullm.binding.kernels import Kernel
from starpullm.binding.library import find_library
from starpullm.checks.cases import find_record
from starpullm.checks.kernels.cases import CASES, make_case
from starpullm.checks.kernels.draw import Buffer
from starpullm.checks.memory import KEPT_AFTER_RUNTIMES, left_allocations, place_of
from starpullm.checks.observer import Observer
from starpullm.checks.place import Place, Workplace
from starpullm.checks.result import Finding, Result
from starpullm.checks.training import new_trainer, own_batch
from starpullm.errors import OutOfMemoryError, StarpullmError
from starpullm.instruments import Instruments
from starpullm.resume import training_state
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer

from .statements import judged

KERNEL_CASES = 12
"""Some of them have heads that are packed."""
MOST_WRONG = 3
"""Of an operation; then no further allocation of it is tried, because a leak takes ``FREEING_SECONDS``."""


@dataclass(frozen=True)
class Operation:
    """What allocates, in a call that gets what was opened before; only the call's allocations fail."""

    name: str
    opening: Callable[[], AbstractContextManager[Any]]
    call: Callable[[Any], object]
    """Its value has to be the same if it does without the memory."""
    stays: int = 0
    """Allocations that are freed by the next call."""


def scarce_memory(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> Result:
    """Let allocations of the library fail, each in a call of an operation that is made for it; on one rank.

    Of each place in the library's code that allocates during an operation, the first, the middle and the last
    allocation fails. The call has to raise ``OutOfMemoryError``, or to do without the memory. When everything is
    closed, nothing must be left of what the library has allocated.
    """
    golden = find_record(record)
    options = {"sub_batches": sub_batches, "reduction": reduction, "keep_activations": False, "trace": True}
    opening = partial(new_trainer, place, golden, **options)
    with tempfile.TemporaryDirectory(dir=place.directory) as directory:
        states = Path(directory)
        with opening() as trainer:
            trainer.save_state(states)
        return _verdict(_operations(opening, states, seed))


def scarce_starts(workplace: Workplace) -> Result:
    """Let allocations fail in the start of a runtime, in a process without one."""
    del workplace
    return _verdict([Operation("a runtime", nullcontext, lambda _: Runtime("1x1").close(), stays=KEPT_AFTER_RUNTIMES)])


def scarce_kernels(workplace: Workplace) -> Result:
    """Let allocations fail in the kernels of each level, which then compute without them; no runtime is used."""
    del workplace
    levels = list(prototypes.names("simd_level_name"))
    functions = [Kernel(level, kernel) for kernel in CASES for level in levels]
    return _verdict(
        Operation(f"{function.name} at {function.level}", nullcontext, partial(_computed, function))
        for function in functions
    )


def _computed(function: Kernel, _: None) -> list[bytes]:
    """Return what a kernel computes in the first cases, in a thread without scratch memory; all NaNs are one."""

    def compute() -> Iterator[bytes]:
        for number in range(KERNEL_CASES):
            given = make_case(function.name, 1, number).arguments.items()
            arguments = {name: of.array(of.memory.copy()) if isinstance(of, Buffer) else of for name, of in given}
            function(arguments)
            outputs = (arguments[parameter.name] for parameter in function.parameters if parameter.output)
            yield from (np.where(np.isnan(of), np.nan, of).tobytes() for of in outputs if of is not None)

    with ThreadPoolExecutor(1) as new_thread:
        return new_thread.submit(lambda: list(compute())).result()


def _verdict(operations: Iterable[Operation]) -> Result:
    wrong: list[str] = []
    failed = 0
    for operation in operations:
        number, found = fail_each(operation)
        failed += number
        wrong += found
    return judged(
        check="scarce memory",
        unit="failed allocations",
        fault="an allocation that failed was told otherwise, or left something",
        compared=failed,
        findings=[Finding(sentence) for sentence in wrong],
    )


def _operations(
    opening: Callable[..., AbstractContextManager[Trainer]], states: Path, seed: int
) -> Iterator[Operation]:
    def open_and_close(_: None, **options: Any) -> None:
        with opening(**options):
            pass

    def step(trainer: Trainer) -> tuple[object, object]:
        return trainer.step(*own_batch(trainer, seed, 0)), trainer.evaluate(*own_batch(trainer, seed, 1))

    def hold(trainer: Trainer) -> None:
        Observer(trainer).hold()
        trainer.submit(*own_batch(trainer, seed, 0))
        Observer(trainer).release()

    def save(trainer: Trainer) -> None:
        trainer.save_state(tempfile.mkdtemp(dir=states))  # a folder with another run's state is refused
        trainer.wait_saved()

    def checkpoint(trainer: Trainer) -> bytes:
        path = Path(tempfile.mkdtemp(dir=states), "model.bin")
        trainer.save_checkpoint(path)
        return path.read_bytes()

    yield Operation("a trainer", nullcontext, open_and_close)
    yield Operation("a resumed trainer", nullcontext, partial(open_and_close, resume=states))
    yield Operation("a description of a state", nullcontext, lambda _: training_state(states))
    yield Operation("a step", opening, step)
    yield Operation("an audited step", partial(opening, instruments=Instruments(audit=True)), step)
    yield Operation("a checkpoint", opening, checkpoint)
    yield Operation("tasks held back", opening, hold)
    yield Operation("a state", opening, save)


def fail_each(operation: Operation) -> tuple[int, list[str]]:
    """Let places of the library fail in an operation; return how many allocations did, and what was wrong then."""
    wrong: list[str] = []
    failed = 0
    with operation.opening() as opened:
        expected = operation.call(opened)  # what is allocated once, as a thread's scratch memory, is there from now on
    fault, _ = _fail(operation, expected, 0, 0)
    if fault:
        wrong.append(f"{operation.name}, no allocation failed: {fault}")
    for caller, (made, place) in _places(operation).items():
        for number in sorted({1, (made + 1) // 2, made}):
            fault, reached = _fail(operation, expected, caller, number)
            failed += reached
            if fault:
                wrong.append(f"{operation.name}, allocation {number} of {place_of(place)} failed: {fault}")
            if len(wrong) == MOST_WRONG:
                return failed, wrong
    return failed, wrong


def _places(operation: Operation) -> dict[int, tuple[int, Site]]:
    """Return the places in the library that allocate in an operation's call: how often, and what is known of them."""
    own = str(find_library())
    places: dict[int, tuple[int, Site]] = {}
    with operation.opening() as opened:
        allocations.start()
        operation.call(opened)
        allocations.stop()
    for site in allocations.sites():
        if site.module == own:
            made, _ = places.get(site.caller, (0, site))
            places[site.caller] = made + site.made, site
    return places


def _fail(operation: Operation, expected: object, caller: int, number: int) -> tuple[str, bool]:
    """Let a place's allocation fail (0: none), and return what was wrong, and whether there were so many."""
    fault, missing = "", number
    allocations.start()
    try:
        with operation.opening() as opened:
            allocations.refuse(caller, number)
            try:
                if operation.call(opened) != expected:
                    fault = "the result is another one"
            finally:
                missing = allocations.not_reached()
    except OutOfMemoryError:
        pass
    except StarpullmError as error:
        fault = f"expected OutOfMemoryError, found {type(error).__name__}: {error}"
    finally:
        allocations.stop()
    return fault or left_allocations(operation.stays), number > 0 and missing == 0
