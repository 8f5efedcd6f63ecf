"""How often the throughput gate sees a slowdown that was put into one operation, and how often it gives a false alarm.

Run by hand, with a build that can be slowed down: ``cmake --preset defects && cmake --build --preset defects`` in
``native/``, then ``.cache/venv/bin/python -P benchmarks/gate_power.py .cache/build/defects/libstarpullm.so runs.jsonl
--slow matmul_forward``.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click

from starpullm.data.generator import generate_checkpoint
from starpullm.golden.records import SHIPPED_RECORDS, shipped_record
from starpullm.runtime import Partition
from starpullm.speed.contest import BLOCKS, open_contest
from starpullm.speed.gate import BUDGET, STEP, ContestResult, Verdict
from starpullm.speed.throughput import Configuration
from starpullm.speed.turns import Contestant

CONFIDENCE = 0.95


def clopper_pearson(successes: int, trials: int) -> tuple[float, float]:
    """Return the interval of a probability: outside of it so few, or so many, successes have at most 2.5 %."""

    def at_least(count: int, probability: float) -> float:
        return sum(
            math.comb(trials, k) * probability**k * (1 - probability) ** (trials - k) for k in range(count, trials + 1)
        )

    def solve(count: int, tail: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if at_least(count, middle) < tail else (low, middle)
        return low

    tail = (1 - CONFIDENCE) / 2
    return (
        solve(successes, tail) if successes else 0.0,
        solve(successes + 1, 1 - tail) if successes < trials else 1.0,
    )


def run(
    configuration: Configuration, checkpoint: Path, library: Path, slow: str | None, blocks: int
) -> tuple[ContestResult, list[list[dict[str, float]]]]:
    """Run the gate once, the new build slowed down as `slow` says; also return all turns of the three series."""
    environment = {"STARPULLM_SLOW": slow} if slow else {}
    new, baseline = Contestant("new", library, environment), Contestant("baseline", library)
    with open_contest(configuration, checkpoint, new, baseline) as contest:
        for _ in range(blocks):
            contest.block()
        return contest.decide(BUDGET), [of.seconds for of in (contest.new, contest.baseline, contest.control)]


def line(name: str, runs: list[dict[str, Any]]) -> str:
    """Return a row of the table."""
    slow = runs[0]["slow"]
    operation = slow.partition(":")[0] if slow else None

    def is_seen(result: dict[str, Any]) -> bool:
        slower = [change["name"] for change in result["changes"] if change["verdict"] == Verdict.SLOWER.value]
        return operation in slower if operation else bool(slower)

    seen = sum(map(is_seen, runs))
    low, high = clopper_pearson(seen, len(runs))
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in Counter(of["verdict"] for of in runs).items())
    operations, steps = [], []
    for of in runs:
        visible = {change["name"]: change["visible"] for change in of["changes"] if change["verdict"]}
        steps.append(visible.pop(STEP))
        operations.append(max(visible.values(), default=math.nan))
    seconds, loads = ([of[key] for of in runs] for key in ("seconds", "load"))
    return (
        f"| {name} | {seen} of {len(runs)} | {low:.0%} to {high:.0%} | {verdicts} | "
        f"{min(operations):.1%} to {max(operations):.1%} | {min(steps):.1%} to {max(steps):.1%} | "
        f"{statistics.median(seconds):.0f} s | {min(loads):.1f} to {max(loads):.1f} |"
    )


@click.command()
@click.argument("library", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("results", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--model", type=click.Choice(SHIPPED_RECORDS), default="small", show_default=True)
@click.option("--partition", default="1x1", show_default=True)
@click.option("--slow", "operations", multiple=True, help="An operation; may be repeated.")
@click.option("--fraction", default=0.05, show_default=True, help="By how much it is slower.")
@click.option("--runs", default=10, show_default=True, help="For each operation.")
@click.option("--clean-runs", default=20, show_default=True, help="Of a build against itself.")
@click.option("--blocks", default=BLOCKS, show_default=True)
def main(
    library: Path,
    results: Path,
    model: str,
    partition: str,
    operations: tuple[str, ...],
    fraction: float,
    runs: int,
    clean_runs: int,
    blocks: int,
) -> None:
    """Measure power and false alarms with LIBRARY; append each run to RESULTS and show the table of all that it has."""
    record = shipped_record(model)
    configuration = Configuration(
        model=model,
        batch_size=record.batch_size,
        seq_len=record.seq_len,
        partition=partition,
        scheduler="lws",
        sub_batches=Partition.parse(partition).workers,
        reduction="ordered",
        ranks=1,
        iterations=1,
        warm_up=1,
    )
    cases = [None] * clean_runs + [f"{operation}:{fraction:g}" for operation in operations for _ in range(runs)]
    with tempfile.TemporaryDirectory() as directory, results.open("a") as file:
        checkpoint = Path(directory) / "model.bin"
        generate_checkpoint(checkpoint, record.model, record.seed)
        for slow in cases:
            start = time.monotonic()
            result, turns = run(configuration, checkpoint, library.resolve(), slow, blocks)
            told = {"slow": slow, "seconds": time.monotonic() - start, "load": os.getloadavg()[0]}
            file.write(json.dumps({**told, **result.as_json(), "turns": turns}) + "\n")
            file.flush()
            click.echo(f"{slow or 'clean'}: {result.finding}", err=True)
    of_case: dict[str, list[dict[str, Any]]] = {}
    for text in results.read_text().splitlines():
        values = json.loads(text)
        of_case.setdefault(f"{values['configuration']}, {values['slow'] or 'nothing'}", []).append(values)
    click.echo(
        "| configuration, slowed | called slower, and named | 95 % interval | verdicts | visible in any operation "
        "| in the step | a run | load |"
    )
    click.echo("|---|---|---|---|---|---|---|---|")
    for name, of_name in of_case.items():
        click.echo(line(name, of_name))


if __name__ == "__main__":
    main()
