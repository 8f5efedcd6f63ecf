"""``starpullm parity`` with sizes as options: the plain model is the reference, and a live llm.c agrees with it.

llm.c's stand-in needs the checkout and a compiler.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from starpullm.data.generator import generate_tokens
from starpullm.files.checkpoint import read_checkpoint
from starpullm.files.tokens import read_tokens
from starpullm.golden.records import GoldenRecord

from .children import TWO_CORES, assert_command_refused, names_in, run_cli, run_command

SIZES = "--layers 3 --heads 3 --channels 15 --vocab 29 --batch-size 6 --seq-len 7 --steps 2 --seed 12".split()
TENSORS = 2 * 270


def test_the_plain_model_is_the_reference() -> None:
    run = run_cli("parity", *SIZES, "--partition", "2x1", "--sub-batches", "all", environment=TWO_CORES).check()
    *lines, last = run.stdout.splitlines()
    passed = f"passed: {TENSORS} tensors compared; 2 steps against plain model"
    assert lines == [f"parity of run-{count}-ordered on 2x1 lws: {passed}" for count in (1, 2, 3, 6)]
    assert last == f"parity: {4 * TENSORS} tensors over 8 steps, 0 differ"


def test_beside_a_record() -> None:
    run = run_cli("parity", *SIZES, "tiny").check()
    assert run.stdout.splitlines()[-1] == f"parity: {TENSORS + 570} tensors over 5 steps, 0 differ"


def test_a_difference_is_found() -> None:
    """In another order of summation; the values come from the plain model."""
    run = run_cli("parity", *SIZES, "--sub-batches", 6, "--reduction", "tree", "--json").check(1)
    [result] = json.loads(run.stdout)
    assert (result["facts"]["reference"], result["facts"]["first"]) == ("plain model", "step 0, grads/lnfw")
    assert result["findings"][0]["evidence"]["expected values"].startswith("from the plain sequential model")


def test_llmc_agrees_with_the_plain_model(llmc_stand_in: Callable[..., Path]) -> None:
    run = run_cli("parity", *SIZES, "--llmc-library", library := llmc_stand_in()).check()
    assert run.stdout.splitlines()[0].endswith(f"{TENSORS} tensors compared; 2 steps against llm.c in {library}")
    run = run_cli("parity", *SIZES, "--llmc-library", llmc_stand_in("OTHER_BITS")).check(1)
    assert "step 0, grads/fcprojb[2]" in run.stdout


def test_inputs(tmp_path: Path) -> None:
    """The record is one as any other; the model and the tokens are what was trained with."""
    folder = tmp_path / "run"
    run = run_cli("parity", *SIZES, "--weight-decay", "0", "--padded-vocab", "30", "--write-inputs", folder).check()
    assert run.stdout == f"{folder}: 9270 parameters, tokens of 2 steps\n"
    assert names_in(folder) == ["model.bin", "run.json", "tokens.bin"]
    record = GoldenRecord.load(folder / "run.json")
    assert (record.seed, record.weight_decay, record.learning_rate, record.beta2) == (12, 0, 1e-4, 0.999)
    assert read_checkpoint(folder / "model.bin").config == record.model
    assert (record.model.padded_vocab_size, record.model.max_seq_len) == (30, 7)
    ids = np.concatenate([np.ravel(generate_tokens(12, step, 6, 7, 29)) for step in range(2)])
    assert np.array_equal(read_tokens(folder / "tokens.bin"), ids)
    run = run_cli("parity", folder / "run.json").check()
    assert run.stdout.endswith(f"parity: {TENSORS} tensors over 2 steps, 0 differ\n")
    assert_command_refused(run_cli("parity", *SIZES, "--write-inputs", folder), "expected no file in this folder")
    suite = f"-m pytest -p no:cacheprovider --pyargs starpullm.suite --starpullm-records {folder / 'run.json'}"
    chosen = "-k parity-run-2-ordered --starpullm-partition 1x1 --starpullm-sub-batches 2"
    done = run_command([sys.executable, "-P", *suite.split(), *chosen.split()], cwd=tmp_path).check()
    assert "parity  1x1 lws  5 passed" in done.stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--batch-size 0", "Error: batch_size: expected an integer from 1 to 76695844, found 0"),
        ("--max-seq-len 6", "Error: seq_len: expected an integer from 1 to 6, found 7"),
        ("--heads 2", "Error: model config, channels: expected divisible by num_heads = 2, found 15"),
        ("--steps 0", "Error: steps: expected an integer from 1 to 1000000, found 0"),
        ("--steps 99999999", "Error: steps: expected an integer from 1 to 1000000, found 99999999"),
        ("--batch-size 99999999", "Error: batch_size: expected an integer from 1 to 76695844, found 99999999"),
        ("--learning-rate nan", "Error: learning_rate: expected a number that fits into binary64, found NaN"),
        ("--learning-rate 1e30", "Error: step 1: found the loss nan, expected a finite one"),
        ("--batch-size 40 --seq-len 30000 --steps 1", "the plain model needs "),
    ],
)
def test_sizes_that_no_run_can_have(change: str, message: str) -> None:
    assert_command_refused(run_cli("parity", *SIZES, *change.split()), message)


def test_a_model_without_room() -> None:
    assert_command_refused(run_cli("parity", *SIZES, "--layers", 10**9), "bytes to be written", returncode=4)


def test_sizes_that_are_missing(tmp_path: Path) -> None:
    """One of the options is enough to ask for a run of these sizes."""
    for options in (("--seed", 3), ("--write-inputs", tmp_path / "run")):
        assert_command_refused(run_cli("parity", *options), "--layers, --heads, --channels, --vocab, --batch-size")
    assert_command_refused(run_cli("parity", *SIZES[2:]), "sizes of a run: expected all, found no --layers")
    assert names_in(tmp_path) == []
