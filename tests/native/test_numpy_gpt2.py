"""The worked example of docs/validate.md: a GPT-2 in NumPy against the plain model, and a mistake that is found."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ..report.report_json import read_report
from .children import Finished, assert_command_refused, run_cli, run_command

SIZES = "--layers 3 --heads 4 --channels 48 --vocab 211 --batch-size 6 --seq-len 40 --steps 2".split()
PROGRAM = Path(__file__).with_name("numpy_gpt2.py")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The inputs of a run."""
    run_cli("parity", *SIZES, "--write-inputs", tmp_path / "mine").check()
    return tmp_path / "mine"


def compare(folder: Path, *options: object) -> Finished:
    return run_cli("parity", "--tensors", folder, *options)


def test_a_right_program(folder: Path) -> None:
    """Its sums are in other orders, so its bits differ by a few ULPs; a tensor of one addition has equal bits.

    AdamW may update a parameter whose gradient is only rounding by the learning rate in the other direction.
    """
    run_command([sys.executable, str(PROGRAM), str(folder)]).check()
    run = compare(folder, "--ulps", 1e6).check()
    assert run.stdout.splitlines()[-1] == "parity: 512 tensors over 2 steps, 0 differ"
    passed = f"foreign tensors of {folder}: passed: 512 tensors compared; 2 steps against plain model, at most "
    assert run.stdout.startswith(passed)
    [result] = json.loads(compare(folder, "--json").check(1).stdout)
    distances = {finding["where"]: float(finding["sentence"].split()[-2]) for finding in result["findings"]}
    assert next(iter(distances)) == "step 0, activations/ln1[0]"
    assert "step 0, activations/encoded" not in distances
    assert max(ulps for where, ulps in distances.items() if where.startswith("step 0, activation")) < 100


def test_a_mistake(folder: Path) -> None:
    """The first tensor that is far off is the one that the mistake is in; the tensors before it are as they were."""
    run_command([sys.executable, str(PROGRAM), str(folder), "mistake"]).check()
    run = compare(folder, "--ulps", 100, "--report", folder / "report").check(1)
    assert "\n  differs  step 0, activations/preatt[0]  19680 of 38400 elements differ, 6.22e+06 ULPs\n" in run.stdout
    report = read_report(folder / "report" / "report.json")
    assert (report["exit_status"], report["tests"][0]["test"]) == (1, str(folder))
    lines = compare(folder).check(1).stdout.splitlines()
    assert lines[1].startswith("  differs  step 0, activations/ln1[0]  ")
    [qkv] = [line for line in lines if "step 0, activations/qkv[0]  " in line]
    assert float(qkv.split()[-2]) < 100


def test_bad_usage(folder: Path, tmp_path: Path) -> None:
    assert_command_refused(compare(folder), f"{folder}: expected step-0.npz or .safetensors, found neither")
    assert_command_refused(compare(folder, *SIZES), "--tensors: expected no --layers beside it")
    assert_command_refused(compare(folder, "tiny"), "--tensors: expected no RECORD beside it")
    assert_command_refused(run_cli("parity", "--ulps", 3, "tiny"), "--ulps: expected --tensors beside it")
    assert_command_refused(
        run_cli("parity", "--write-inputs", tmp_path / "new", "--partition", "1x1"),
        "--write-inputs: expected no --partition beside it",
    )
    settings = json.loads((folder / "run.json").read_text())
    settings["config"]["learning_rate"] *= 2
    run_command([sys.executable, str(PROGRAM), str(folder)]).check()
    (folder / "run.json").write_text(json.dumps(settings))
    assert_command_refused(compare(folder), "run.json, step 0: expected the plain model's results, found others")
    assert_command_refused(compare(tmp_path), "run.json: can't be read: No such file")
