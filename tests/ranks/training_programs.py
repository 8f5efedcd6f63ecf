"""The programs of ranks in test_training.py and test_traces.py: functions that the command line names."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from starpullm import Runtime, Trainer
from starpullm import trainer as trainer_module
from starpullm.binding import allocations
from starpullm.binding.library import find_library
from starpullm.checks.expectations import Expectations
from starpullm.checks.scenario.reference_model import check_workers
from starpullm.data.generator import generate_tokens
from starpullm.errors import StarpullmError
from starpullm.files.checkpoint import checkpoint_config
from starpullm.files.model import num_parameters
from starpullm.predict.plan import make_plan
from starpullm.predict.recorded_steps import same_tasks
from starpullm.processes import ranks
from starpullm.processes.progress import report_phase
from starpullm.schedules import Pass, ahead
from starpullm.trace import AccessMode, Trace

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

FAILING_RANK = 1
FAILING_STEP = 5

B, T = 2, 8
"""Sizes of the batch on each rank; the model has a vocabulary of 61 tokens or more."""


@contextmanager
def training(comm: Comm, checkpoint: str) -> Iterator[Trainer]:
    with (
        Runtime(comm=comm) as runtime,
        Trainer(runtime, checkpoint, batch_size=B, seq_len=T) as trainer,
        ranks.guarded(comm),
    ):
        yield trainer


def raise_without_guard(comm: Comm, checkpoint: str, where: str) -> None:
    """Raise in a block of a runtime and a trainer, as a program does that knows nothing of guards."""
    steps = FAILING_STEP + (where == "a step" and comm.Get_rank() != FAILING_RANK)
    try:
        with Runtime(comm=comm) as runtime, Trainer(runtime, checkpoint, batch_size=B, seq_len=T) as trainer:
            for step in range(steps):
                trainer.step(*generate_tokens(comm.Get_rank() + 1, step, B, T, 61))
            if where == "all ranks" or comm.Get_rank() == FAILING_RANK:
                raise ValueError("found a bad number")
    finally:
        print("closed")


def several_trainers(comm: Comm, checkpoint: str) -> None:
    """Print the losses of two trainers at the same time, and of two one after the other, as JSON."""
    batch = generate_tokens(comm.Get_rank() + 1, 1, B, T, 61)
    losses: list[float] = []
    with Runtime(comm=comm) as runtime, ranks.guarded(comm):
        with (
            Trainer(runtime, checkpoint, batch_size=B, seq_len=T) as first,
            Trainer(runtime, checkpoint, batch_size=B, seq_len=T) as second,
        ):
            losses += map(float, [each.submit(*batch) for _ in range(3) for each in (first, second)])
        for _ in range(2):
            with Trainer(runtime, checkpoint, batch_size=B, seq_len=T) as trainer:
                losses += map(float, [trainer.submit(*batch) for _ in range(3)])
    print(json.dumps(losses))


def resumed_at_once(comm: Comm, checkpoint: str, folder: str) -> None:
    """Resume what one rank saves later than the other; print the loss of the second step, and that without a stop."""
    batch = generate_tokens(comm.Get_rank() + 1, 1, B, T, 61)
    with Runtime(comm=comm) as runtime, ranks.guarded(comm):
        with Trainer(runtime, checkpoint, batch_size=B, seq_len=T) as whole:
            _, expected = (float(whole.step(*batch)) for _ in range(2))
        saved = Trainer(runtime, checkpoint, batch_size=B, seq_len=T)
        saved.step(*batch)
        time.sleep(comm.Get_rank())
        saved.save_state(folder)
        saved.close()
        with Trainer(runtime, resume=folder, batch_size=B, seq_len=T) as resumed:
            print(float(resumed.step(*batch)), expected)


def limited_memory(comm: Comm, checkpoint: str) -> None:
    """Open a trainer with as much memory as the plan says, then with a byte less on the failing rank."""
    options: dict[str, Any] = {"batch_size": B, "seq_len": T, "sub_batches": 2}
    plan = make_plan(checkpoint_config(checkpoint), **options, ranks=comm.Get_size(), reduction="tree")
    needed = int(plan.bytes_of_ranks()[comm.Get_rank()])
    with Runtime(comm=comm) as runtime, ranks.guarded(comm):
        for own in (needed, needed - (comm.Get_rank() == FAILING_RANK)):
            options["memory_limit"] = own * comm.Get_size()
            _print_error(lambda: Trainer(runtime, checkpoint, **options, reduction="tree").close())


def memory_of_stages(comm: Comm, checkpoint: str) -> None:
    """Open trainers with just the bytes that the plan says for each rank, then with a byte less on one of them."""
    rank, count = comm.Get_rank(), comm.Get_size()
    config = checkpoint_config(checkpoint)
    with Runtime(comm=comm) as runtime, ranks.guarded(comm):
        for schedule, sets in (("gpipe", 0), ("gpipe", 2), ("1f1b", 0)):
            options: dict[str, Any] = {"batch_size": 4, "seq_len": T, "sub_batches": 4, "activation_sets": sets}
            options |= {"stages": 2, "schedule": schedule, "reduction": "ordered"}
            needed = int(make_plan(config, **options, ranks=count).bytes_of_ranks()[rank])
            for lacking in (None, *range(count)):
                limit = (needed - (rank == lacking)) * count
                _print_error(partial(_open, runtime, checkpoint, limit, options))


def _open(runtime: Runtime, checkpoint: str, limit: int, options: dict[str, Any]) -> None:
    Trainer(runtime, checkpoint, **options, memory_limit=limit).close()


def plans_of_pipelines(comm: Comm, checkpoint: str) -> None:
    """Print whether plans have the tasks, priorities and accesses that trainers submit, and how many they are."""
    config = checkpoint_config(checkpoint)
    with Runtime(comm=comm) as runtime, ranks.guarded(comm):
        for schedule, buffers, reduction in (
            ("gpipe", "shared", "tree"),
            ("1f1b", "block", "ordered"),
            ("zero-bubble", "block", "ordered"),
        ):
            options: dict[str, Any] = {"batch_size": 4, "seq_len": T, "sub_batches": 4, "stages": 2}
            options |= {"schedule": schedule, "gradient_buffers": buffers, "reduction": reduction}
            plan = make_plan(config, ranks=comm.Get_size(), steps=2, **options)
            with Trainer(runtime, checkpoint, **options, trace=True) as trainer:
                for number in range(2):
                    trainer.submit(*generate_tokens(1, number, 4, T, 61))
                print(same_tasks(plan.trace, trainer.trace()), len(plan.trace) > 500)


def different_batches(comm: Comm, checkpoint: str) -> None:
    """Let one stage submit other targets, then other inputs, and then all the same."""
    options: dict[str, Any] = {"batch_size": B, "seq_len": T, "stages": 2}
    with Runtime(comm=comm) as runtime, Trainer(runtime, checkpoint, **options, trace=True) as trainer:
        inputs, targets = generate_tokens(1, 0, B, T, 61)
        other = (inputs + (comm.Get_rank() == FAILING_RANK)) % 61
        for batch in ((inputs, other), (other, targets)):
            _print_error(partial(trainer.submit, *batch))
        _print_error(partial(trainer.save_checkpoint, f"{checkpoint}/in a file"))  # of rank 0, which writes
        print(len(trainer.trace()))
        print(trainer.probabilities(inputs, 1, 2).sum(dtype=np.float64))
        print(trainer.step(inputs, targets))


def own_schedule(comm: Comm, checkpoint: str) -> None:
    """Print the losses of steps and of an evaluation with a schedule of the user's, and with the library's."""
    stages = min(2, comm.Get_size())

    def one_by_one(stages: int, sub_batches: int) -> list[Pass]:
        return ahead([1] * stages, sub_batches)

    for schedule in (one_by_one, "gpipe", "1f1b"):
        options: dict[str, Any] = {"batch_size": 4, "seq_len": T, "sub_batches": 4, "schedule": schedule}
        with (
            Runtime(comm=comm) as runtime,
            Trainer(runtime, checkpoint, **options, stages=stages) as trainer,
            ranks.guarded(comm),
        ):
            batches = [generate_tokens(1, number, 4, T, 61) for number in range(5)]
            losses = [trainer.submit(*batch) for batch in batches[:3]]
            evaluated = trainer.evaluate(*batches[3])
            print(*(loss.result() for loss in losses), evaluated, trainer.step(*batches[4]))


def one_rank_fails(comm: Comm, checkpoint: str, huge: str) -> None:
    """Print the errors of calls that fail on one rank, or on all; afterwards the same calls succeed.

    Of the runtimes no communicator is left.
    """
    fails = comm.Get_rank() == FAILING_RANK
    numbers = _numbers_of_communicators(comm)
    with Runtime() if fails else nullcontext():
        _print_error(lambda: Runtime(comm=comm))
    _print_error(lambda: Runtime(scheduler="no_such" if fails else "lws", comm=comm))
    _print_error(lambda: Runtime(matmul="blas", blas_library=f"{checkpoint} of no BLAS" if fails else None, comm=comm))
    ctypes.CDLL(None).starpullm_refusals_call(1 if fails else 0)
    _print_error(lambda: Runtime(comm=comm))
    for site in _allocations_of_start(comm):
        if fails:
            allocations.refuse(site.caller, 1)
        _print_error(lambda: Runtime(comm=comm))
        with Runtime() if fails else nullcontext():  # asks no other rank
            pass
    with Runtime(comm=comm) as runtime, ranks.guarded(comm):
        allocations.start()
        with Trainer(runtime, checkpoint, batch_size=B, seq_len=T):
            allocations.stop()
        sites = [site for site in allocations.sites() if site.function == "starpullm_session_create"]
        if fails:
            allocations.refuse(min(sites, key=lambda site: site.offset).caller, 1)
        _print_error(lambda: Trainer(runtime, checkpoint, batch_size=B, seq_len=T))
        try:
            # In Python the options are compared before the native call is made.
            with mock.patch.object(trainer_module, "options_of_all_ranks", return_value={}):
                Trainer(runtime, f"{checkpoint} which is missing" if fails else checkpoint, batch_size=B, seq_len=T)
        except StarpullmError as error:
            print(error)
        _print_error(lambda: Trainer(runtime, huge, batch_size=B, seq_len=T))
        with Trainer(runtime, checkpoint, batch_size=B, seq_len=T, reduction="redux") as half_submitted:
            # In the backward pass: there are contributions that nothing adds.
            ctypes.CDLL(None).starpullm_refusals_call(40)
            _print_error(lambda: half_submitted.submit(*_batch(False)))
        with Trainer(runtime, checkpoint, batch_size=B, seq_len=T) as succeeds:
            float(succeeds.submit(*generate_tokens(comm.Get_rank() + 1, 1, B, T, 61)))
    assert _numbers_of_communicators(comm) == numbers


def _allocations_of_start(comm: Comm) -> list[allocations.Site]:
    """Return the places of the library that allocate when a runtime over ranks starts, and not when it ends."""
    allocations.start()
    with Runtime(comm=comm):
        allocations.stop()
    own = str(find_library())
    return sorted({site.caller: site for site in allocations.sites() if site.module == own}.values())


def _numbers_of_communicators(comm: Comm) -> list[int]:
    """Return the numbers of new communicators in Fortran: the first ones that are free."""
    new = [comm.Dup() for _ in range(8)]
    numbers = [each.py2f() for each in new]
    for each in new:
        each.Free()
    return numbers


def _print_error(call: Callable[[], object]) -> None:
    try:
        call()
    except StarpullmError as error:
        print(error)


CALLS: dict[str, Callable[[Trainer, bool], object]] = {
    "evaluate": lambda trainer, fails: trainer.evaluate(*_batch(fails)),
    "tensor": lambda trainer, fails: trainer.tensor("params", "qkvw", 99 if fails else 0),
}
"""Calls that all ranks have to make, and that one rank is refused for its arguments."""


def _batch(fails: bool) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    inputs, targets = generate_tokens(1, 1, B, T, 61)
    if fails:
        targets[1, 3] = -1
    return inputs, targets


def one_rank_is_refused(comm: Comm, checkpoint: str, call: str) -> None:
    """Make a call that one rank can't make; the others wait in it for that rank, or for its messages."""
    with training(comm, checkpoint) as trainer:
        float(trainer.submit(*_batch(False)))
        report_phase(call)
        CALLS[call](trainer, comm.Get_rank() == FAILING_RANK)


def half_submitted(comm: Comm, checkpoint: str) -> None:
    """Submit a step of which StarPU refuses each rank another part: a task on rank 0, a message on rank 1."""
    with training(comm, checkpoint) as trainer:
        float(trainer.submit(*_batch(False)))
        if comm.Get_rank() == 0:
            ctypes.CDLL(None).starpullm_refusals_call(20)
        else:
            ctypes.CDLL(None).starpullm_refusals_message(3)
        trainer.submit(*_batch(False))


def drop_trainer(comm: Comm, checkpoint: str) -> None:
    """Drop a trainer whose step waits for the other rank, which doesn't submit it."""
    runtime = Runtime(comm=comm)
    trainer = Trainer(runtime, checkpoint, batch_size=B, seq_len=T)
    if comm.Get_rank() == FAILING_RANK:
        trainer.submit(*_batch(False))
        report_phase("dropping")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del trainer
        print(*(f"{warning.category.__name__}: {warning.message}" for warning in caught), flush=True)
        report_phase("dropped")
    comm.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


BLOCK_OF_TASKS = 1024
"""Tasks that the recorder stores in one block."""


def long_traces(comm: Comm, checkpoint: str) -> None:
    """Submit steps until two blocks of the recorder are full, and clear the trace, twice; each step has like tasks."""
    options: dict[str, Any] = {"batch_size": B, "seq_len": T, "sub_batches": B, "trace": True}
    with Runtime("2x1", comm=comm) as runtime, Trainer(runtime, checkpoint, **options) as trainer, ranks.guarded(comm):
        for first in (0, 1):
            trainer.submit(*_batch(False))
            in_a_step = len(trainer.trace())
            steps = 2 * BLOCK_OF_TASKS // in_a_step + 1
            for _ in range(1, steps):
                trainer.submit(*_batch(False))
            trace = trainer.trace()
            assert len(trace) == steps * in_a_step
            check_steps(trace, range(first * steps, (first + 1) * steps))
            trainer.clear_trace()
            assert len(trainer.trace()) == 0
        statements = Expectations()
        check_workers(statements, runtime, trace)
        assert statements.wrong == []


def check_steps(trace: Trace, steps: range) -> None:
    """Check that a trace has these steps, which have the same tasks and accesses."""
    tasks = trace.tasks
    assert np.array_equal(tasks["id"], np.arange(len(tasks)))
    ends = np.cumsum(tasks["num_accesses"])
    assert np.array_equal(tasks["first_access"][1:], ends[:-1])
    assert len(trace.accesses) == ends[-1]
    names = [re.sub(r"@\d+", "@", handle.name) for handle in trace.handles]  # without the slot, which changes
    in_a_step = len(tasks) // len(steps)
    assert np.array_equal(tasks["step"], np.repeat(steps, in_a_step))
    contents = [
        (
            *(task.operation, task.sub_batch, task.layer, task.rank),
            *((names[access.handle.id], access.mode) for access in task.accesses),
        )
        for task in trace
    ]
    assert contents == contents[:in_a_step] * len(steps)


def owners_of_parameters(comm: Comm, checkpoint: str) -> None:
    """Each parameter has one owner, which updates it, and no tensor with another owner would make shares more even."""
    options: dict[str, Any] = {"batch_size": B, "seq_len": T, "trace": True}
    with Runtime(comm=comm) as runtime, Trainer(runtime, checkpoint, **options) as trainer, ranks.guarded(comm):
        trainer.submit(*_batch(False))
        trace = trainer.trace()
    shares: dict[int, Counter[str]] = {rank: Counter() for rank in range(comm.Get_size())}
    parameters: dict[str, int] = {}
    for task in trace:
        if task.operation == "adamw_update":
            (updated,) = (access for access in task.accesses if access.handle.name.startswith("params/"))
            (gradient,) = (access.handle for access in task.accesses if access.handle.name.startswith("grads/"))
            assert updated.mode is AccessMode.READ_WRITE
            parameters[updated.handle.name] = updated.handle.bytes
            shares[task.rank][updated.handle.name] += gradient.bytes  # which may be of a part of it
    assert sorted(item for share in shares.values() for item in share.items()) == sorted(parameters.items())
    assert sum(parameters.values()) == 4 * num_parameters(checkpoint_config(checkpoint))
    assert all(shares.values())
    least = min(share.total() for share in shares.values())
    assert all(share.total() - min(share.values()) <= least for share in shares.values())


def main(program: Callable[..., None], *arguments: str) -> None:
    report_phase("start")
    comm = ranks.world()
    with nullcontext() if program is raise_without_guard else ranks.guarded(comm):
        program(comm, *arguments)


if __name__ == "__main__":
    main(globals()[sys.argv[1]], *sys.argv[2:])
