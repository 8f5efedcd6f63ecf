"""Throughput in pytest: it is measured only on request, each outcome is explained, and pytest-benchmark stores it.

Each test runs another pytest. No test expects a certain speed of the machine.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from starpullm.binding.library import find_library

from .conftest import Run

SUITE = ("--pyargs", "starpullm.suite")
ROUNDS = 16
CHOSEN = ("-m", "starpullm_throughput", "--starpullm-records", "tiny")
GATE = (*SUITE, *CHOSEN, "--benchmark", "--starpullm-blocks", str(ROUNDS))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the record of the real run that the tests share."""
    return tmp_path_factory.mktemp("measured")


@pytest.fixture
def stored(run: Run, measured: Path, tmp_path: Path) -> Path:
    """A folder of pytest-benchmark's records, with the record of a run that was skipped for want of a baseline."""
    storage = tmp_path / "records"
    if not any(measured.iterdir()):
        measure(run, measured)
    shutil.copytree(measured, storage)
    return storage


def measure(run: Run, storage: Path) -> None:
    result = run(*GATE, "--benchmark-storage", f"file://{storage}", "--benchmark-save", "first", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(
        [
            "*throughput: not comparable: no baseline: 0 stored runs of this configuration on this machine, expected *",
            "  * tokens/ms; * of the machine's * GFLOP/s",
        ]
    )


def store_more(storage: Path, factors: list[float], changes: dict[str, Any] | None = None) -> None:
    """Add copies of the first record, their speeds multiplied by `factors`."""
    [first] = storage.glob("*/0001_first.json")
    for number, factor in enumerate(factors):
        content = json.loads(first.read_text())
        [benchmark] = content["benchmarks"]
        told = benchmark["extra_info"]["starpullm"]
        told["fraction_of_limit"] *= factor
        told.update(changes or {})
        (first.parent / f"{number + 2:04}_more.json").write_text(json.dumps(content))


def test_left_out_unless_asked_for(run: Run) -> None:
    result = run(*SUITE, "--starpullm-records", "tiny", "--collect-only", "-q")
    result.stdout.no_fnmatch_line("*test_no_slower*")
    result = run(*SUITE, "--starpullm-records", "tiny", "--collect-only", "-q", "--benchmark", partition="all")
    result.stdout.fnmatch_lines(["*test_throughput.py::test_no_slower_than_the_baseline[[]tiny-1-1x1-lws[]]"])


def test_the_record_has_steps_and_what_a_later_run_compares(stored: Path) -> None:
    [path] = stored.glob("*/0001_first.json")
    [benchmark] = json.loads(path.read_text())["benchmarks"]
    told = benchmark["extra_info"]["starpullm"]
    assert told["configuration"]["model"] == "tiny"
    assert 0 < told["fraction_of_limit"] < 1
    assert told["matmul_limit_gflops"] > 0
    assert set(told["cost"]) == {
        "tasks",
        "bytes_between_tasks",
        "bytes_between_ranks",
        "path_tasks",
        "path_bytes",
    }
    assert benchmark["stats"]["rounds"] == ROUNDS
    tokens = told["configuration"]["batch_size"] * told["configuration"]["seq_len"]
    assert told["tokens_per_ms"] == pytest.approx(tokens / benchmark["stats"]["median"] / 1e3)


def test_slower_than_stored_runs_fails(run: Run, stored: Path) -> None:
    """As if the machine had run the same code at a thousand times the speed."""
    store_more(stored, [1000.0, 1010.0, 990.0, 1000.0])
    [first] = stored.glob("*/0001_first.json")
    first.unlink()
    result = run(*GATE, "--benchmark-storage", f"file://{stored}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*FAILURES*",
            "throughput: failed: slower: +* of the time of 4 stored runs",
            "  * tokens/ms; * of the machine's * GFLOP/s",
            "  stored runs of this machine: 4, * to *; a slowdown of * would have been seen",
        ]
    )


def test_a_graph_that_has_grown_fails_until_it_is_accepted(run: Run, stored: Path) -> None:
    """Exactly, however much the times of stored runs differ, and also if the runs that fail are stored."""
    [first] = stored.glob("*/0001_first.json")
    content = json.loads(first.read_text())
    cost = content["benchmarks"][0]["extra_info"]["starpullm"]["cost"]
    grown, fewer = cost["tasks"], cost["tasks"] - 1
    cost["tasks"] = fewer
    first.write_text(json.dumps(content))
    store_more(stored, [0.01, 100.0, 1.0])
    options = (*GATE, "--benchmark-storage", f"file://{stored}", "--benchmark-save", "later")
    result = run(*options)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "graph cost: failed: 1 of 5 numbers have grown",
            f"  tasks: {grown}, baseline {fewer} (+1)",
            "throughput: inconclusive: *",
        ]
    )
    [later] = stored.glob("*/0005_later.json")
    told = json.loads(later.read_text())["benchmarks"][0]["extra_info"]["starpullm"]
    assert told["cost"] == cost  # what the next run is compared with
    for more in (["--starpullm-accept-cost"], []):
        run(*options, *more).stdout.no_fnmatch_line("*numbers have grown*")


def test_records_of_another_machine_are_no_baseline(run: Run, stored: Path, tmp_path: Path) -> None:
    """And under --starpullm-strict no baseline is a failure; the report says which."""
    store_more(stored, [1.0, 1.0, 1.0], {"fingerprint": "0123456789abcdef"})
    report = tmp_path / "report.json"
    options = ("--benchmark-storage", f"file://{stored}", "--starpullm-strict", "--starpullm-report", str(report))
    result = run(*GATE, *options)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "throughput: not comparable: no baseline: 1 stored runs of this configuration on this machine, expected *",
            "--starpullm-strict: expected a result, not a skip",
        ]
    )
    document = json.loads(report.read_text())
    [test] = document["tests"]
    assert len(document["throughput"]) == 1
    assert [of["check"] for of in test["results"]] == ["throughput", "graph cost"]
    assert [of["outcome"] for of in test["results"]] == ["not comparable", "passed"]
    assert test["results"][0]["facts"]["verdict"] == "no baseline"


def test_two_libraries_take_all_turns_and_the_verdict_follows_from_the_intervals(run: Run, tmp_path: Path) -> None:
    """Whatever the machine's speed; tests/gate/test_gate.py has measurements that lead to each verdict."""
    report, storage, baseline = tmp_path / "report.json", tmp_path / "records", tmp_path / "baseline.so"
    shutil.copy(find_library(), baseline)
    files = ("--starpullm-report", str(report), "--benchmark-storage", f"file://{storage}", "--benchmark-save", "turns")
    result = run(*GATE, "--starpullm-baseline-library", str(baseline), *files, "-rs")
    [test] = json.loads(report.read_text())["tests"]
    results = {of["check"]: of for of in test["results"]}
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
    step, *operations = speed["facts"]["changes"]
    assert step["name"] == "step"
    assert {of["name"] for of in operations} == KERNELS
    assert all(of["seconds"] > 0 and of["low"] <= of["change"] <= of["high"] for of in speed["facts"]["changes"])
    assert sum(of["share"] for of in operations) == pytest.approx(1)
    judged = [of for of in speed["facts"]["changes"] if of["verdict"] is not None]
    assert judged[0] == step
    assert [of["verdict"] for of in judged] == [verdict_of(of["low"], of["high"]) for of in judged]
    verdicts = {of["verdict"] for of in judged}
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
    result = run(*GATE, "--benchmark-disable", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*pytest-benchmark is disabled*"])


def test_a_crash_fails_the_test(run: Run, tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    result = run(*GATE, "--starpullm-baseline-library", str(broken))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["baseline, 1x1, S = 1, ordered: LibraryNotFoundError: *broken.so*"])
