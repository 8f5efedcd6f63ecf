"""Summarises the results of a run as Markdown: rates by folder, stages, and the mutants that nothing caught."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from .candidates import LEFT_OUT
from .results import SUITE, Mutant, Results
from .stages import STAGES

__all__ = ["confidence_interval", "is_caught", "summary"]


def confidence_interval(caught: int, tried: int) -> tuple[float, float]:
    """Return the 95 % interval of Clopper and Pearson for the probability that a mutant is caught."""
    from scipy.stats import binomtest

    interval = binomtest(caught, tried).proportion_ci(confidence_level=0.95, method="exact")
    return float(interval.low), float(interval.high)


def is_caught(results: Results, mutant: Mutant) -> bool:
    """Return whether the suite or its run on ranks has caught a mutant."""
    catch = results.catch(mutant)
    return catch is not None and catch.stage in {stage.name for stage in SUITE}


def summary(results: Results) -> str:
    """Return the page. A survivor counts as not caught, also one that no result can show."""
    run = results.run
    assert run is not None
    tried = [mutant for mutant in results.mutants.values() if mutant.name in results.outcomes]
    strata = list(dict.fromkeys(mutant.stratum for mutant in tried))
    survivors = [mutant for mutant in tried if not is_caught(results, mutant)]
    return "\n".join(
        [
            f"# Generated mutants, seed {run.seed}",
            "",
            f"Commit `{run.commit}` (hash of the sources `{run.sources}`), {run.tool}, {run.compiler}, {run.machine}, "
            f"levels {', '.join(run.levels)}.",
            "",
            "A survivor that no result can show (an equivalent mutant) counts as not caught here, so each rate is a "
            "lower bound; so does a survivor that has not been through all stages. The interval is that of Clopper and "
            "Pearson, 95 %.",
            "",
            "| folder | tried | caught | by own tests only | not finished | rate | seconds |",
            "|---|---|---|---|---|---|---|",
            *(_row(results, name, [m for m in tried if m.stratum == name]) for name in strata),
            _row(results, "**all**", tried),
            "",
            "| stage | tried | caught | seconds without a mutant |",
            "|---|---|---|---|",
            *_stages(results),
            "",
            "Left out by rule:",
            "",
            *(f"- {what}: {why}." for what, why in LEFT_OUT.items()),
            "",
            "## Survivors of the suite",
            "",
            *(_entry(results, mutant) for mutant in survivors),
        ]
    )


def _row(results: Results, name: str, tried: Sequence[Mutant]) -> str:
    if not tried:
        return f"| {name} | 0 | 0 | 0 | 0 | — | — |"
    caught = [mutant for mutant in tried if is_caught(results, mutant)]
    rest = [mutant for mutant in tried if not is_caught(results, mutant)]
    by_own_tests = sum(results.catch(mutant) is not None for mutant in rest)
    unfinished = sum(not results.is_finished(mutant) for mutant in rest)
    low, high = confidence_interval(len(caught), len(tried))
    seconds = [catch.seconds for mutant in caught if (catch := results.catch(mutant))]
    rate = f"{len(caught) / len(tried):.1%} ({low:.1%} to {high:.1%})"
    middle = f"{median(seconds):.1f}" if seconds else "—"
    return f"| {name} | {len(tried)} | {len(caught)} | {by_own_tests} | {unfinished} | {rate} | {middle} |"


def _stages(results: Results) -> Iterator[str]:
    for stage in STAGES:
        outcomes = [found[stage.name] for found in results.outcomes.values() if stage.name in found]
        baseline = [seconds for (name, _), seconds in results.baselines.items() if name == stage.name]
        if outcomes:
            caught = sum(outcome.how is not None for outcome in outcomes)
            seconds = f"{min(baseline):.0f}" if baseline else "—"
            yield f"| {stage.name} | {len(outcomes)} | {caught} | {seconds} |"


def _entry(results: Results, mutant: Mutant) -> str:
    catch = results.catch(mutant)
    fate = f"caught by the project's test `{catch.check}`" if catch else "not caught"
    done = [stage.name for stage in STAGES if stage.name in results.outcomes[mutant.name]]
    level = f", {mutant.level}" if mutant.level else ""
    return (
        f"{mutant.name} (`{mutant.candidate.rule}`{level}): {fate}. Tried: {', '.join(done)}.\n\n"
        f"```diff\n{mutant.candidate.diff}\n```\n"
    )
