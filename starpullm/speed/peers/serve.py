"""One contender in a process of its own: it loads the model, then answers each request for steps with their time.

``compare.py`` starts it with ``isolation.Child``, which stops it while it isn't its turn.
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
from starpullm.runtime import Partition, Runtime
from starpullm.speed.throughput import Configuration, open_trainer

__all__ = ["COMPILED", "EAGER"]

EAGER, COMPILED = "torch eager", "torch compiled"
"""Kinds of contenders; all others are the library's own, as their configuration says."""

_SEED = 1  # of the generated tokens

_Batch: TypeAlias = tuple[NDArray[np.int32], NDArray[np.int32]]
_Steps: TypeAlias = Callable[[Sequence[_Batch]], list[float]]
"""Do steps and return their losses."""


@contextmanager
def _own(configuration: Configuration, checkpoint: Path) -> Iterator[tuple[str, _Steps]]:
    with (
        Runtime(
            configuration.partition,
            configuration.scheduler,
            matmul=configuration.matmul,
            blas_library=configuration.blas_library,
        ) as runtime,
        open_trainer(configuration, checkpoint, runtime, trace=False) as trainer,
    ):

        def steps(batches: Sequence[_Batch]) -> list[float]:
            losses = [trainer.submit(*batch) for batch in batches]
            trainer.wait()
            return [float(loss) for loss in losses]

        yield runtime.matmul, steps


@contextmanager
def _torch(configuration: Configuration, checkpoint: Path, *, compiled: bool) -> Iterator[tuple[str, _Steps]]:
    # Workers that compile in parallel would go on while this process is stopped.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    try:
        from starpullm.speed.peers import torch_gpt2
    except ImportError as error:
        raise MissingDependencyError(
            f"torch: can't be imported ({error}), expected it for a comparison: pip install 'starpullm[torch]'"
        ) from error
    partition = Partition.parse(configuration.partition)
    trainer = torch_gpt2.TorchTrainer(checkpoint, partition.workers * partition.threads, compiled=compiled)
    yield torch_gpt2.describe(), lambda batches: [trainer.step(*batch) for batch in batches]


def _serve(kind: str, configuration: Configuration, checkpoint: Path, address: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        with connection.makefile("rw", encoding="utf-8", newline="\n") as stream:

            def send(reply: Mapping[str, Any]) -> None:
                stream.write(json.dumps(reply) + "\n")
                stream.flush()

            send({"pids": [os.getpid()]})
            report_phase("loading the model")
            own = kind not in (EAGER, COMPILED)
            contender = (
                _own(configuration, checkpoint) if own else _torch(configuration, checkpoint, compiled=kind == COMPILED)
            )
            try:
                with contender as (description, steps):
                    send({"description": description})
                    sizes = (configuration.batch_size, configuration.seq_len, checkpoint_config(checkpoint).vocab_size)
                    done = 0
                    for line in stream:
                        numbers = range(done, done + int(json.loads(line)["steps"]))
                        batches = [generate_tokens(_SEED, number, *sizes) for number in numbers]
                        report_phase(f"running steps from {done} on")
                        begin = time.monotonic()
                        losses = steps(batches)
                        seconds = time.monotonic() - begin
                        done += len(batches)
                        report_phase("waiting")
                        send({"seconds": seconds, "losses": losses})
            except StarpullmError as error:
                send({"failure": str(error), "kind": type(error).__name__})


if __name__ == "__main__":
    _serve(sys.argv[1], Configuration(**json.loads(sys.argv[2])), Path(sys.argv[3]), sys.argv[4])
