"""The child process of one contender: it loads the model, then answers each request for steps with their time.

The parent stops it between its turns.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from starpullm.data.generator import generate_tokens
from starpullm.errors import MissingDependencyError, StarpullmError
from starpullm.files.checkpoint import checkpoint_config
from starpullm.processes.progress import report_phase
from starpullm.speed.workload import Workload, open_runtime, open_trainer

__all__ = ["COMPILED", "EAGER"]

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


def _serve(name: str, workload: Workload, checkpoint: Path, address: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        with connection.makefile("rw", encoding="utf-8", newline="\n") as stream:

            def send(reply: Mapping[str, Any]) -> None:
                stream.write(json.dumps(reply) + "\n")
                stream.flush()

            send({"pids": [os.getpid()]})
            try:
                for reply in _replies(name, workload, checkpoint, (json.loads(line)["steps"] for line in stream)):
                    report_phase("waiting")
                    send(reply)
            except StarpullmError as error:
                send({"failure": str(error), "kind": type(error).__name__})


def _replies(name: str, workload: Workload, checkpoint: Path, requests: Iterator[int]) -> Iterator[dict[str, Any]]:
    """Yield the contender's description, then for each requested number of steps their time and losses."""
    report_phase("loading the model")
    if name in (EAGER, COMPILED):
        contender = _torch(workload, checkpoint, compiled=name == COMPILED)
    else:
        contender = _own(workload, checkpoint)
    with contender as (description, steps):
        yield {"description": description}
        sizes = (workload.batch_size, workload.seq_len, checkpoint_config(checkpoint).vocab_size)
        done = 0
        for number in requests:
            batches = [generate_tokens(_SEED, step, *sizes) for step in range(done, done + number)]
            report_phase(f"running steps from {done} on")
            begin = time.monotonic()
            losses = steps(batches)
            seconds = time.monotonic() - begin
            done += number
            yield {"seconds": seconds, "losses": losses}


if __name__ == "__main__":
    _serve(sys.argv[1], Workload(**json.loads(sys.argv[2])), Path(sys.argv[3]), sys.argv[4])
