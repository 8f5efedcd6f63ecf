"""A runtime, and a trainer that is the plain model, which can be made to compute something wrong.

Tests of checks train with them: they show what a check makes of a run, and need no native library. That the library's
own trainer passes is shown by the suite.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from starpullm.binding.structs import TRACE_ACCESS, TRACE_TASK
from starpullm.checks.execution_order import execution_order
from starpullm.checks.training import make_inputs
from starpullm.data.generator import generate_tokens, generated_tokens_sha256
from starpullm.files.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from starpullm.files.model import ModelConfig
from starpullm.golden.plain import PlainModel, Settings, new_state
from starpullm.golden.records import (
    GoldenRecord,
    layer_name,
    shipped_record,
    split_layer,
    split_layers,
    step_results,
)
from starpullm.runtime import Runtime
from starpullm.trace import AccessMode, HandleInfo, Trace

Floats = NDArray[np.float32]

NATIVE = Path(__file__).parents[2] / "native"
SETTINGS = Settings()


PLAIN = NATIVE / "plain" / "gpt2.c"


def compiled(library: Path, *arguments: str | Path) -> ctypes.CDLL:
    """Compile C files into a shared object, with the options of the package's build, and open it."""
    command = "cc -std=c11 -O2 -ffp-contract=off -shared -fPIC -Wall -Wextra -Werror".split()
    subprocess.run([*command, f"-I{NATIVE / 'src'}", *arguments, "-o", library, "-lm"], check=True, timeout=60)
    return ctypes.CDLL(str(library))


class Model:
    """The plain model, with its tensors by the names of the records, those of a layer as ``qkvw[1]``."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: Mapping[str, Floats],
        batch_size: int,
        seq_len: int,
        settings: Settings = SETTINGS,
    ) -> None:
        self.plain = PlainModel(config, new_state(config, parameters), batch_size, seq_len, settings)
        groups = {name: dict(split_layers(dict(tensors))) for name, tensors in self.plain.groups.items()}
        self.params, self.grads, self.m, self.v = (groups[name] for name in ("params", "grads", "m", "v"))
        self.activations, self.activation_grads = groups["activations"], groups["activation_grads"]

    @property
    def steps(self) -> int:
        return self.plain.updates

    def step(self, inputs: NDArray[np.int32], targets: NDArray[np.int32]) -> np.float32:
        """Do forward, backward and update; return the mean loss."""
        return self.plain.step(inputs, targets)


@dataclass
class PlainRuntime:
    """What checks ask of a runtime."""

    ranks: int = 1
    rank: int = 0
    comm: Any = None
    matmul: str = "strict"
    partition: str = "1x1"
    scheduler: str = "lws"
    drops: bool = False
    platform_functions: bool = False
    arithmetic: str = "strict"

    def restart(self, *, platform_functions: bool = False, arithmetic: str = "strict") -> None:
        """Change its functions, but not those of the trainer."""
        self.platform_functions, self.arithmetic = platform_functions, arithmetic


def runtime(**fields: Any) -> Runtime:
    """Return a runtime that says this of itself."""
    return cast(Runtime, PlainRuntime(**fields))


@dataclass
class PlainLoss:
    """The loss of a step that has ended."""

    loss: np.float32
    ready: bool = True

    def result(self) -> np.float32:
        return self.loss


class PlainTrainer:
    """What checks ask of a trainer; ``fault`` is called after every step, and may change tensors and ``loss``."""

    def __init__(
        self,
        runtime: Runtime,
        checkpoint: str | os.PathLike[str] | None = None,
        *,
        batch_size: int,
        seq_len: int,
        learning_rate: float = 3e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        fault: Callable[[PlainTrainer], None] | None = None,
        **options: Any,
    ) -> None:
        assert checkpoint is not None
        content = read_checkpoint(checkpoint)
        self.runtime, self.config, self.options = runtime, content.config, options
        self.batch_size, self.seq_len = batch_size, seq_len
        self.settings = Settings(learning_rate, betas, eps, weight_decay)
        self.model = Model(content.config, content.parameters, batch_size, seq_len, self.settings)
        self.loss = np.float32(0)
        self.closed, self.pipelines = False, runtime.ranks
        self.sub_batches = options.get("sub_batches", 1)
        self._fault, self._first_traced = fault, 0

    def step(self, inputs: NDArray[np.int32], targets: NDArray[np.int32]) -> np.float32:
        assert inputs.shape == targets.shape == (self.batch_size, self.seq_len)
        self.loss = self.model.step(inputs, targets)
        if self._fault:
            self._fault(self)
        return self.loss

    def submit(self, inputs: NDArray[np.int32], targets: NDArray[np.int32]) -> PlainLoss:
        return PlainLoss(self.step(inputs, targets))

    def wait(self) -> None:
        """Nothing is in flight."""

    def tensor_names(self, group: str) -> list[str]:
        return list(self.model.plain.groups[group])

    def kept_sequences(self, group: str, name: str) -> list[slice]:
        count = (self.options.get("activation_sets") or self.sub_batches) * self.batch_size // self.sub_batches
        return [slice(self.batch_size - count, self.batch_size)]

    def tensor(self, group: str, name: str, layer: int | None = None, *, sequences: slice | None = None) -> Floats:
        values = self.model.plain.tensor(group, name, layer).copy()
        return values if sequences is None else values[sequences]

    def trace(self) -> Trace:
        """Return a task for each buffer that each step has written since the trace was cleared, in the order of steps.

        Within a step the order is that of `execution_order`.
        """
        names = list(self._buffers())
        steps = range(self._first_traced, self.model.steps)
        tasks = np.zeros(len(names) * len(steps), TRACE_TASK)
        tasks["id"] = tasks["first_access"] = np.arange(len(tasks))
        tasks["num_accesses"] = 1
        tasks["step"], tasks["worker"] = np.repeat(steps, len(names)), 3
        tasks["sub_batch"] = [int(name.partition("#")[2] or -1) for name in names] * len(steps)
        layers = [
            split_layer(name.rpartition("/")[2])[1] if re.match("(params|m|v)/", name) else None for name in names
        ]
        tasks["layer"] = [-1 if layer is None else layer for layer in layers] * len(steps)
        tasks["submit_ns"], tasks["start_ns"] = tasks["id"] + 1, 10 * tasks["id"] + 1000
        tasks["end_ns"] = tasks["start_ns"] + 15  # longer than until the next start
        accesses = np.array([(number, AccessMode.WRITE) for number in range(len(names))] * len(steps), TRACE_ACCESS)
        handles = tuple(HandleInfo(number, name, 4) for number, name in enumerate(names))
        return Trace(tasks, accesses, ("write",), handles)

    def clear_trace(self) -> None:
        self._first_traced = self.model.steps

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        parameters = {name: self.tensor("params", name) for name in self.tensor_names("params")}
        write_checkpoint(path, Checkpoint(self.config, parameters))

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _buffers(self) -> Iterator[str]:
        for group, name, layer in execution_order(self.config.num_layers):
            buffer = f"{group}/{layer_name(name, layer)}"
            parts = range(self.options.get("sub_batches", 1)) if group.startswith("activation") else ()
            yield from [f"{buffer}#{part}" for part in parts] or [buffer]
        yield f"mean_loss@{self.model.steps % 2}"


def write_record(directory: Path) -> tuple[GoldenRecord, Path]:
    """Write a record of two steps of ``tiny``'s model, which the plain model makes; return it and its checkpoint."""
    tiny, steps = shipped_record("tiny"), 2
    checkpoint = make_inputs(tiny, directory)
    sizes: dict[str, Any] = {"batch_size": tiny.batch_size, "seq_len": tiny.seq_len}
    rates: dict[str, Any] = {"learning_rate": tiny.learning_rate, "betas": (tiny.beta1, tiny.beta2), "eps": tiny.eps}
    trainer = PlainTrainer(runtime(), checkpoint, **sizes, **rates, weight_decay=tiny.weight_decay)
    content = json.loads(tiny.path.read_text("utf-8"))
    content["config"] |= {"name": "strict", "steps": steps}
    content["steps"] = []
    content["tokens_sha256"] = generated_tokens_sha256(tiny.seed, steps, **sizes, vocab_size=tiny.model.vocab_size)
    for number in range(steps):
        loss = trainer.step(*generate_tokens(tiny.seed, number, **sizes, vocab_size=tiny.model.vocab_size))
        content["steps"].append(step_results(loss, trainer.model.plain.groups))
    path = directory / "strict.json"
    path.write_text(json.dumps(content))
    return GoldenRecord.load(path), checkpoint


def flip(tensor: Floats, *index: int) -> None:
    """Change the last bit of an element."""
    tensor.view(np.uint32)[index] ^= 1
