"""The programs of ranks in test_training.py: functions that the command line names."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from starpullm import Runtime, Trainer
from starpullm.data.generator import generate_tokens
from starpullm.data.loader import TokenLoader
from starpullm.processes import ranks
from starpullm.processes.progress import report_phase
from starpullm.resume import training_state
from starpullm.training.loop import train

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

FAILING_RANK = 1
FAILING_STEP = 5
FOREVER = 1000  # seconds or steps, far more than the jobs' time limits allow

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


def steps(comm: Comm, trainer: Trainer) -> Iterator[int]:
    """Do steps; on the failing rank, yield after each of them."""
    for step in range(1, 1000 * FOREVER):
        report_phase("training", step - 1)
        trainer.step(*generate_tokens(comm.Get_rank() + 1, step, B, T, 61))
        report_phase("between steps", step)
        if comm.Get_rank() == FAILING_RANK:
            yield step


def kill(comm: Comm, checkpoint: str) -> None:
    with training(comm, checkpoint) as trainer:
        for step in steps(comm, trainer):
            if step == FAILING_STEP:
                os.kill(os.getpid(), signal.SIGKILL)


def raise_error(comm: Comm, checkpoint: str) -> None:
    with training(comm, checkpoint) as trainer:
        for step in steps(comm, trainer):
            if step == FAILING_STEP:
                raise ValueError("found a bad number")


def hang(comm: Comm, checkpoint: str) -> None:
    with training(comm, checkpoint) as trainer:
        for step in steps(comm, trainer):
            if step == FAILING_STEP:
                report_phase("sleeping")
                time.sleep(FOREVER)


def killed_while_saving(comm: Comm, source: str, tokens: str, states: str, seed: str) -> None:
    """Save after each step, and kill all ranks at about the same time, during a save or between two saves."""
    resumed = training_state(states) if Path(states).exists() else None
    loader = TokenLoader(tokens, B, T, rank=comm.Get_rank(), num_ranks=comm.Get_size())
    if resumed:
        loader.seek(resumed.batches)
    first_step = resumed.step + 1 if resumed else 1
    delay = random.Random(seed).uniform(0, 0.1)

    def save(step: int) -> None:
        trainer.save_state(states, batches=loader.position, data_id=loader.fingerprint)
        if step == first_step + 2:  # the first state is complete: the second save has waited for it
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()

    with (
        Runtime(comm=comm) as runtime,
        Trainer(
            runtime, None if resumed else source, resume=resumed.path if resumed else None, batch_size=B, seq_len=T
        ) as trainer,
        ranks.guarded(comm),
    ):
        for _ in train(trainer, loader, first_step + FOREVER, first_step=first_step, after_submit=save):
            pass


def memory(comm: Comm, checkpoint: str, last: str, *at: str) -> None:
    """Print resident bytes and open files after some steps, as JSON."""
    sizes: dict[int, tuple[int, int]] = {}
    with training(comm, checkpoint) as trainer:
        for step in range(1, int(last) + 1):
            loss = trainer.submit(*generate_tokens(comm.Get_rank() + 1, step, B, T, 61))
            if str(step) in at:
                float(loss)
                trainer.wait()
                comm.barrier()
                gc.collect()
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                sizes[step] = (pages * os.sysconf("SC_PAGE_SIZE"), len(list(Path("/proc/self/fd").iterdir())))
    print(json.dumps(sizes))


def main(program: Callable[..., None], *arguments: str) -> None:
    report_phase("start")
    comm = ranks.world()
    with ranks.guarded(comm):
        program(comm, *arguments)


if __name__ == "__main__":
    main(globals()[sys.argv[1]], *sys.argv[2:])
