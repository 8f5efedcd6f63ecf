"""Writes docs/mutants.md from the results of a run and the explanations of equivalent mutants."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Protocol

from .candidates import LEFT_OUT
from .python_checks import NOT_TRIED, FileCounts, PythonMutant, PythonRun
from .results import SUITE, Mutant, Results, Run
from .stages import STAGES

__all__ = [
    "EXPLANATIONS",
    "PYTHON_EXPLANATIONS",
    "confidence_interval",
    "page",
    "read_explanations",
    "reason_of",
]

EXPLANATIONS = Path(__file__).resolve().parent / "equivalent.toml"
PYTHON_EXPLANATIONS = EXPLANATIONS.with_name("python-equivalent.toml")

Key = tuple[str, str, str, str]
"""File, line before, line after, function or nothing."""


class Explained(Protocol):
    """A mutant that can be explained."""

    @property
    def key(self) -> tuple[str, str, str]:
        """File, line before, line after."""

    @property
    def function(self) -> str:
        """The function, if it matters."""


def reason_of(mutant: Explained, explanations: dict[Key, str]) -> str | None:
    """Return why a mutant is equivalent, if it is."""
    return explanations.get((*mutant.key, mutant.function)) or explanations.get((*mutant.key, ""))


def read_explanations(path: Path = EXPLANATIONS, kind: str = "equivalent") -> dict[Key, str]:
    """Return why mutants survive, by file, by the line before and after with single spaces, and by function.

    The kind is "equivalent", or "gap": a result could show the mutant, but no check of the suite does.

    Raises
    ------
    ValueError
        If an entry lacks a field or its reason, or stands twice.
    """
    found: dict[Key, str] = {}
    for entry in tomllib.loads(path.read_text("utf-8")).get(kind, []):
        function, _ = entry.pop("function", ""), entry.pop("times", 1)
        if set(entry) != {"file", "before", "after", "reason"} or not entry["reason"].strip():
            raise ValueError(f"{path}: found {entry}, expected file, before, after and a reason")
        key = entry["file"], " ".join(entry["before"].split()), " ".join(entry["after"].split()), function
        if key in found:
            raise ValueError(f"{path}: {key} stands twice")
        found[key] = " ".join(entry["reason"].split())
    return found


def confidence_interval(caught: int, tried: int) -> tuple[float, float]:
    """Return the 95 % interval of Clopper and Pearson for the probability that a mutant is caught."""
    from scipy.stats import binomtest

    interval = binomtest(caught, tried).proportion_ci(confidence_level=0.95, method="exact")
    return float(interval.low), float(interval.high)


def page(
    results: Results,
    explanations: dict[Key, str] | None = None,
    python: PythonRun | None = None,
    fresh: Sequence[Results] = (),
    python_fresh: PythonRun | None = None,
) -> str:
    """Return docs/mutants.md; fresh results are those of a sample whose survivors no check or test was made for."""
    explanations = read_explanations() if explanations is None else explanations
    of_python = {**explanations, **read_explanations(PYTHON_EXPLANATIONS)}
    run = results.run
    assert run is not None
    tried = [mutant for mutant in results.mutants.values() if mutant.name in results.outcomes]
    unfinished = [m for m in tried if not results.is_finished(m) and not reason_of(m.candidate, explanations)]
    survivors = [mutant for mutant in tried if not is_caught(results, mutant)]
    catches = [catch for mutant in tried if is_caught(results, mutant) and (catch := results.catch(mutant))]
    strata = list(dict.fromkeys(mutant.stratum for mutant in results.mutants.values()))
    rows = [_row(name, [m for m in tried if m.stratum == name], results, explanations) for name in strata]
    rows.append(_row("**all**", tried, results, explanations))
    open_ones = [mutant for mutant in survivors if not reason_of(mutant.candidate, explanations)]
    explained = [mutant for mutant in survivors if reason_of(mutant.candidate, explanations)]
    return _PAGE.format(
        run=_describe(run) + _again(results),
        left_out="\n".join(f"- {what}: {why}." for what, why in LEFT_OUT.items()),
        not_mutants=_not_mutants(results),
        state=_state(tried, unfinished),
        rows="\n".join(rows),
        stages=_stages(results),
        how=_table(Counter(catch.how or "" for catch in catches)),
        checks=_table(Counter(catch.check.partition("[")[0] for catch in catches)),
        num_open=len(open_ones),
        gaps=sum(_gap(mutant) != "not explained" for mutant in open_ones),
        project=_caught_by_project(results, tried, explanations),
        python=_python(python, of_python) if python else "Not tried.",
        python_fresh=_python(python_fresh, of_python) if python_fresh else "Not tried.",
        fresh="\n\n".join(_fresh(one, explanations) for one in fresh) or "Not tried.",
        open="\n".join(_entry(mutant, _gap(mutant), results, is_equivalent=False) for mutant in open_ones) or "None.",
        explained="\n".join(
            _entry(m, str(reason_of(m.candidate, explanations)).rstrip("."), results, is_equivalent=True)
            for m in explained
        )
        or "None.",
    )


def _gap(mutant: Mutant) -> str:
    return (reason_of(mutant.candidate, read_explanations(kind="gap")) or "not explained").rstrip(".")


def _state(tried: Sequence[Mutant], unfinished: Sequence[Mutant]) -> str:
    text = f"{len(tried)} mutants were tried."
    if unfinished:
        text += (
            f" {len(unfinished)} of them were not caught so far and have not been through all stages. The rates count "
            "them as not caught, so each is a lower bound."
        )
    return text


def is_caught(results: Results, mutant: Mutant) -> bool:
    """Return whether the suite or its run on ranks has caught a mutant."""
    catch = results.catch(mutant)
    return catch is not None and catch.stage in {stage.name for stage in SUITE}


def _row(name: str, tried: Sequence[Mutant], results: Results, explanations: dict[Key, str]) -> str:
    caught = [mutant for mutant in tried if is_caught(results, mutant)]
    rest = [
        mutant for mutant in tried if not is_caught(results, mutant) and not reason_of(mutant.candidate, explanations)
    ]
    unfinished = sum(not results.is_finished(mutant) for mutant in rest)
    counted = len(caught) + len(rest)
    equivalent = len(tried) - counted
    seconds = [catch.seconds for mutant in caught if (catch := results.catch(mutant))]
    rate = "—"
    if counted:
        low, high = confidence_interval(len(caught), counted)
        rate = f"{len(caught) / counted:.1%} ({low:.1%} to {high:.1%})"
    counts = f"{len(tried)} | {len(caught)} | {equivalent} | {len(rest) - unfinished} | {unfinished}"
    return f"| {name} | {counts} | {rate} | {f'{median(seconds):.1f}' if seconds else '—'} |"


def _describe(run: Run) -> str:
    return (
        f"Seed {run.seed}, commit `{run.commit}` (hash of the sources `{run.sources}`), {run.tool}, {run.compiler}, "
        f"{run.machine}, levels {', '.join(run.levels)}."
    )


def _again(results: Results) -> str:
    if not results.again:
        return ""
    return (
        f" {len(results.again)} survivors were tried once more with checks that were made because of them (commit "
        f"{_commits_of(results)}). So the rates of this sample are higher than those of mutants that nobody has looked "
        "at, of which there is [a sample below](#a-sample-that-no-check-was-made-for)."
    )


def _fresh(results: Results, explanations: dict[Key, str]) -> str:
    """Return the section on a sample whose survivors no check was made for."""
    assert results.run is not None
    tried = [mutant for mutant in results.mutants.values() if mutant.name in results.outcomes]
    left = [m for m in tried if not is_caught(results, m)]
    strata = list(dict.fromkeys(mutant.stratum for mutant in results.mutants.values()))
    rows = [_row(name, [m for m in tried if m.stratum == name], results, explanations) for name in strata]
    unfinished = [m for m in left if not results.is_finished(m) and not reason_of(m.candidate, explanations)]
    head = ["| folder | tried | caught | equivalent | open | not finished | rate | seconds |", "|---" * 8 + "|"]
    entries = [
        _entry(m, (reason or _gap(m)).rstrip("."), results, is_equivalent=reason is not None)
        for m in left
        for reason in [reason_of(m.candidate, explanations)]
    ]
    return "\n\n".join(
        [
            f"{_describe(results.run)} {_state(tried, unfinished)}{_once_more(results)}",
            "\n".join([*head, *rows, _row("**all**", tried, results, explanations)]),
            "Its survivors, equivalent ones with their reason:",
            *(entry.rstrip() for entry in entries),
        ]
    )


def _once_more(results: Results) -> str:
    if not results.again:
        return ""
    return (
        f" {len(results.again)} of them had survived the suite of the commit above, and were tried once more with that "
        f"of {_commits_of(results)}. Its new checks were made because of the other sample's survivors, not because of "
        "these."
    )


def _commits_of(results: Results) -> str:
    """Return the commits whose checks survivors were tried with once more."""
    return ", ".join(f"`{commit}`" for commit in dict.fromkeys(results.again.values()))


def _not_mutants(results: Results) -> str:
    counts: Counter[str] = Counter()
    for mutant in results.mutants.values():
        counts.update(mutant.left_out)
    for left_out in results.exhausted.values():
        counts.update(left_out)
    kinds = ", ".join(f"{count} for: {reason}" for reason, count in counts.most_common())
    return f"{len(results.mutants)} mutants were taken; {counts.total()} candidates were not ({kinds})."


def _stages(results: Results) -> str:
    lines = []
    for stage in STAGES:
        outcomes = [found[stage.name] for found in results.outcomes.values() if stage.name in found]
        caught = [outcome for outcome in outcomes if outcome.how]
        baseline = [entry.seconds for (name, _), entry in results.baselines.items() if name == stage.name]
        if outcomes:
            seconds = f"{min(baseline):.0f}" if baseline else "—"
            lines.append(f"| {stage.name} | {len(outcomes)} | {len(caught)} | {seconds} |")
    return "\n".join(lines)


def _table(counts: Counter[str]) -> str:
    return "\n".join(f"| {name} | {count} |" for name, count in counts.most_common())


def _caught_by_project(results: Results, tried: Sequence[Mutant], explanations: dict[Key, str]) -> str:
    survivors = [m for m in tried if not is_caught(results, m) and not reason_of(m.candidate, explanations)]
    catches = [catch for mutant in survivors if (catch := results.catch(mutant))]
    counted = [m for m in tried if is_caught(results, m) or not reason_of(m.candidate, explanations)]
    caught = sum(is_caught(results, m) for m in counted) + len(catches)
    rate = ""
    if counted:
        low, high = confidence_interval(caught, len(counted))
        rate = f" With them the rate is {caught / len(counted):.1%} ({low:.1%} to {high:.1%})."
    return (
        f"{len(catches)} of the survivors are caught by these own tests of the project, to which the rate gives no "
        f"credit.{rate}"
    )


def _entry(mutant: Mutant, text: str, results: Results, *, is_equivalent: bool) -> str:
    catch = results.catch(mutant)
    caught = f" Caught by the project's test `{catch.check}`." if catch else ""
    skipped = [f"{found.finding} ({found.stage})" for found in results.outcomes[mutant.name].values() if not found.how]
    caught += "".join(f" {text.capitalize()}." for text in skipped if not text.startswith(" "))
    done = [stage.name for stage in SUITE if stage.name in results.outcomes[mutant.name]]
    if len(done) < len(SUITE) and not is_equivalent:
        caught += f" Tried: {', '.join(done) or 'nothing'}."
    level = f", {mutant.level}" if mutant.level else ""
    return (
        f"{mutant.name} (`{mutant.candidate.rule}`{level}): {text}.{caught}\n\n```diff\n{mutant.candidate.diff}\n```\n"
    )


def _python(run: PythonRun, explanations: dict[Key, str]) -> str:
    """Return the section on a sample of mutants of the checks."""
    survivors = [mutant for mutant in run.mutants if mutant.status not in ("caught", NOT_TRIED)]
    functions, functions_run = (
        sum(getattr(of, n) for of in run.files.values()) for n in ("functions", "functions_run")
    )
    mutants, mutants_run = (sum(getattr(of, n) for of in run.files.values()) for n in ("mutants", "mutants_run"))
    again = [mutant for mutant in run.mutants if mutant.again]
    untried = sum(mutant.status == NOT_TRIED for mutant in run.mutants)
    head = (
        f"Seed {run.seed}, commit `{run.commit}`, {run.tool}. The unit tests run {functions_run} of the {functions} "
        f"functions that have mutants, with {mutants_run} of the {mutants} mutants; the other functions need the "
        f"native library, and only native tests and the suite run them. Of the {mutants_run} mutants"
        + (f", without the {run.left_out} of other samples," if run.left_out else "")
        + f" {len(run.mutants)} were drawn"
        + (f", of which {untried} were not tried." if untried else ".")
    )
    if again:
        commits = ", ".join(f"`{commit}`" for commit in dict.fromkeys(mutant.again for mutant in again))
        caught = sum(mutant.status == "caught" for mutant in again)
        head += (
            f" {len(again)} survived at first. They were tried once more with unit tests that were made because of "
            f"them (commit {commits}), which catch {caught}. So the rates are higher than those of mutants that "
            "nobody has looked at, of which there is "
            "[a sample below](#mutants-of-the-checks-that-no-unit-test-was-made-for)."
        )
    files = {name: [mutant for mutant in run.mutants if mutant.file == name] for name in sorted(run.files)}
    rows = [_python_row(name, run.files[name], own, explanations) for name, own in files.items()]
    everything = FileCounts(functions, functions_run, mutants, mutants_run)
    rows.append(_python_row("**all**", everything, run.mutants, explanations))
    columns = ["file", "functions", "run by unit tests", "tried", "caught", "equivalent", "open", "rate"]
    table = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *rows]
    return "\n\n".join([head, "\n".join(table), *(_python_entry(mutant, explanations) for mutant in survivors)])


def _python_row(name: str, counts: FileCounts, mutants: Sequence[PythonMutant], explanations: dict[Key, str]) -> str:
    tried = [mutant for mutant in mutants if mutant.status != NOT_TRIED]
    caught = sum(mutant.status == "caught" for mutant in tried)
    equivalent = sum(mutant.status != "caught" and reason_of(mutant, explanations) is not None for mutant in tried)
    counted = len(tried) - equivalent
    rate = "—"
    if counted:
        low, high = confidence_interval(caught, counted)
        rate = f"{caught / counted:.1%} ({low:.1%} to {high:.1%})"
    numbers = (counts.functions, counts.functions_run, len(tried), caught, equivalent, counted - caught)
    return f"| {name.removeprefix('starpullm/checks/')} | {' | '.join(map(str, numbers))} | {rate} |"


def _python_entry(mutant: PythonMutant, explanations: dict[Key, str]) -> str:
    reason = reason_of(mutant, explanations) or reason_of(mutant, read_explanations(PYTHON_EXPLANATIONS, "gap"))
    before, after = (
        "".join(f"{sign}{line}\n" for line in changed.splitlines())
        for sign, changed in (("-", mutant.before), ("+", mutant.after))
    )
    ending = "" if mutant.status == "survived" else f" ({mutant.status})"
    return f"`{mutant.name}`{ending}: {(reason or 'not explained').rstrip('.')}.\n\n```diff\n{before}{after}```"


_PAGE = """# Generated mutants: how many defects the suite catches that nobody chose

<!-- Made by python -m tests.mutation.generated: see below. -->

The [seeded defects](mutations.md) were thought up by people who know the checks. The mutants of this page were not: a
tool makes them from the C sources, and a seed draws the sample. A mutant is a copy of the library in which one line has
been changed, such as `<` into `<=`, `+` into `-`, or a statement that is removed.

{run}

{state}

## Results

The rate is that of mutants which are not equivalent, with its 95 % interval (Clopper and Pearson). *Equivalent* means
that no result can show the change; each one is explained below. *Seconds* is the median time of the run of the suite
that caught a mutant, with the start of its processes.

| folder | tried | caught | equivalent | open | not finished | rate | seconds |
|---|---|---|---|---|---|---|---|
{rows}

For each mutant that is left the stages run in this order, until a test fails:

| stage | tried | caught | seconds without a mutant |
|---|---|---|---|
{stages}

All but the last two are the default suite (`pytest --pyargs starpullm.suite`) and its run on two ranks (`mpirun -n 2
pytest --with-mpi --pyargs starpullm.suite`): *quick* is what it does with the record `tiny`, *parity* the comparison
of all tensors with the other records; *odd*, *small* and *deep* are the rest of it with these records, *interface*
its tests of limits, reports and files, *memory* and *delays* those of growth and of perturbed runs, *kernels* the
comparison of each vector kernel with the plain one. The suite is collected once, and every mutant runs in a fork of
that process, whose children are forks too; only the children on two ranks are started by mpirun each time. *C tests*
are the programs of `native/tests` that use the mutant's file, linked with its objects; `test_allocation` lets each
allocation of the library fail once.
{project}

How the mutants were caught. A mutant that a time limit has ended is counted there, never as a finding of the check
that was running. *error* means that the library or the package refused to go on, *memory limit* that it said so for
lack of memory. Time limits count processor time, at least ten times what the longest check of the stage takes without a
mutant; a process all of whose threads sleep for a minute has hung too. A catch by the check of the critical path, which
compares times, counts only if a second run is caught too.

| how | mutants |
|---|---|
{how}

| test that failed first | mutants |
|---|---|
{checks}

## What is a mutant

The tool is [universalmutator](https://github.com/agroce/universalmutator), with its rules for C. It changes source
text, so it works with the compiler and the options that the library is built with. Mull changes what clang compiles:
its mutants would be those of another library than the one whose bits are proven, and its packages are not on PyPI or
in Debian. dextool needs a D compiler and is not packaged either.

The sources are divided by folder, the vector kernels by level too, and every folder gives the same number. In each
folder the seed puts the lines in random order, and one candidate of every line comes before a second one of any line.
A candidate is a mutant if it compiles without a warning with the options of the project's CI, and if its objects,
stripped, differ from those of the sources and of earlier mutants. {not_mutants}

Left out by rule:

{left_out}

A mutant runs in an empty folder, with limits on memory, on the size of files, and on processor time. The kernels of
`kernels/ref` run with `STARPULLM_SIMD=ref`, vector kernels with the level that they were changed for.

## A sample that no check was made for

The survivors of these samples are as they were found; where a check was made because of one since, its reason says so.
Their rates say what to expect of a defect that nobody has thought of.

{fresh}

## Open survivors

{gaps} of the {num_open} are explained: a result could show them, but no check of the suite does.

{open}

## Survivors that are equivalent

{explained}

## Mutants of the checks themselves

[mutmut](https://github.com/boxed/mutmut) changes the functions of `starpullm/checks`, and the tests of `tests/unit`
that import this package have to catch it. They need no native library, so they show the comparisons, counts, and
sentences of a check on results that the test has made. A mutant that a time limit or a crash has ended is credited to
no test. mutmut leaves out decorated functions.

{python}

### Mutants of the checks that no unit test was made for

The survivors of this sample are as they were found.

{python_fresh}

## Repeating it

<!-- not run: takes hours; tests/mutation runs a fixed sample -->
```
pip install 'starpullm[mutation]'
python -m tests.mutation.generated.python_checks --seed 1 --count 240
python -m tests.mutation.generated --seed 1 --count 400
```

It can be interrupted: results go to `.cache/mutants-SEED.jsonl`, and `--resume FILE` goes on. `--seconds N` ends it by
itself, `--folder graph` tries one folder. This page is written at the end of every run; `--page-only --resume FILE`
writes it without a run. The results of this page are in
[seed-1.jsonl](../tests/mutation/generated/seed-1.jsonl); a run goes on with them in a checkout of the commit above. The
explanations are in [equivalent.toml](../tests/mutation/generated/equivalent.toml), by the changed line. Those of the
checks are beside them, in `python-SEED.json` and `python-equivalent.toml`; `--again` tries their survivors once more.

A fixed sample of mutants is in [tests/mutation/sample](../tests/mutation/sample), as patches that name the check which
has to catch each. `pytest tests/mutation/test_generated.py` tries them. `python -m tests.mutation.renew` renews patches
that no longer apply; `python -m tests.mutation.generated.sample` makes the sample anew.
"""
