"""A link that is cut while two hosts train: the job ends by itself, says which host it has lost, and can be resumed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from starpullm.resume import training_state

from .machines import NAMES, Hosts
from .test_files import checkpoint, tokens

pytestmark = pytest.mark.timeout(120)

NORTH, SOUTH = NAMES
LIMIT = 12.0  # a loaded machine may need more than half of it to start the ranks


def test_a_link_that_is_cut(hosts: Hosts, tmp_path: Path) -> None:
    """Neither the ranks nor what has started them go on, on both hosts, although mpirun can't reach one of them."""
    model, text, states = checkpoint(tmp_path / "model.bin"), tokens(tmp_path / "text.tokens"), tmp_path / "states"
    train = ("train", "--tokens", text, "--seq-len", "8", "--save-every", "3", "--state-dir", states)
    options = ("--checkpoint", model, "--batch-size", "1", "--steps", "1000000", "--time-limit", str(LIMIT))
    with hosts.started(*train, *options) as process:
        hosts.wait_for(lambda: len(list(states.glob("step-*"))) > 1, process)
        hosts.cut()
        begin = time.monotonic()
        _, errors = process.communicate(timeout=60)
        seconds = time.monotonic() - begin
    said = f"rank 0: no progress for {LIMIT:g} s (--time-limit), no answer from rank 1 on {SOUTH} (last finished step "
    assert errors.count(said) == 1
    assert process.returncode != 0
    assert seconds < LIMIT + 34
    hosts.wait_for(lambda: hosts.commands() == [])
    step = training_state(states).step
    resumed = [sys.executable, "-P", "-m", "starpullm.commands", *map(str, train), "--resume", str(states)]
    resumed += ["--batch-size", "2", "--steps", str(step + 1)]
    done = subprocess.run(resumed, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done
    assert f"step {step + 1}/{step + 1}: loss " in done.stdout
