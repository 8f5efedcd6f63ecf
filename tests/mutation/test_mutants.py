"""What the run of generated mutants takes for a mutant, how it credits a catch, and the summary; nothing is built."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from starpullm.processes.mpirun import mpirun_here

from ..pytest_children import UNUSED, load_plugin
from .generated.candidates import (
    Candidate,
    Stratum,
    candidates_of,
    ends_a_loop,
    is_left_out,
    shuffled,
    strata,
)
from .generated.results import SUITE, Mutant, Results, Run
from .generated.stages import STAGES, Outcome, classify
from .generated.summary import confidence_interval, summary
from .patches import CHECKOUT

RUN = Run(1, "0123456789ab", "hash", "universalmutator 1", "cc 1", "2 cores", ("avx2",))

SOURCE = """\
/* A sum a + b. */
#include <stdio.h>

static int plus(int a, int b)
{
    return a + b; /* a + b */
}

static void prefetch_next(int a)
{
    plus(a, a + 1);
}

static int told(int a)
{
    return fail("a + b");
}
"""


@pytest.mark.skipif(importlib.util.find_spec("universalmutator") is None, reason="needs universalmutator")
def test_candidates_change_code_that_no_rule_leaves_out(tmp_path: Path) -> None:
    folder = tmp_path / "native" / "src" / "graph"
    folder.mkdir(parents=True)
    (folder / "a.c").write_text(SOURCE)
    found = list(candidates_of(tmp_path, "graph"))
    assert {candidate.line for candidate in found} == {4, 5, 6, 7, 14, 15, 16, 17}
    assert not any('fail("' in candidate.after and '"a + b"' not in candidate.after for candidate in found)
    minus = next(candidate for candidate in found if candidate.after == "    return a - b;")
    minus.apply(tmp_path)
    assert (folder / "a.c").read_text() == SOURCE.replace("    return a + b; /* a + b */", "    return a - b;")
    with pytest.raises(ValueError, match="expected"):
        minus.apply(tmp_path)


def test_a_function_is_left_out_by_its_head() -> None:
    lines = ["static int next_b(int a)", "{", "    return a;", "}", "", "struct lines prefetch_lines(void)", "{", "}"]
    assert is_left_out(lines) == [False] * 5 + [True] * 3


def test_the_end_of_a_loop_is_found() -> None:
    lines = ["for (;;) {", "    if (a) {", "        b();", "    }", "    c();", "}", "if (a) {", "    d();", "}"]
    assert [number for number in range(1, 10) if ends_a_loop(lines, number)] == [5]


def candidates(count: int) -> list[Candidate]:
    return [Candidate("native/src/graph/step.c", 1 + number // 4, "a", str(number), "r") for number in range(count)]


def test_the_order_depends_on_seed_and_stratum_and_takes_every_line_once_first() -> None:
    plain = candidates(40)
    orders = [shuffled(plain, seed, Stratum(folder)) for seed, folder in ((1, "graph"), (2, "graph"), (1, "io"))]
    assert shuffled(plain, 1, Stratum("graph")) == orders[0]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    for order in orders:
        assert sorted(order, key=lambda candidate: int(candidate.after)) == plain
        assert {candidate.line for candidate in order[:10]} == set(range(1, 11))


@pytest.mark.parametrize(
    ("message", "how"),
    [
        ("parity: failed: 570 tensors over 3 steps, 366 differ", "finding"),
        ("1x1 lws: parity had not ended after 30 s, so its process was ended:\nthe process was ended", "time limit"),
        ("1x1 lws: the process was ended by SIGSEGV (step 1)", "crash"),
        ("1x1 lws: the process ended with exit status 1", "exit"),
        ("StateError: the loss is closed, expected one that is open", "error"),
        ("1x1 lws: MemoryError", "memory limit"),
        ("1x1 lws: the process was ended by SIGXCPU (step 1)", "time limit"),
        ("parity: failed: 1 differ\nlater lines\nmay name a RuntimeError", "finding"),
    ],
)
def test_a_kill_is_credited_to_what_happened(message: str, how: str) -> None:
    assert classify(message) == how


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_test_of_the_suite_is_in_one_stage(ranks: int, tmp_path: Path) -> None:
    """By the names that pytest collects."""
    over_ranks = mpirun_here(ranks, (), os.environ["PATH"]) if ranks > 1 else []
    options = ["--starpullm-over-ranks"] if ranks > 1 else []
    command = [*over_ranks, sys.executable, "-P", "-m", "pytest", *load_plugin(), *UNUSED]
    options += ["-p", "no:cacheprovider", "--collect-only", "-q"]
    environment = {**os.environ, "HWLOC_SYNTHETIC": "numa:1 core:2 pu:1"}
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    collected = subprocess.run(
        [*command, *options, "--pyargs", "starpullm.suite"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    ).stdout
    tests = [line for line in collected.splitlines() if "::" in line]
    stages = [stage for stage in SUITE if stage.ranks == ranks]
    found = {test: [stage.name for stage in stages if stage.selects(test)] for test in tests}
    assert len(found) > 20, collected
    assert {test: names for test, names in found.items() if len(names) != 1} == {}


def mutant(name: str, line: int) -> Mutant:
    candidate = Candidate("native/src/graph/step.c", line, "    a < b;", "    a <= b;", "< ==> <=")
    return Mutant(name, "graph", None, line, candidate, f"hash{line}", {"does not compile": 2})


def filled(path: Path) -> Results:
    results = Results(path, RUN)
    for number in (1, 2, 3):
        results.add("mutant", mutant(f"graph {number}", number).as_json())
    results.add("baseline", {"stage": "quick", "level": None, "seconds": 5})
    results.add("outcome", {"mutant": "graph 1", **Outcome("quick", "crash", "test_a[x]", "SIGSEGV", 2).as_json()})
    for stage in SUITE:
        results.add("outcome", {"mutant": "graph 2", **Outcome(stage.name, None, "", "", 9).as_json()})
    caught = Outcome(STAGES[-1].name, "finding", "test_saved", "differs", 9)
    results.add("outcome", {"mutant": "graph 2", **caught.as_json()})
    results.add("outcome", {"mutant": "graph 3", **Outcome("quick", None, "", "", 9).as_json()})
    return results


def test_results_are_continued_and_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    before = filled(path)
    after = Results(path, RUN)
    assert (after.mutants, after.outcomes, after.baselines) == (before.mutants, before.outcomes, before.baselines)
    assert [after.is_finished(one) for one in after.mutants.values()] == [True, True, False]
    with pytest.raises(ValueError, match="a run with other seed, sources"):
        Results(path, Run(**{**vars(RUN), "seed": 2, "sources": "other"}))


def test_the_summary_credits_the_suite_only_and_lists_survivors(tmp_path: Path) -> None:
    text = summary(filled(tmp_path / "results.jsonl"))
    assert "| graph | 3 | 1 | 1 | 1 | 33.3% (0.8% to 90.6%) | 2.0 |" in text
    assert "| **all** | 3 | 1 | 1 | 1 |" in text
    assert "graph 2 (`< ==> <=`): caught by the project's test `test_saved`. Tried: quick" in text
    assert "graph 3 (`< ==> <=`): not caught. Tried: quick." in text
    assert text.count("+    a <= b;") == 2


def test_the_interval_is_that_of_clopper_and_pearson() -> None:
    assert confidence_interval(10, 10) == pytest.approx((0.025 ** (1 / 10), 1))
    assert confidence_interval(0, 10) == pytest.approx((0, 1 - 0.025 ** (1 / 10)))


def test_every_folder_of_the_sources_is_sampled_or_left_out_on_purpose() -> None:
    sampled = {Path(stratum.folder).parts[0] for stratum in strata(["avx2"])}
    folders = {path.parent.name for path in (CHECKOUT / "native" / "src").glob("*/*.c")}
    assert folders - sampled == {"instrument", "model"}
