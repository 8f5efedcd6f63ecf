"""GPT-2's training step in PyTorch, on the same model files: what ``peers.py`` measures.

Nothing else imports PyTorch. The code is idiomatic PyTorch: fused attention, fused AdamW, binary32 throughout.

Size letters: B batch, T sequence length, C channels, NH heads, L layers, V vocabulary.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from starpullm.data.generator import generate_tokens
from starpullm.files.checkpoint import Checkpoint, checkpoint_config, read_checkpoint
from starpullm.processes.progress import report_phase
from starpullm.processes.service import Service
from starpullm.speed.worker import STEP
from starpullm.speed.workload import SEED, Workload

LEARNING_RATE, BETAS, EPS, WEIGHT_DECAY = 3e-4, (0.9, 0.999), 1e-8, 0.0
"""``Trainer``'s defaults."""

_LAYER_NORM_EPS = 1e-5


class _GPT2(torch.nn.Module):  # type: ignore[misc]
    """The model, with llm.c's names and shapes of parameters; forward returns the mean loss."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        config = checkpoint.config
        self.num_layers, self.num_heads = config.num_layers, config.num_heads
        for name, array in checkpoint.parameters.items():
            # Padded rows belong to no token and get no gradient.
            values = torch.from_numpy(np.array(array[: config.vocab_size] if name == "wte" else array))
            if name in _ONCE:
                self.register_parameter(name, torch.nn.Parameter(values))
            else:
                for layer in range(config.num_layers):
                    self.register_parameter(f"{name}{layer}", torch.nn.Parameter(values[layer].clone()))

    def forward(self, inputs: Any, targets: Any) -> Any:
        """Return the mean loss of token ids (B,T)."""
        B, T = inputs.shape
        C = self.wte.shape[1]
        x = functional.embedding(inputs, self.wte) + self.wpe[:T]
        for layer in range(self.num_layers):

            def p(name: str, layer: int = layer) -> Any:
                return getattr(self, f"{name}{layer}")

            qkv = functional.linear(self._norm(x, p("ln1w"), p("ln1b")), p("qkvw"), p("qkvb"))
            q, k, v = (part.view(B, T, self.num_heads, -1).transpose(1, 2) for part in qkv.split(C, dim=2))
            atty = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
            x = x + functional.linear(atty, p("attprojw"), p("attprojb"))
            fch = functional.linear(self._norm(x, p("ln2w"), p("ln2b")), p("fcw"), p("fcb"))
            x = x + functional.linear(functional.gelu(fch, approximate="tanh"), p("fcprojw"), p("fcprojb"))
        logits = functional.linear(self._norm(x, self.lnfw, self.lnfb), self.wte)
        return functional.cross_entropy(logits.view(B * T, -1), targets.view(-1))

    @staticmethod
    def _norm(x: Any, weight: Any, bias: Any) -> Any:
        return functional.layer_norm(x, weight.shape, weight, bias, _LAYER_NORM_EPS)


_ONCE = ("wte", "wpe", "lnfw", "lnfb")


class TorchTrainer:
    """A model being trained by PyTorch; if ``torch.compile`` compiles it, the first step takes long."""

    def __init__(self, checkpoint: Path, threads: int, *, compiled: bool) -> None:
        torch.set_num_threads(threads)
        model = _GPT2(read_checkpoint(checkpoint))
        self._loss: Callable[[Any, Any], Any] = torch.compile(model) if compiled else model
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=LEARNING_RATE, betas=BETAS, eps=EPS, weight_decay=WEIGHT_DECAY, fused=True
        )

    def step(self, inputs: NDArray[np.int32], targets: NDArray[np.int32]) -> float:
        """Run one step on token ids (B,T); return its mean loss."""
        loss = self._loss(*(torch.from_numpy(ids.astype(np.int64)) for ids in (inputs, targets)))
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        return float(loss.detach())


def describe() -> str:
    """Return PyTorch's version, its level of CPU instructions and its number of threads."""
    capability = torch.backends.cpu.get_cpu_capability()
    return f"PyTorch {torch.__version__}, {capability}, {torch.get_num_threads()} threads"


@contextmanager
def _serve(workload: Workload, checkpoint: Path, *, compiled: bool) -> Iterator[tuple[None, Callable[[str], Any]]]:
    """Answer the requests that turns have; all turns train on, and a step's time is the least of a turn."""
    # Processes that compile in parallel would run on while this process is stopped.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    report_phase("loading the model")
    trainer = TorchTrainer(checkpoint, workload.cores, compiled=compiled)
    sizes = (workload.batch_size, workload.seq_len, checkpoint_config(checkpoint).vocab_size)
    batches = [generate_tokens(SEED, step, *sizes) for step in range(workload.warm_up + workload.iterations)]

    def answer(request: str) -> Any:
        if request == "peaks":
            return []
        report_phase("running a turn")
        ends, losses = [], []
        for batch in batches:
            losses.append(trainer.step(*batch))
            ends.append(time.monotonic())
        if request == "first":
            return {"description": describe(), "losses": losses}
        return {STEP: min(after - before for before, after in pairwise(ends[workload.warm_up - 1 :]))}

    yield None, answer


def serve_eager(comm: None, workload: Workload, checkpoint: Path) -> Service:
    """Serve turns of PyTorch as it is."""
    return _serve(workload, checkpoint, compiled=False)


def serve_compiled(comm: None, workload: Workload, checkpoint: Path) -> Service:
    """Serve turns of a model that ``torch.compile`` has compiled, in the first turn."""
    return _serve(workload, checkpoint, compiled=True)
