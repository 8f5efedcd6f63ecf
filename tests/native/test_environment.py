"""The floating-point environment is the contract's in every task, whatever another library has switched on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from .children import run_python

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
environment = inspect_machine()["float_environment"]
digest, denormals = hashlib.sha256(), 0
with Runtime(sys.argv[3]) as runtime, Trainer(
    runtime, checkpoint, batch_size=4, seq_len=8, sub_batches=2, keep_activations=True
) as trainer:
    for step in range(3):
        digest.update(trainer.step(*generate_tokens(1, step, 4, 8, 61)).tobytes())
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
