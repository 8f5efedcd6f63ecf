"""Fused sums of products: with the bits of their contract everywhere, and never taken for strict ones."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from starpullm import Runtime, Trainer
from starpullm.errors import InvalidArgumentError
from starpullm.resume import training_state

from .children import TWO_CORES, Reply, assert_refused, attempt, run_cli, run_function, simd_levels

FUSED = ("--arithmetic", "fused")


@pytest.mark.parametrize("level", simd_levels())
def test_every_level_has_the_bits_of_the_plain_model(level: str) -> None:
    """With two workers, and more sub-batches than they are."""
    places = ("--partition", "2x1", "--partition", "1x2", "--sub-batches", "all")
    run = run_cli("parity", "tiny", "odd", *FUSED, *places, environment={**TWO_CORES, "STARPULLM_SIMD": level}).check()
    assert run.stdout.splitlines()[-1] == "parity: 6600 tensors over 28 steps, 0 differ"


def resumed(states: str) -> list[Any]:
    def resume(arithmetic: str) -> str:
        with (
            Runtime(arithmetic=arithmetic) as runtime,
            Trainer(runtime, resume=states, batch_size=2, seq_len=8) as trainer,
        ):
            return f"{runtime.matmul} {trainer.tensor('params', 'wte').tobytes().hex()}"

    return [training_state(states).arithmetic, attempt(resume, "fused"), attempt(resume, "strict")]


def test_states_are_resumed_by_their_arithmetic_alone(tiny_checkpoint: Path, tiny_tokens: Path, tmp_path: Path) -> None:
    sizes = ("--tokens", tiny_tokens, "--batch-size", 2, "--seq-len", 8)
    bits = {}
    for arithmetic, other in (("fused", "strict"), ("strict", "fused")):
        states = tmp_path / arithmetic
        train = ("train", "--checkpoint", tiny_checkpoint, *sizes, "--steps", 1, "--state-dir", states, "--json")
        run = run_cli(*train, "--arithmetic", arithmetic).check()
        assert json.loads(run.stdout)["matmul"] == arithmetic
        found, *replies = run_function(resumed, states)
        right, wrong = replies if arithmetic == "fused" else replies[::-1]
        assert found == arithmetic
        used, bits[arithmetic] = ast.literal_eval(right["text"]).split()
        assert used == arithmetic
        sentence = f"found a state of {arithmetic} arithmetic, expected one of the runtime's, {other}"
        assert_refused(wrong, InvalidArgumentError, "resume: ", sentence)
    assert bits["fused"] != bits["strict"]


def refused() -> list[Reply]:
    combinations: list[dict[str, Any]] = [
        {"arithmetic": "fused", "matmul": "blas", "blas_library": "scipy-openblas32"},
        {"arithmetic": "fused", "platform_functions": True},
        {"arithmetic": "exact"},
    ]
    return [attempt(lambda options: Runtime(**options).close(), options) for options in combinations]


def test_what_it_cannot_be_combined_with() -> None:
    blas, functions, unknown = run_function(refused)
    assert_refused(blas, InvalidArgumentError, "arithmetic: found fused with a BLAS, expected strict")
    assert_refused(functions, InvalidArgumentError, "arithmetic: found fused with the platform's functions")
    assert_refused(unknown, InvalidArgumentError, 'arithmetic: found "exact", expected one of strict, fused')


def test_bench_compares_with_the_limit_of_the_arithmetic() -> None:
    sizes = ("--model", "tiny", "--iterations", 1, "--warm-up", 0, "--json")
    [[strict], [fused]] = (json.loads(run_cli("bench", *sizes, *options).check().stdout) for options in ((), FUSED))
    assert (strict["matmul"], fused["matmul"]) == ("strict", "fused")
    assert fused["configuration"]["arithmetic"] == "fused"
    if fused["fma_peak_gflops"]:
        low, high = fused["matmul_limit_range"]
        assert low <= fused["fma_peak_gflops"] == fused["matmul_limit_gflops"] <= high
    assert strict["matmul_limit_gflops"] != strict["fma_peak_gflops"]
