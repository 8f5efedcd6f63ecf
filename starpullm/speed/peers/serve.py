"""The child process of one contender: it loads the model, then answers each request for steps with their time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from starpullm.data.generator import generate_tokens
from starpullm.errors import MissingDependencyError
from starpullm.files.checkpoint import checkpoint_config
from starpullm.processes.progress import report_phase
from starpullm.speed.workload import Workload, open_runtime, open_trainer

__all__ = ["COMPILED", "EAGER", "serve_steps"]

EAGER, COMPILED = "torch eager", "torch compiled"
"""Names of contenders; all others are the library itself, with the matmul of their workload."""

_SEED = 1  # of the generated tokens

_Batch: TypeAlias = tuple[NDArray[np.int32], NDArray[np.int32]]
_Steps: TypeAlias = Callable[[Sequence[_Batch]], list[float]]
"""Run a step on each batch and return the losses."""


@contextmanager
def _own(workload: Workload, checkpoint: Path) -> Iterator[tuple[str, _Steps]]:
    with (
        open_runtime(workload) as runtime,
        open_trainer(workload, checkpoint, runtime, trace=False) as trainer,
    ):

        def steps(batches: Sequence[_Batch]) -> list[float]:
            losses = [trainer.submit(*batch) for batch in batches]
            trainer.wait()
            return [float(loss) for loss in losses]

        yield runtime.matmul, steps


@contextmanager
def _torch(workload: Workload, checkpoint: Path, *, compiled: bool) -> Iterator[tuple[str, _Steps]]:
    # Processes that compile in parallel would run on while this process is stopped.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    try:
        from starpullm.speed.peers import torch_gpt2
    except ImportError as error:
        raise MissingDependencyError(
            f"torch: can't be imported ({error}), expected it for a comparison: pip install 'starpullm[torch]'"
        ) from error
    trainer = torch_gpt2.TorchTrainer(checkpoint, workload.cores, compiled=compiled)
    yield torch_gpt2.describe(), lambda batches: [trainer.step(*batch) for batch in batches]


@contextmanager
def serve_steps(
    comm: None, name: str, workload: Mapping[str, Any], checkpoint: str
) -> Iterator[tuple[str, Callable[[int], dict[str, Any]]]]:
    """Load the model and yield the contender's description; a request is a number of steps."""
    report_phase("loading the model")
    own, model = Workload(**workload), Path(checkpoint)
    contender = _torch(own, model, compiled=name == COMPILED) if name in (EAGER, COMPILED) else _own(own, model)
    with contender as (description, steps):
        sizes = (own.batch_size, own.seq_len, checkpoint_config(model).vocab_size)
        done = 0

        def answer(number: int) -> dict[str, Any]:
            nonlocal done
            batches = [generate_tokens(_SEED, step, *sizes) for step in range(done, done + number)]
            report_phase(f"running steps from {done} on")
            begin = time.monotonic()
            losses = steps(batches)
            seconds = time.monotonic() - begin
            done += number
            return {"seconds": seconds, "losses": losses}

        yield description, answer
