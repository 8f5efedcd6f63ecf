"""Tests of ci/slurm/summary.py: what it makes of the records that jobs leave, whole or not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "ci" / "slurm" / "summary.py"


def summarise(folder: Path) -> tuple[int, str]:
    """Without Slurm's commands on PATH."""
    command = [sys.executable, str(SCRIPT), str(folder)]
    done = subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stdout + done.stderr


def job(folder: Path, name: str, parts: Mapping[str, str | None], *, ended: bool = True, report: object = None) -> None:
    """Write what a job leaves: the exit status of each part, and its tests."""
    own = folder / name
    own.mkdir()
    (own / "job").write_text(f"7 0 n{len(list(folder.iterdir()))}\n")
    (own / "parts").write_text(" ".join(parts) + "\n")
    for part, status in parts.items():
        if status is None:  # not begun
            continue
        (own / f"{part}.log").write_text(f"first\nend of {part}\n")
        if status:
            (own / f"{part}.status").write_text(f"{status}\n")
        if report is not None:
            (own / f"{part}.report").mkdir()
            text = report if isinstance(report, str) else json.dumps(report)
            (own / f"{part}.report" / "report.json").write_text(text)
    if ended:
        (own / "status").write_text("0\n")
    with (folder / "jobs").open("a") as jobs:
        jobs.write(f"{name} 7\n")


def reported(*outcomes: str) -> dict[str, Any]:
    return {"tests": [{"test": f"test_{o}", "outcome": o, "message": f"{o} because\nof"} for o in outcomes]}


LOST = {
    "test": "test_check[poison]",
    "outcome": "failed",
    "ending": "lost its process",
    "configuration": "1x1 lws",
    "message": "poison of tiny on 1x1 lws: no result: the process was ended by SIGSEGV\n---- native stacks",
    "results": [
        {
            "check": "poison",
            "outcome": "no result",
            "sentence": "the process was ended by SIGSEGV",
            "lines": ["poison of tiny on 1x1 lws: no result: the process was ended by SIGSEGV"],
        }
    ],
}
RAISED = LOST | {
    "ending": "error in teardown",
    "message": "def test():\n>   raise\nE   ValueError: bad\n",
    "results": [{"check": "energy", "outcome": "passed", "sentence": "3 atoms", "lines": ["energy: passed: 3 atoms"]}],
}
NOT_RUN = {"test": "test_after", "outcome": "unfinished", "ending": "not run"}


@pytest.mark.parametrize(
    ("parts", "options", "status", "lines"),
    [
        ({"suite": "0"}, {"report": reported("passed", "skipped")}, 0, ["tests: 1 passed, 0 failed, 1 skipped"]),
        ({"suite": "1"}, {"report": reported("passed", "failed")}, 1, ["test_failed: failed because", "exit status 1"]),
        (
            {"suite": "1"},
            {"report": {"tests": [LOST, RAISED]}},
            1,
            [
                "tests: 0 passed, 2 failed, 0 skipped, 0 unfinished (1 lost its process, 1 error in teardown)\n",
                "    poison of tiny on 1x1 lws: no result: the process was ended by SIGSEGV\n",
                "    energy on 1x1 lws: ValueError: bad\n",
            ],
        ),
        (
            {"suite": "0"},
            {"report": {"tests": [*reported("passed")["tests"], NOT_RUN]}},
            4,
            ["did not run to its end, exit status 0", "1 passed, 0 failed, 0 skipped, 1 unfinished (1 not run)"],
        ),
        ({"suite": "0"}, {"report": reported("skipped")}, 2, ["suite: nothing compared, exit status 0"]),
        ({"suite": "0"}, {"report": reported()}, 2, ["nothing compared"]),
        ({"suite": "0"}, {}, 2, ["nothing compared"]),  # no report
        ({"suite": "0"}, {"report": '{"tests": ['}, 2, ["nothing compared"]),  # half of one
        ({"suite": "5"}, {}, 2, ["nothing compared, exit status 5"]),
        ({"suite": "137"}, {}, 4, ["did not run to its end, exit status 137", "end of suite"]),
        (
            {"suite": ""},
            {"ended": False},
            4,
            ["did not run to its end (Slurm: unknown)", "suite: did not run to its end, no exit status"],
        ),
        ({"suite": "limit"}, {"ended": False}, 4, ["ended at its time limit"]),
        ({}, {}, 4, ["did not run to its end"]),
        (
            {"ranks-2": "0", "ranks-4": "0"},
            {"report": reported("passed")},
            0,
            ["ranks-2: passed", "end of ranks-4", "report: job/ranks-4.report"],
        ),
        ({"ranks-2": "0", "ranks-4": "1"}, {"report": reported("passed")}, 1, ["ranks-4: failed, exit status 1"]),
        (
            {"ranks-2": "0", "ranks-4": "2"},
            {"report": reported("passed")},
            2,
            ["ranks-4: nothing compared, exit status 2"],
        ),
        ({"ranks-2": "3"}, {}, 3, ["ranks-2: not comparable, exit status 3"]),
        ({"ranks-2": "1"}, {"ended": False}, 1, ["did not run to its end"]),
        ({"ranks-2": "limit", "ranks-4": None}, {"ended": False}, 4, ["ranks-4: did not run to its end, not begun"]),
    ],
)
def test_outcome(
    parts: dict[str, str | None], options: dict[str, Any], status: int, lines: list[str], tmp_path: Path
) -> None:
    job(tmp_path, "job", parts, **options)
    found, text = summarise(tmp_path)
    assert found == status, text
    assert [line for line in lines if line not in text] == []
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == status


def test_the_worst_job_decides(tmp_path: Path) -> None:
    job(tmp_path, "one-node", {"suite": "0"}, report=reported("passed"))
    job(tmp_path, "ranks", {"ranks-2": "limit"}, ended=False)
    assert summarise(tmp_path)[0] == 4
    job(tmp_path, "gate", {"gate": "1"}, report=reported("failed"))
    assert summarise(tmp_path)[0] == 1


def test_a_job_that_never_started(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text("gate 12\n")
    (tmp_path / "queue").write_text("gate not started after 60 s (Resources)\n")
    status, text = summarise(tmp_path)
    assert status == 4
    assert "gate (job 12): never started: not started after 60 s (Resources)\n" in text


def test_no_results(tmp_path: Path) -> None:
    status, text = summarise(tmp_path)
    assert (status, text) == (
        2,
        f"summary: {tmp_path}: expected the results folder of submit.sh: No such file or directory\n",
    )
    (tmp_path / "jobs").touch()
    assert summarise(tmp_path)[0] == 2
