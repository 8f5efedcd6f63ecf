"""``starpullm parity``: how it tells equal and differing bits, and what can't be compared.

Parity on many configurations is in test_parity.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from starpullm.commands.reporting import command_report
from starpullm.golden.records import shipped_record
from starpullm.report.folder import PageError
from starpullm.report.verdict import claim_rows

from ..report.report_json import read_report
from .children import TWO_CORES, assert_command_refused, run_cli

TINY = shipped_record("tiny")
ODD = shipped_record("odd").path


def test_parity(tmp_path: Path) -> None:
    """The report has a recording of each place, and says what else there is to compare."""
    run = run_cli(
        "parity",
        TINY.path,
        "--sub-batches",
        "all",
        "--partition",
        "1x1",
        "--partition",
        "2x1",
        "--scheduler",
        "eager",
        "--report",
        tmp_path / "out",
        environment=TWO_CORES,
    ).check()
    equal = "passed: 570 tensors compared; 3 steps against golden record"
    assert run.stdout.splitlines() == [
        *(f"parity of tiny-{s}-ordered on {p} eager: {equal}" for p in ("1x1", "2x1") for s in (1, 2)),
        "parity: 2280 tensors over 12 steps, 0 differ",
    ]
    assert run.stderr == ""
    report = read_report(tmp_path / "out" / "report.json")
    assert (report["state"], report["exit_status"], len(report["tests"])) == ("ended", 0, 4)
    assert [recording["configuration"] for recording in report["recordings"]] == ["1x1 eager", "2x1 eager"]
    assert "partition 1x2" in [entry["what"] for entry in report["not_checked"]]


def test_a_page_that_cannot_be_made_costs_no_result(tmp_path: Path) -> None:
    """The command shows its results first; then one sentence says what was wrong."""
    shown = []

    def run_command() -> None:
        with command_report(tmp_path / "out", "starpullm parity") as report:
            report.document["recordings"].append({"tasks": {}})
            report.renew()
            report.status = 0
            shown.append("results")

    with pytest.raises(PageError, match=r"out/index.html: can't be made of report.json: KeyError: 'operations'$"):
        run_command()
    assert shown == ["results"]
    assert json.loads((tmp_path / "out" / "report.json").read_text())["state"] == "ended"


def test_the_report_of_a_parity_that_stops_early(tmp_path: Path) -> None:
    """Its second placement can't be: the claim is not shown as one that holds."""
    options = ("--partition", "1x1", "--partition", "9x1", "--report", tmp_path)
    run_cli("parity", "tiny", *options, environment=TWO_CORES).check(2)
    [row] = claim_rows(read_report(tmp_path / "report.json"))
    assert (row["kind"], row["endings"]) == ("undecided", "1 passed, 0 failed")


def test_parity_json() -> None:
    run = run_cli("parity", TINY.path, "--json").check()
    [result] = json.loads(run.stdout)
    assert (result["facts"]["record"], result["facts"]["steps"], result["facts"]["matmul"]) == ("tiny", 3, "strict")
    names = ("check", "outcome", "compared", "unit", "measured", "limit", "findings")
    assert [result[name] for name in names] == ["parity", "passed", 570, "tensors", 0, 0, []]
    assert run.stderr == ""


def test_parity_says_which_records_are_left_out() -> None:
    """Those of a batch that the sub-batches don't divide; the last line counts the others."""
    run = run_cli("parity", "--sub-batches", 12).check()
    assert run.stdout.splitlines()[-1] == "parity: 4240 tensors over 8 steps, 0 differ"
    names = [line.split()[2] for line in run.stderr.splitlines()]
    assert names == ["tiny", "odd", "small", "single", "long", "wide"]
    assert run.stderr.startswith(
        "note: record tiny is left out: sub_batches: found 12, expected a divisor of the batch size 2\n"
    )


def test_parity_finds_shipped_records() -> None:
    run = run_cli("parity", "tiny").check()
    assert run.stdout.splitlines()[-1] == "parity: 570 tensors over 3 steps, 0 differ"
    assert_command_refused(run_cli("parity", "tinny"), "tinny: no such file", "shipped record: tiny, odd, small")


def changed_record(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of tiny's record with something changed."""
    content = json.loads(TINY.path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path


OTHER_DIGEST = "0" * 32


def change_digests(content: dict[str, Any], *tensors: tuple[int, str, str]) -> None:
    for step, group, tensor in tensors:
        assert tensor in content["steps"][step][group]
        content["steps"][step][group][tensor] = OTHER_DIGEST


def test_parity_with_other_bits(tmp_path: Path) -> None:
    """A sum in another order has other bits. The expected values come from the plain model, in the record's order."""
    record = ODD
    options = ("--sub-batches", "3", "--reduction", "tree", "--partition", "2x1", "--report", tmp_path)
    run = run_cli("parity", record, *options, environment=TWO_CORES).check(1)
    assert [test["outcome"] for test in read_report(tmp_path / "report.json")["tests"]] == ["failed"]
    lines = run.stdout.splitlines()
    assert "(888 in 1,080 tensors); " in lines[0]
    assert lines[1] == "  differs  step 0, grads/lnfw  other bits"
    evidence = dict(re.split(" {2,}", line.strip()) for line in lines[2:10])
    assert (evidence["differ"], evidence["first element"]) == ("35 of 40 elements (40,) (87.5 %)", "0, [0]")
    assert re.fullmatch(r"0x3a21a03f \(0\.000616\d+\)", evidence["expected"])
    assert re.fullmatch(r"0x3a21a03b \(0\.000616\d+\), 4 ULP off", evidence["found"])
    assert evidence["elements by ULPs off"].startswith("1: 14, 2 to 3: 13, 4 to 7: 4, ")
    assert evidence["expected values"] == "from the plain sequential model, which has the record's digest"
    assert re.fullmatch(r"gradient_add \(step 0, sub-batch 0\) on worker [01] of rank 0", evidence["written last by"])
    assert lines[10] == "  differs  step 0, grads/lnfb  other bits"
    assert lines[-2].endswith("more lines")


def test_parity_of_broken_records(tmp_path: Path) -> None:
    broken = tmp_path / "[x] broken.json"
    broken.write_text('{"config": ')
    assert_command_refused(run_cli("parity", broken), str(broken), "JSON")
    assert_command_refused(run_cli("parity", tmp_path / "none.json"), "none.json", "no such file")
    assert_command_refused(run_cli("parity", tmp_path), str(tmp_path), "found a folder")
    earlier = changed_record(tmp_path / "earlier.json", lambda content: content.update(libm_fingerprint={}))
    assert_command_refused(run_cli("parity", earlier), "earlier.json: was made with a platform's libm, expected")

    def hash_of(key: str) -> Path:
        return changed_record(tmp_path / f"{key}.json", lambda content: content.update({key: "0" * 64}))

    for key, found in (("tokens_sha256", TINY.tokens_sha256), ("checkpoint_sha256", TINY.checkpoint_sha256)):
        assert_command_refused(run_cli("parity", hash_of(key)), f"{key}.json", f"key {key}", found, "0" * 64)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--scheduler", "nope"), ("scheduler", '"nope"', "lws")),
        (("--sub-batches", "3"), ("sub_batches", "3", "divisor", "2")),
        (("--partition", "2x2"), ("partition 2x2", "4 cores", "found 2")),
    ],
)
def test_bad_parity_options(options: tuple[str, str], parts: tuple[str, ...]) -> None:
    assert_command_refused(run_cli("parity", TINY.path, *options, environment=TWO_CORES), *parts)
