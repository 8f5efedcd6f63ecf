"""Throughput in pytest: it is measured only on request, each outcome is explained, and pytest-benchmark stores it.

No test expects a certain speed of the machine.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from starpullm.binding.library import find_library

from .conftest import Run

SUITE = ("--pyargs", "starpullm.suite")
ROUNDS = 16
CHOSEN = ("-m", "starpullm_throughput", "--starpullm-records", "tiny")
GATE = (*SUITE, *CHOSEN, "--benchmark", "--starpullm-blocks", str(ROUNDS))
BASELINE = ("--starpullm-baseline-library", str(find_library()))


def test_left_out_unless_asked_for(run: Run) -> None:
    result = run(*SUITE, "--starpullm-records", "tiny", "--collect-only", "-q")
    result.stdout.no_fnmatch_line("*test_no_slower*")
    chosen = (*SUITE, "--starpullm-records", "tiny", "--benchmark", *BASELINE)
    result = run(*chosen, "--collect-only", "-q", partition="all")
    result.stdout.fnmatch_lines(["*test_throughput.py::test_no_slower_than_the_baseline[[]tiny-1-1x1-lws[]]"])


def test_two_libraries_take_all_turns_and_the_verdict_follows_from_the_intervals(run: Run, tmp_path: Path) -> None:
    """Whatever the machine's speed; tests/gate/test_gate.py has measurements that lead to each verdict."""
    report, storage, baseline = tmp_path / "report.json", tmp_path / "records", tmp_path / "baseline.so"
    shutil.copy(find_library(), baseline)
    files = ("--starpullm-report", str(report), "--benchmark-storage", f"file://{storage}", "--benchmark-save", "turns")
    result = run(*GATE, "--starpullm-baseline-library", str(baseline), *files, "-rs")
    [test] = json.loads(report.read_text())["tests"]
    results = {result["check"]: result for result in test["results"]}
    speed, cost, bits = results["throughput"], results["graph cost"], results["bits of the builds"]
    assert bits["outcome"] == "passed"
    assert (bits["compared"] > 0, bits["measured"]) == (True, 0)
    assert cost["outcome"] == "passed"
    assert cost["facts"]["now"] == cost["facts"]["baseline"]
    assert (
        min(
            cost["facts"]["now"]["tasks"],
            cost["facts"]["now"]["path_tasks"],
            cost["facts"]["now"]["bytes_between_tasks"],
        )
        > 0
    )
    [record] = storage.glob("*/0001_turns.json")
    [benchmark] = json.loads(record.read_text())["benchmarks"]
    assert speed["compared"] == benchmark["stats"]["rounds"] == ROUNDS
    told = benchmark["extra_info"]["starpullm"]
    assert told["configuration"]["model"] == "tiny"
    assert 0 < told["fraction_of_limit"] < 1
    tokens = told["configuration"]["batch_size"] * told["configuration"]["seq_len"]
    assert told["tokens_per_ms"] == pytest.approx(tokens / benchmark["stats"]["median"] / 1e3)
    assert speed["facts"]["tokens_per_ms"] == told["tokens_per_ms"]
    step, *operations = speed["facts"]["changes"]
    assert step["name"] == "step"
    assert {row["name"] for row in operations} == KERNELS
    assert all(row["seconds"] > 0 and row["low"] <= row["change"] <= row["high"] for row in speed["facts"]["changes"])
    assert sum(row["share"] for row in operations) == pytest.approx(1)
    judged = [row for row in speed["facts"]["changes"] if row["verdict"] is not None]
    assert judged[0] == step
    assert [row["verdict"] for row in judged] == [verdict_of(row["low"], row["high"]) for row in judged]
    verdicts = {row["verdict"] for row in judged}
    undecided = [verdict for verdict in ("slower", "inconclusive") if verdict in verdicts]
    assert speed["facts"]["verdict"] == (undecided[0] if undecided else step["verdict"])
    outcome = {"slower": "failed", "inconclusive": "skipped"}.get(speed["facts"]["verdict"], "passed")
    result.assert_outcomes(**{outcome: 1})


KERNELS = set(
    "adamw_update attention_backward attention_forward crossentropy_forward crossentropy_softmax_backward "
    "encoder_backward encoder_forward gelu_backward gelu_forward layernorm_backward_input layernorm_backward_weight "
    "layernorm_forward matmul_backward_input matmul_backward_weight matmul_forward mean_loss residual_backward "
    "report_loss residual_forward softmax_forward".split()
)
"""What takes time in a step of one sub-batch."""


def verdict_of(low: float, high: float) -> str:
    """The rule of docs/performance.md, for the default budget."""
    if low > 0.02:
        return "slower"
    if high < 0:
        return "faster"
    return "unchanged" if high < 0.05 else "inconclusive"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--starpullm-baseline-library", "x"), "--starpullm-baseline-library: expected --starpullm-benchmark with it"),
        (("--starpullm-ranks", "2"), "--starpullm-ranks: expected --starpullm-benchmark with it"),
        (
            ("--benchmark", "--starpullm-baseline-library", "none.so"),
            "--starpullm-baseline-library: *none.so: no such file",
        ),
        (("--benchmark",), "--starpullm-benchmark: expected --starpullm-baseline-library with it"),
        (("--benchmark", "--starpullm-blocks", "3"), "--starpullm-blocks: found 3, expected at least 16"),
        (("--benchmark", "--starpullm-budget", "0.2"), "--starpullm-budget: found 0.2, expected 0 to 0.05"),
        (("--benchmark", "--starpullm-ranks", "1,x"), '--starpullm-ranks: found "x", expected positive numbers *'),
        (
            ("--benchmark", "-p", "no:benchmark"),
            "--starpullm-benchmark: expected pytest-benchmark, which isn't installed: *",
        ),
    ],
)
def test_refusals(run: Run, arguments: tuple[str, ...], sentence: str) -> None:
    result = run(*SUITE, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {sentence}"])


def test_pytest_benchmarks_own_options_stay_its_own(run: Run) -> None:
    """--benchmark-disable isn't taken for --benchmark, and a test that has no record to write says so."""
    result = run(*SUITE, "--benchmark-disable", "--collect-only", "-q", "--starpullm-records", "tiny")
    result.stdout.fnmatch_lines(["test_checks.py::test_check*parity-*"])
    result.stdout.no_fnmatch_line("*test_no_slower*")
    result = run(*GATE, *BASELINE, "--benchmark-disable", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*pytest-benchmark is disabled*"])


def test_a_crash_fails_the_test(run: Run, tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    result = run(*GATE, "--starpullm-baseline-library", str(broken))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["baseline, 1x1, S = 1, ordered: LibraryNotFoundError: *broken.so*"])
