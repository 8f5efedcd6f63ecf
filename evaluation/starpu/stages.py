"""The stages that a bug goes through until one catches it, and the results: lines of JSON, from which a run goes on."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from evaluation.mutation.generated.results import confidence_interval
from starpullm.processes.endings import Completed, Job
from starpullm.processes.job import run_job

_PYTEST = [sys.executable, "-P", "-m", "pytest", "-x", "-q", "-rfE", "--color=no", "-p", "no:cacheprovider"]
_SUITE = ["--starpullm-time-limit", "120", "--pyargs", "starpullm.suite"]
_FEW = ["--starpullm-records", "tiny,odd"]
_RANKS = "mpirun --oversubscribe --bind-to none -x LD_LIBRARY_PATH -n 2".split()
_WITHOUT_SHRINKING = """\
from starpullm.commands.main import main
from starpullm.fuzz import search
search._SHRINKING_SECONDS = 0.0
main()"""
_FUZZ = [sys.executable, "-P", "-c", _WITHOUT_SHRINKING, "fuzz", "--output", "failure.c", "--minutes"]

STAGES = {
    "fuzz 1 minute": ([*_FUZZ, "1"], 400.0),
    "suite, quick": ([*_PYTEST, *_FEW, "-m", "not starpullm_kernels and not starpullm_scenario", *_SUITE], 1200.0),
    "fuzz over ranks": ([*_FUZZ, "1"], 400.0),
    "suite over ranks": (
        [*_RANKS, *_PYTEST, "--starpullm-over-ranks", *_FEW, "-m", "not starpullm_scenario", *_SUITE],
        1200.0,
    ),
}
"""Commands by the stage's name, and the seconds after which one is ended, which counts as caught. Those over ranks are
for bugs of MPI, the others for all other bugs."""


class Tried(NamedTuple):
    """What a stage has found of a bug: the first line of its finding; empty: nothing."""

    kind: str
    name: str
    wrong: str
    stage: str
    finding: str
    seconds: float


def try_stage(name: str, libraries: str, configuration: str = "") -> tuple[str, float]:
    """Run a stage with StarPU's libraries, one of fuzz in a configuration; return its finding and the seconds."""
    command, limit = STAGES[name]
    if name.startswith("fuzz"):
        ranks = ["ranks=2"] if "ranks" in name else []
        command = [*command, "--configuration", ",".join(filter(None, [configuration, *ranks]))]
    with tempfile.TemporaryDirectory(prefix="starpu-bug-") as folder:
        Path(folder, "pytest.ini").write_text("[pytest]\n")
        environment = {
            "LD_LIBRARY_PATH": libraries,
            "STARPU_HOME": folder,
            "STARPULLM_LOCK": str(Path(folder, "lock")),
            "OMP_WAIT_POLICY": "passive",
            "COLUMNS": "1000",
        }
        ending = run_job(Job(["env", "-C", folder, *command], limit, None, {**os.environ, **environment}))
    found = "" if isinstance(ending, Completed) else ending.sentence
    for pattern in (
        r"^(?:FAILED|ERROR) \S*?([^/:\s]+(?: - .*)?)$",
        r"^Failure: (.*)$",
        r"^(.*(?:failed|abort|signal).*)$",
    ):
        if found and (told := re.search(pattern, ending.stdout, re.MULTILINE)):
            return told[1][:200], round(ending.seconds, 1)
    return found[:200], round(ending.seconds, 1)


class Results:
    """What has been tried, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        self.tried = [Tried(*json.loads(line)) for line in lines]

    def add(self, tried: Tried) -> None:
        """Add what a stage has found."""
        self.tried.append(tried)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(tried) + "\n")

    def of(self, name: str) -> dict[str, Tried]:
        """Return the stages that a bug has gone through."""
        return {tried.stage: tried for tried in self.tried if tried.name == name}

    def table(self) -> Iterator[str]:
        """Yield the lines of a table of kinds, and then what wasn't caught."""
        bugs: dict[tuple[str, str], list[Tried]] = {}
        for tried in self.tried:
            if tried.kind.startswith(("mends", "mutants")):
                bugs.setdefault((tried.kind, tried.name), []).append(tried)
        yield f"| kind | tried | caught | {' | '.join(STAGES)} |"
        yield "|---" * (3 + len(STAGES)) + "|"
        rows = {kind: kind for kind, _ in bugs} | {"mends": "**all mends**", "mutants": "**all mutants**"}
        for start, title in rows.items():
            if of_row := [stages for (kind, _), stages in bugs.items() if kind.startswith(start)]:
                yield _row(title, of_row)
        yield ""
        for reason, count in Counter(tried.stage for tried in self.tried if tried.kind == "left out").items():
            yield f"- left out: {count}: {reason}"
        for (kind, name), stages in bugs.items():
            if not any(tried.finding for tried in stages):
                yield f"- not caught ({kind}): {name}: {stages[0].wrong}"


def _row(kind: str, bugs: Sequence[Sequence[Tried]]) -> str:
    caught = [tried.stage for tries in bugs for tried in tries if tried.finding]
    by_stage = [caught.count(stage) for stage in STAGES]
    low, high = confidence_interval(sum(by_stage), len(bugs))
    rate = f"{sum(by_stage)}, {sum(by_stage) / len(bugs):.0%} ({low:.0%} to {high:.0%})"
    return f"| {kind} | {len(bugs)} | {rate} | {' | '.join(map(str, by_stage))} |"
