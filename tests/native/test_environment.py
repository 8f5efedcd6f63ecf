"""The floating-point environment is the contract's in every task and submission, whatever the process has set."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from starpullm import Runtime, Trainer
from starpullm.data.generator import generate_checkpoint
from starpullm.files.model import ModelConfig

from .children import run_function, run_python

# Does when it is loaded what a library that was linked with fast-math does.
FLUSH_TO_ZERO = """
#if defined(__x86_64__)
#include <xmmintrin.h>
__attribute__((constructor)) static void flush_to_zero(void) { _mm_setcsr(_mm_getcsr() | 0x8040); }
#elif defined(__aarch64__)
__attribute__((constructor)) static void flush_to_zero(void) { __asm__ volatile("msr fpcr, %0" : : "r"(1l << 24)); }
#endif
"""

# Parameters so small that gradients, m and v are full of denormals: flushing any of them changes bits.
RUN = """
import ctypes, hashlib, json, sys
from pathlib import Path
import numpy as np
from starpullm import Runtime, Trainer
from starpullm.data.generator import generate_parameters, generate_tokens
from starpullm.files.checkpoint import Checkpoint, write_checkpoint
from starpullm.files.model import ModelConfig
from starpullm.machine import inspect_machine

checkpoint, library = Path(sys.argv[1]), sys.argv[2]
config = ModelConfig(max_seq_len=8, vocab_size=61, num_layers=2, num_heads=2, channels=16, padded_vocab_size=64)
if not checkpoint.exists():
    parameters = {name: array * np.float32(1e-19) for name, array in generate_parameters(config, 1)}
    write_checkpoint(checkpoint, Checkpoint(config, parameters))
if library:
    ctypes.CDLL(library)
if len(sys.argv) > 4:
    ctypes.CDLL(None).fesetround(int(sys.argv[4]))
environment = inspect_machine()["float_environment"]
digest, denormals = hashlib.sha256(), 0
with Runtime(sys.argv[3]) as runtime, Trainer(
    runtime, checkpoint, batch_size=4, seq_len=8, sub_batches=2, keep_activations=True
) as trainer:
    for step in range(3):
        rate = 0.1 if step else None
        digest.update(trainer.step(*generate_tokens(1, step, 4, 8, 61), learning_rate=rate).tobytes())
        for group in ("activations", "activation_grads", "grads", "m", "v", "params"):
            for name in trainer.tensor_names(group):
                values = trainer.tensor(group, name)
                digest.update(values.tobytes())
                bits = values.view(np.uint32) & 0x7fffffff
                denormals += int(((bits > 0) & (bits < 0x00800000)).sum())
print(json.dumps({"environment": environment, "digest": digest.hexdigest(), "denormals": denormals}))
"""


def test_flush_to_zero_moves_no_bit(tmp_path: Path) -> None:
    source, library, checkpoint = tmp_path / "ftz.c", tmp_path / "ftz.so", tmp_path / "model.bin"
    source.write_text(FLUSH_TO_ZERO)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", source, "-o", library], check=True, timeout=60)
    plain = json.loads(run_python(RUN, checkpoint, "", "1x1").stdout)
    assert plain["environment"] == ""
    assert plain["denormals"] > 1000
    for partition in ("1x1", "2x1"):
        flushed = json.loads(run_python(RUN, checkpoint, library, partition).stdout)
        assert "flush-to-zero" in flushed["environment"]
        assert flushed["digest"] == plain["digest"]
        assert flushed["denormals"] == plain["denormals"]


UPWARD = {"x86_64": 0x800, "aarch64": 0x400000}
"""FE_UPWARD of fenv.h."""

upward = pytest.mark.skipif(os.uname().machine not in UPWARD, reason="this processor's FE_UPWARD isn't known")


@upward
def test_rounding_upward_moves_no_bit(tmp_path: Path) -> None:
    """Neither in tasks nor in what a submission computes, nor where Python's numbers become binary32."""
    checkpoint = tmp_path / "model.bin"
    plain = json.loads(run_python(RUN, checkpoint, "", "1x1").stdout)
    rounded = json.loads(run_python(RUN, checkpoint, "", "1x1", UPWARD[os.uname().machine]).stdout)
    assert rounded["environment"] == "the rounding mode isn't to nearest"
    assert rounded["digest"] == plain["digest"]


def mean_of_many(directory: str, rounding: int) -> list[float]:
    """Return the mean loss of 2^24 + 1 equal tokens, one of them, and their sum divided in the default environment."""
    count = 2**24 + 1  # which binary32 doesn't have
    config = ModelConfig(max_seq_len=1, vocab_size=2, num_layers=1, num_heads=1, channels=1, padded_vocab_size=2)
    checkpoint = Path(directory, "model.bin")
    generate_checkpoint(checkpoint, config, 1)

    def loss(trainer: Trainer, count: int) -> np.float32:
        return trainer.evaluate(np.zeros((count, 1), np.int32), np.ones((count, 1), np.int32))

    with Runtime() as runtime:
        with Trainer(runtime, checkpoint, batch_size=1, seq_len=1) as trainer:
            one = loss(trainer, 1)
        with Trainer(runtime, checkpoint, batch_size=count, seq_len=1, sub_batches=673, activation_sets=1) as trainer:
            libm = ctypes.CDLL(None)
            libm.fesetround(rounding)
            found = loss(trainer, count)
            kept = libm.fegetround() == rounding
            libm.fesetround(0)
    total = np.add.accumulate(np.full(count, one))[-1]
    return [float(found), float(total / np.float32(2**24)), float(total / np.float32(2**24 + 2)), kept]


@upward
def test_the_mean_of_many_losses_is_rounded_to_nearest(tmp_path: Path) -> None:
    """Its divisor is made by the submission, on the caller's thread, whose environment stays."""
    found, nearest, upward, kept = run_function(mean_of_many, tmp_path, UPWARD[os.uname().machine])
    assert nearest != upward
    assert found == nearest
    assert kept
