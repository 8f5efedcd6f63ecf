"""``starpullm bench --against``: variants train the same model, take turns, and leave no process or file behind.

Every command is a child process. No test expects a certain speed of the machine.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from starpullm.binding.library import find_library

from .children import TWO_CORES, run_cli, run_command

pytestmark = pytest.mark.usefixtures("own_lock")

BLAS = ("--against", "blas", "--blas-library", "scipy-openblas32")
TIMEOUT = 110


def against(*args: object, timeout: float = TIMEOUT) -> dict[str, Any]:
    run = run_cli("bench", *args, "--json", timeout=timeout, environment=TWO_CORES).check()
    assert run.stderr == "", run
    (comparison,) = json.loads(run.stdout)
    assert isinstance(comparison, dict)
    return comparison


def assert_consistent(comparison: dict[str, Any], rounds: int) -> None:
    strict, *others = comparison["variants"]
    assert strict["name"] == strict["description"] == "strict"
    assert strict["times_slower"] == {"median": 1, "low": 1, "high": 1}
    assert comparison["configuration"]["iterations"] == rounds
    assert len({len(variant["losses"]) for variant in comparison["variants"]}) == 1
    differences = [
        abs(loss - expected)
        for variant in others
        for loss, expected in zip(variant["losses"], strict["losses"], strict=True)
    ]
    assert comparison["loss_difference"] == pytest.approx(max(differences))
    for variant in comparison["variants"]:
        for spread in (variant["tokens_per_ms"], variant["times_slower"]):
            assert 0 < spread["low"] <= spread["median"] <= spread["high"]
    for variant in others:
        slower, own, strict_speed = variant["times_slower"], variant["tokens_per_ms"], strict["tokens_per_ms"]
        assert strict_speed["low"] / own["high"] <= slower["low"] * (1 + 1e-9)
        assert slower["high"] <= strict_speed["high"] / own["low"] * (1 + 1e-9)


def test_blas() -> None:
    """What is printed, and the same as data."""
    options = ("--model", "tiny", "--partition", "2x1", *BLAS, "--iterations", 2)
    run = run_cli("bench", *options, timeout=TIMEOUT, environment=TWO_CORES).check()
    title, header, strict, blas, description, losses, noise = run.stdout.splitlines()
    assert title == "tiny, B = 2, T = 8, 2x1, S = 2, ordered, 2 rounds"
    assert header.split() == "variant tokens/ms least most strict is least most".split()
    assert len(strict.split()) == 4
    assert strict.split()[0] == "strict"
    assert blas.split()[0] == "blas"
    assert blas.split()[4:6] == ["few", "rounds"]
    assert description.startswith("blas: blas (libscipy_openblas.so, OpenBLAS")
    assert losses.startswith("losses of the first steps differ by at most ")
    assert noise.startswith("noise: load ")
    assert run.stderr == ""


def test_another_build_has_the_same_losses() -> None:
    library = ("--against", "library", "--baseline-library", find_library())
    comparison = against("--model", "tiny", *library, "--iterations", 2)
    assert_consistent(comparison, 2)
    assert [variant["name"] for variant in comparison["variants"]] == ["strict", "library"]
    assert comparison["variants"][1]["description"] == f"strict, {find_library()}"
    assert comparison["loss_difference"] == 0


def test_another_build_is_named() -> None:
    done = run_cli("bench", "--model", "tiny", "--against", "library").check(2)
    assert "expected --against library together with --baseline-library" in done.stderr
    done = run_cli("bench", "--model", "tiny", "--against", "library", "--baseline-library", "no.so").check(2)
    assert "no.so" in done.stderr


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (
            ("--against", "blas", "--blas-library", "no-such-blas"),
            'blas, 1x1, S = 1, ordered, blas: blas_library: found "no-such-blas"',
        ),
        ((*BLAS, "--ranks", 2), "against: expected a strict configuration of one rank"),
        ((*BLAS, "--matmul", "blas"), "against: expected a strict configuration of one rank"),
        ((*BLAS, "--seq-len", 99), "strict, 1x1, S = 1, ordered: seq_len: found 99, expected 1 to 16"),
        ((*BLAS, "--time-limit", 0), "'--time-limit': 0.0 is not in the range x>0"),
    ],
)
def test_what_cannot_be_compared(args: tuple[object, ...], sentence: str) -> None:
    run = run_cli("bench", "--model", "tiny", *args, timeout=TIMEOUT, environment=TWO_CORES).check(2)
    assert sentence in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stderr


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch isn't installed")
def test_torch() -> None:
    """The benchmark with PyTorch: both kinds have the strict run's losses after an update."""
    benchmarks = Path(__file__).parents[2] / "benchmarks"
    command = [sys.executable, benchmarks / "peers.py", "--model", "tiny", "--partition", "1x2", "--rounds", "2"]
    environment = {**TWO_CORES, "PYTHONPATH": f"{benchmarks}:{os.environ.get('PYTHONPATH', '')}"}
    output = run_command(list(map(str, command)), timeout=TIMEOUT, environment=environment).check().stdout
    assert re.search("^torch eager: PyTorch 2", output, re.MULTILINE)
    assert float(re.findall("losses of the first steps differ by at most (.*)", output)[0]) < 1e-4
