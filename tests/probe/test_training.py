"""The probe judges `starpullm train` as any other StarPU program."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from starpullm.checks.result import Outcome
from starpullm.data.generator import generate_checkpoint
from starpullm.files.model import ModelConfig
from starpullm.files.tokens import write_tokens
from starpullm.probe import probe_program

TINY = ModelConfig(max_seq_len=8, vocab_size=13, num_layers=1, num_heads=2, channels=64, padded_vocab_size=16)


def test_training_has_the_same_results_in_any_schedule(tmp_path: Path) -> None:
    generate_checkpoint(tmp_path / "model.bin", TINY, seed=1)
    write_tokens(tmp_path / "tokens.bin", np.arange(200) % TINY.vocab_size)
    command = [sys.executable, "-P", "-m", "starpullm.commands", "train", "--partition", "2x1", "--sub-batches", "2"]
    command += ["--checkpoint", str(tmp_path / "model.bin"), "--tokens", str(tmp_path / "tokens.bin")]
    result = probe_program([*command, "--steps", "2", "--seq-len", "8"], runs=1, workers=2, time_limit=60)
    assert result.outcome is Outcome.PASSED, result.lines()
    assert (result.findings, result.unseen) == ((), ())
    assert result.watched.bytes > 0
    assert result.compared > result.num_tasks > 50
