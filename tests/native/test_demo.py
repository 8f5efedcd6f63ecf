"""``starpullm demo`` from its first step to its last: it learns, it writes, and it has the same bits elsewhere.

Collected by pytest; apart from test_cli.py because it takes longer than all commands there together.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from starpullm.files.checkpoint import checkpoint_config
from starpullm.files.tokens import read_tokens
from starpullm.training.demo import NUM_STEPS

from .children import TWO_CORES, names_in, run_cli


@pytest.mark.timeout(200)
def test_demo(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    run = run_cli("demo", "--output", folder, timeout=180, environment=TWO_CORES).check()
    losses = [float(loss) for loss in re.findall(r"^  step +\d+: loss (\S+)$", run.stdout, re.MULTILINE)]
    assert len(losses) >= 5
    assert losses[0] == pytest.approx(math.log(257), rel=0.05)
    assert losses[-1] < 0.7 * losses[0]
    assert f"losses of all {NUM_STEPS} steps: the same bits" in run.stdout
    assert re.search(r"parameters, m and v after the last: the same bits, SHA-256 [0-9a-f]{16}", run.stdout)
    assert "2x1, 4 sub-batches" in run.stdout
    assert "DIFFERENT" not in run.stdout
    assert '"Shall I"' in run.stdout
    assert "\n    Shall I" in run.stdout
    assert str(folder) in run.stdout
    assert run.stderr == ""
    assert names_in(folder) == ["sonnets.tokens.bin", "trained.bin", "untrained.bin"]
    assert checkpoint_config(folder / "trained.bin") == checkpoint_config(folder / "untrained.bin")
    assert read_tokens(folder / "sonnets.tokens.bin").size > 10_000
