"""What the run of generated mutants takes for a mutant, how it credits a catch, and the page; nothing is built."""

from __future__ import annotations

import ast
import importlib.util
import tomllib
from pathlib import Path

import pytest

from starpullm.binding.library import find_library

from .generated.candidates import (
    Candidate,
    Stratum,
    candidates_of,
    ends_a_loop,
    functions_of,
    is_left_out,
    shuffled,
    strata,
)
from .generated.page import EXPLANATIONS, PYTHON_EXPLANATIONS, confidence_interval, page, read_explanations
from .generated.python_checks import (
    NOT_TRIED,
    FileCounts,
    PythonMutant,
    PythonRun,
    once_more,
    read_run,
    write_run,
)
from .generated.results import SUITE, Mutant, Results, Run
from .generated.stages import STAGES, Baseline, Outcome, classify
from .generated.suite import Suite
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


def test_every_line_knows_its_function() -> None:
    lines = [
        "#include <a.h>",
        "static int SIMD_NAME(sum)(int a,",
        "    int b)",
        "{",
        "    a();",
        "}",
        "",
        "enum { A };",
    ]
    assert functions_of(lines) == ["", "sum", "sum", "sum", "sum", "sum", "", ""]


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


def test_limits_follow_from_the_unchanged_library() -> None:
    quick, slow = Baseline("quick", None, 5, 0.5), Baseline("quick", "ref", 50, 10)
    assert 10 <= quick.check_limit < slow.check_limit == 100


def suite_tests(folder: Path, ranks: int) -> list[str]:
    """Return the names of the default suite's tests as the server collects them, at most one for each function."""
    builder_library = find_library()
    environment = {"HWLOC_SYNTHETIC": "numa:1 core:2 pu:1", "STARPU_HOME": str(folder / "starpu")}
    with Suite(CHECKOUT, folder / f"suite-{ranks}", builder_library, environment, ranks) as suite:
        return list(suite.tests)


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_test_of_the_suite_is_in_one_stage(ranks: int, tmp_path: Path) -> None:
    tests = suite_tests(tmp_path, ranks)
    stages = [stage for stage in SUITE if stage.ranks == ranks]
    found = {test: [stage.name for stage in stages if stage.selects(test)] for test in tests}
    assert len(found) > 20
    assert {test: names for test, names in found.items() if len(names) != 1} == {}


def mutant(name: str, line: int) -> Mutant:
    candidate = Candidate("native/src/graph/step.c", line, "    a < b;", "    a <= b;", "< ==> <=")
    return Mutant(name, "graph", None, line, candidate, f"hash{line}", {"does not compile": 2})


def filled(path: Path) -> Results:
    results = Results(path, RUN)
    for number in (1, 2, 3):
        results.add("mutant", mutant(f"graph {number}", number).as_json())
    results.add("baseline", vars(Baseline("quick", None, 5, 0.5)))
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


def test_the_page_credits_the_suite_only_and_lists_survivors(tmp_path: Path) -> None:
    results = filled(tmp_path / "results.jsonl")
    text = page(results, {})
    assert "| graph | 3 | 1 | 0 | 1 | 1 | 33.3% (0.8% to 90.6%) | 2.0 |" in text
    assert "1 of the survivors are caught by these own tests of the project" in text
    assert "1 of them were not caught so far" in text
    assert text.count("+    a <= b;") == 2
    explained = page(results, {(*mutant("", 1).candidate.key, ""): "a is never b"})
    assert "| graph | 3 | 1 | 2 | 0 | 0 | 100.0%" in explained
    assert "a is never b" in explained


def test_the_interval_is_that_of_clopper_and_pearson() -> None:
    assert confidence_interval(10, 10) == pytest.approx((0.025 ** (1 / 10), 1))
    assert confidence_interval(0, 10) == pytest.approx((0, 1 - 0.025 ** (1 / 10)))


def test_explanations_are_complete_and_of_lines_that_stand_once() -> None:
    assert read_explanations()
    assert not read_explanations().keys() & read_explanations(kind="gap").keys()
    text = tomllib.loads(EXPLANATIONS.read_text("utf-8"))
    assert text.keys() == {"equivalent", "gap"}
    for entry in [*text["equivalent"], *text["gap"]]:
        file, before = entry["file"], " ".join(entry["before"].split())
        lines = (CHECKOUT / file).read_text("utf-8").splitlines()
        if "function" in entry:
            names = functions_of(lines)
            lines = [line for line, name in zip(lines, names, strict=True) if name == entry["function"]]
        found, expected = " ".join(" ".join(lines).split()).count(before), entry.get("times", 1)
        assert found == expected, f"{file} has {before!r} {found} times: remove the explanation, or renew it"


@pytest.mark.parametrize("text", ['[[equivalent]]\nfile = "a"\nbefore = "b"\nafter = "c"\nreason = " "'])
def test_an_explanation_without_a_reason_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "equivalent.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match="expected file, before, after and a reason"):
        read_explanations(path)


def test_every_folder_of_the_sources_is_sampled_or_left_out_on_purpose() -> None:
    sampled = {Path(stratum.folder).parts[0] for stratum in strata(["avx2"])}
    folders = {path.parent.name for path in (CHECKOUT / "native" / "src").glob("*/*.c")}
    assert folders - sampled == {"instrument", "model"}


PYTHON_MUTANTS = (
    PythonMutant("starpullm.checks.bits.x_compare_bits__mutmut_1", "caught"),
    PythonMutant("starpullm.checks.bits.x_compare_bits__mutmut_2", "survived", "    a < b", "    a <= b"),
    PythonMutant("starpullm.checks.dependencies.graph.xǁTaskGraphǁedge__mutmut_3", "time limit or crash", "x", "y"),
    PythonMutant("starpullm.checks.bits.x__ulp_counts__mutmut_1", "caught", again="cccc"),
    PythonMutant("starpullm.checks.bits.x_compare_bits__mutmut_4"),
)


def test_the_page_has_the_mutants_of_the_checks(tmp_path: Path) -> None:
    files = {
        "starpullm/checks/bits.py": FileCounts(6, 4, 90, 70),
        "starpullm/checks/dependencies/graph.py": FileCounts(3, 3, 10, 10),
    }
    python = PythonRun(1, "0123456789ab", "mutmut 3", files, 7, PYTHON_MUTANTS)
    text = page(filled(tmp_path / "results.jsonl"), {}, python)
    assert "run 7 of the 9 functions that have mutants, with 80 of the 100 mutants" in text
    assert "without the 7 of other samples, 5 were drawn, of which 1 were not tried" in text
    assert "1 survived at first. They were tried once more" in text
    assert "(commit `cccc`), which catch 1." in text
    assert "| bits.py | 6 | 4 | 3 | 2 | 0 | 1 | 66.7% (9.4% to 99.2%) |" in text
    assert "| dependencies/graph.py | 3 | 3 | 1 | 0 | 0 | 1 | 0.0%" in text
    assert "| **all** | 9 | 7 | 4 | 2 | 0 | 2 | 50.0% (6.8% to 93.2%) |" in text
    survivor = PYTHON_MUTANTS[1]
    assert f"`{survivor.name}`: not explained.\n\n```diff\n-    a < b\n+    a <= b\n```" in text
    assert "edge__mutmut_3` (time limit or crash): not explained" in text
    explained = page(filled(tmp_path / "again.jsonl"), {(*survivor.key, ""): "a is never b"}, python)
    assert "| **all** | 9 | 7 | 4 | 2 | 1 | 1 | 66.7%" in explained
    assert f"`{survivor.name}`: a is never b." in explained


def test_a_mutant_of_the_checks_knows_its_file_and_function() -> None:
    assert [(mutant.file, mutant.function) for mutant in PYTHON_MUTANTS[1:4]] == [
        ("starpullm/checks/bits.py", "compare_bits"),
        ("starpullm/checks/dependencies/graph.py", "TaskGraph.edge"),
        ("starpullm/checks/bits.py", "_ulp_counts"),
    ]


def test_results_of_the_checks_are_read_as_written_and_survivors_are_tried_once_more(tmp_path: Path) -> None:
    path = tmp_path / "python-1.json"
    assert read_run(path) is None
    run = PythonRun(1, "0123", "mutmut 3", {"starpullm/checks/bits.py": FileCounts(6, 4, 90, 70)}, 7, PYTHON_MUTANTS)
    write_run(run, path)
    assert read_run(path) == run
    tried = once_more(run).mutants
    assert [mutant.status for mutant in tried] == ["caught", NOT_TRIED, NOT_TRIED, "caught", NOT_TRIED]
    assert [bool(mutant.again) for mutant in tried] == [False, True, True, True, False]
    assert tried[1].before == PYTHON_MUTANTS[1].before


def source_of(file: str, function: str) -> str:
    """Return the text of a function, or of a method with its class, with single spaces."""
    text = (CHECKOUT / file).read_text("utf-8")
    nodes: list[ast.stmt] = ast.parse(text).body
    for name in function.split("."):
        (node,) = (of for of in nodes if isinstance(of, ast.FunctionDef | ast.ClassDef) and of.name == name)
        nodes = node.body
    return " ".join(str(ast.get_source_segment(text, node)).split())


@pytest.mark.parametrize("kind", ["equivalent", "gap"])
def test_explanations_of_the_checks_are_of_lines_that_stand_once_in_a_function(kind: str) -> None:
    for file, before, after, function in read_explanations(PYTHON_EXPLANATIONS, kind):
        found = source_of(file, function).count(before)
        assert found == 1, f"{file}, {function} has {before!r} {found} times: remove the explanation, or renew it"
        assert after != before
