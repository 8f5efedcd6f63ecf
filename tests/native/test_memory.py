"""Memory: the real model stays below llm.c's, and nothing grows with the number of steps.

Collected by pytest; the runs are in child processes.
"""

from __future__ import annotations

import json

import pytest

from .children import run_python

# llm.c at B = 4, T = 64.
LLMC_RESIDENT_BYTES = 2.6e9

# Measured growth is 0; a handle or a task's argument that leaks at each step would be far above this.
ALLOWED_GROWTH_BYTES = 1 << 20

GROWTH = """
import gc, json, os, sys
from pathlib import Path
from starpullm import Runtime, Trainer
from starpullm.data.generator import generate_checkpoint, generate_tokens
from starpullm.files.model import ModelConfig

def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

config = ModelConfig(max_seq_len=16, vocab_size=61, num_layers=4, num_heads=2, channels=16, padded_vocab_size=64)
checkpoint = Path(sys.argv[1]) / "model.bin"
generate_checkpoint(checkpoint, config, 1)
sizes = {}
with Runtime("2x1") as runtime, Trainer(runtime, checkpoint, batch_size=4, seq_len=16, sub_batches=2) as trainer:
    for step in range(1, 1001):
        loss = trainer.submit(*generate_tokens(1, step, 4, 16, 61))
        if step in (10, 100, 1000):
            loss.value, trainer.wait()
            sizes[step] = resident()
print(json.dumps({"sizes": sizes, "descriptors": len(os.listdir("/proc/self/fd"))}))
"""

REAL_SIZE = """
import resource, sys
from pathlib import Path
from starpullm import Runtime, Trainer
from starpullm.data.generator import generate_checkpoint, generate_tokens
from starpullm.golden.records import shipped_record

record = shipped_record("gpt2-124m")
checkpoint = Path(sys.argv[1]) / "model.bin"
generate_checkpoint(checkpoint, record.model, record.seed)
with Runtime("2x1") as runtime, Trainer(runtime, checkpoint, batch_size=4, seq_len=64, sub_batches=2) as trainer:
    for step in range(2):
        loss = trainer.submit(*generate_tokens(record.seed, step, 4, 64, record.model.vocab_size))
    trainer.wait()
    checkpoint.unlink()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def test_nothing_grows_with_steps(tmp_path: object) -> None:
    sizes = json.loads(run_python(GROWTH, tmp_path, timeout=60).stdout)["sizes"]
    assert sizes["100"] - sizes["10"] <= ALLOWED_GROWTH_BYTES, sizes
    assert sizes["1000"] - sizes["10"] <= ALLOWED_GROWTH_BYTES, sizes


@pytest.mark.timeout(240)
def test_gpt2_124m_is_below_llmc(tmp_path: object) -> None:
    peak = int(run_python(REAL_SIZE, tmp_path, timeout=220).stdout)
    assert peak < LLMC_RESIDENT_BYTES, f"peak {peak / 1e9:.2f} GB"
