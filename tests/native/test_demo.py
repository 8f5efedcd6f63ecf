"""``starpullm demo``, with fewer steps: it learns, it writes, and it has the same bits elsewhere."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from starpullm.commands import main
from starpullm.files.checkpoint import checkpoint_config
from starpullm.files.tokens import read_tokens
from starpullm.training import demo

from .children import TWO_CORES, names_in, run_function

STEPS = 100


def short_demo(folder: str) -> tuple[int, str, str]:
    demo.NUM_STEPS = STEPS
    done = CliRunner().invoke(main, ["demo", "--output", folder])
    return done.exit_code, done.stdout, done.stderr


def diverging_demo(folder: str) -> tuple[int, str]:
    demo.NUM_STEPS, demo.LEARNING_RATE = 5, 1e30
    done = CliRunner().invoke(main, ["demo", "--output", folder])
    return done.exit_code, done.stderr


def test_demo_that_diverges(tmp_path: Path) -> None:
    status, errors = run_function(diverging_demo, tmp_path / "results", timeout=100)
    assert (status, errors) == (4, "Error: step 2, loss: found nan, expected a finite number\n")


def test_demo(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    status, output, errors = run_function(short_demo, folder, timeout=100, environment=TWO_CORES)
    assert (status, errors) == (0, "")
    losses = [float(loss) for loss in re.findall(r"^  step +\d+: loss (\S+)$", output, re.MULTILINE)]
    assert len(losses) == 2
    assert losses[0] == pytest.approx(math.log(257), rel=0.05)
    assert losses[-1] < 0.7 * losses[0]
    assert f"losses of all {STEPS} steps: the same bits" in output
    assert re.search(r"parameters, m and v after the last: the same bits, SHA-256 [0-9a-f]{16}", output)
    assert "2x1, 4 sub-batches" in output
    assert "DIFFERENT" not in output
    assert '"Shall I"' in output
    assert "\n    Shall I" in output
    assert str(folder) in output
    assert names_in(folder) == ["sonnets.tokens.bin", "trained.bin", "untrained.bin"]
    assert checkpoint_config(folder / "trained.bin") == checkpoint_config(folder / "untrained.bin")
    assert read_tokens(folder / "sonnets.tokens.bin").size > 10_000
