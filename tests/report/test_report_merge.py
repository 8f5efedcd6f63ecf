"""One report of several runs: the verdict, what was not checked, the reports of Slurm's jobs, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from starpullm.commands import main
from starpullm.commands.main import EXIT_BAD_INPUT
from starpullm.report.document import read_document, write_document
from starpullm.report.folder import ReportFolder
from starpullm.report.left_out import NOT_REACHED
from starpullm.report.page import render
from starpullm.report.runs import (
    FAILED,
    NOT_COMPARABLE,
    NOT_ENDED,
    NOTHING,
    PASSED,
    Run,
    environments,
    merge,
    read_run,
    run_rows,
)
from starpullm.report.verdict import not_checked, verdict_of

from .reports import entry, failing, killed, merged, over_ranks, passing, throughput

Document = dict[str, Any]


def plain(document: Document) -> Document:
    """A document that can be merged."""
    return {**document, "throughput": []}


def run(name: str, outcome: str = PASSED, document: Document | None = None) -> Run:
    return Run(name, outcome, f"how {name} ended", "n1", document)


@pytest.mark.parametrize(
    ("runs", "kind", "word", "sentence"),
    [
        (
            [run("a", PASSED, plain(passing())), run("b", PASSED, over_ranks(2))],
            "passed",
            "Passed",
            "All 6 tests passed.",
        ),
        ([run("a", FAILED, plain(failing()))], "failed", "Failed", "5 of 11 tests failed. 1 of 1 runs failed."),
        # A run can fail although its tests haven't, as by a leak at its end.
        ([run("a", FAILED, over_ranks(2))], "failed", "Failed", "1 of 1 runs failed."),
        (
            [run("a", PASSED, over_ranks(2)), run("b", NOT_ENDED)],
            "unfinished",
            "Incomplete",
            "1 of 2 runs did not end. So far 1 test passed and 0 failed.",
        ),
        (
            [run("a", PASSED, over_ranks(2)), run("b", NOTHING)],
            "unfinished",
            "Incomplete",
            "1 of 2 runs compared nothing. So far 1 test passed and 0 failed.",
        ),
        ([run("a", NOT_COMPARABLE)], "nothing", "Nothing was checked", "No test ran."),
    ],
)
def test_verdict(runs: list[Run], kind: str, word: str, sentence: str) -> None:
    verdict = verdict_of(merge(runs, []))
    assert (verdict.kind, verdict.word, verdict.sentence) == (kind, word, sentence)


def test_what_no_run_has_checked() -> None:
    """Runs without a result come first, then what all of them leave out; what only some leave out names them."""
    first, second = over_ranks(2), over_ranks(4)
    first["not_checked"].append({"what": "record deep", "reason": "not chosen", "tests": []})
    for document, test in ((first, "a"), (second, "b")):
        document["not_checked"].append({"what": NOT_REACHED, "reason": f"{test} ended", "tests": [test]})
    second["tests"].append(entry("test_x", "parity", "skipped", message="inconclusive"))
    document = merge([run("one", PASSED, first), run("two", PASSED, second), run("three", NOT_ENDED)], [])
    assert list(not_checked(document)) == [
        ("three", "how three ended", []),
        ("skipped (parity)", "inconclusive", ["starpullm/suite/test_parity.py::test_x"]),
        ("speed", "starpullm bench measures it", []),
        ("record deep (one)", "not chosen", []),
        (f"{NOT_REACHED} (one)", "a ended", ["a"]),
        (f"{NOT_REACHED} (two)", "b ended", ["b"]),
    ]


def test_rows_and_machines() -> None:
    document = merged()
    rows = {row["name"]: row for row in run_rows(document)}
    assert rows["one-node/suite"]["counts"] == {"passed": 5, "failed": 5, "skipped": 1}
    assert (rows["ranks/ranks-4"]["counts"]["passed"], rows["ranks/ranks-4"]["ranks"]) == (1, 4)
    assert [rows["gate"][name] for name in ("kind", "seconds", "command")] == ["undecided", None, ""]
    names = [names for names, _ in environments(document)]
    assert names == [["one-node/suite"], ["ranks/ranks-2", "ranks/ranks-4"]]
    page = render(document)
    assert "rank 1: in the forward pass of step 2" in page
    assert '<a href="#runs">✗ run gate</a>: never started: not started after 60 s (Resources)' in page


def report(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


def test_command_of_runs(tmp_path: Path) -> None:
    """Reports are given by folder or by file; a run that was killed has not ended."""
    for name, document in (("suite", plain(passing())), ("killed", plain(killed()))):
        ReportFolder(tmp_path / name).write(document)
    write_document(over_ranks(2), tmp_path / "ranks.json")
    out = tmp_path / "out"
    sources = [tmp_path / "suite", tmp_path / "ranks.json", tmp_path / "killed"]
    done = report(out, *(part for path in sources for part in ("--merge", path)))
    assert (done.exit_code, done.output) == (0, f"saved {out}/index.html\n")
    document = read_document(out / "report.json")
    assert [(found["name"], found["outcome"]) for found in document["runs"]] == [
        (str(sources[0]), PASSED),
        (str(sources[1]), PASSED),
        (str(sources[2]), NOT_ENDED),
    ]
    assert len(document["tests"]) == 11
    assert len(document["recordings"]) == 1
    page = (out / "index.html").read_text()
    assert "Incomplete" in page
    # The page is made again from the data of the merged report, but that is no report of one run.
    assert report(out).exit_code == 0
    refused = report(tmp_path / "more", "--merge", out)
    assert refused.exit_code == EXIT_BAD_INPUT
    assert "found a report of several runs, expected one of a run" in refused.output
    for again in ((out, "--merge", out), (tmp_path / "x", "--merge", sources[0], "--merge", sources[0])):
        assert report(*again).exit_code == EXIT_BAD_INPUT
    assert not (tmp_path / "more").exists()
    assert not (tmp_path / "x").exists()


def test_speeds_within_noise_are_no_failure(tmp_path: Path) -> None:
    noisy = {**throughput(12.0), "matmul_gflops": 40.0, "matmul_limit_range": [40.0, 121.0]}
    write_document({**passing(), "tests": [], "throughput": [noisy]}, tmp_path / "bench.json")
    assert read_run(tmp_path / "bench.json").outcome == NOT_COMPARABLE


def job(name: str, outcome: int, *parts: Document, **fields: Any) -> Document:
    entry = {"name": name, "id": "7", "nodes": "n1", "restarts": 0, "outcome": outcome, "meaning": f"end of {name}"}
    return {**entry, "parts": list(parts), **fields}


def test_command_of_jobs(tmp_path: Path) -> None:
    """Reports that are missing or damaged are named; a job that died after its last part is a run of its own."""
    (tmp_path / "one").mkdir()
    ReportFolder(tmp_path / "one" / "suite.report").write(over_ranks(2))
    (tmp_path / "one" / "bad.report").mkdir()
    (tmp_path / "one" / "bad.report" / "report.json").write_text("{")
    parts = [
        {"name": "suite", "outcome": 0, "ending": "exit status 0", "report": "one/suite.report"},
        {"name": "bad", "outcome": 4, "ending": "no exit status", "report": "one/bad.report", "log_end": ["killed"]},
        {"name": "lost", "outcome": 2, "ending": "exit status 2"},
    ]
    jobs = [job("one", 4, *parts), job("died", 4, {**parts[0], "report": "one/suite.report"}, restarts=1)]
    jobs.append(job("gate", 4, nodes=""))
    summary = tmp_path / "summary.json"
    summary.write_text(json.dumps({"version": 1, "status": 4, "jobs": jobs}))
    done = report(tmp_path / "report", "--jobs", summary)
    assert done.exit_code == 0, done.output
    document = read_document(tmp_path / "report" / "report.json")
    runs = {found["name"]: (found["outcome"], found["ending"], found["place"]) for found in document["runs"]}
    bad = runs.pop("one/bad")
    path = tmp_path / "one" / "bad.report" / "report.json"
    assert bad[1].startswith(f"no exit status; its report can't be used: {path}, byte ")
    assert runs == {
        "one/suite": (PASSED, "exit status 0", "job 7 on n1"),
        "one/lost": (NOTHING, "exit status 2; it has left no report", "job 7 on n1"),
        "died/suite": (PASSED, "exit status 0", "job 7 on n1, run again 1 times"),
        "died": (NOT_ENDED, "end of died", "job 7 on n1, run again 1 times"),
        "gate": (NOT_ENDED, "end of gate", "job 7"),
    }
    assert document["runs"][1]["output"] == ["killed"]
    assert document["exit_status"] == 4


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 1, "status": 9, "jobs": []}', '{"version": 1, "status": 0}'])
def test_a_summary_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "summary.json").write_text(text)
    refused = report(tmp_path / "out", "--jobs", tmp_path / "summary.json")
    assert refused.exit_code == EXIT_BAD_INPUT
    assert refused.output.startswith(f"Error: {tmp_path}/summary.json")
    assert not (tmp_path / "out").exists()
