"""How often the throughput gate sees a slowdown of one operation, and how often it gives a false alarm.

Run by hand: ``.cache/venv/bin/python -P benchmarks/gate_power.py runs.jsonl --slow matmul_forward``. It builds the
libraries that it compares from this checkout's sources with the patch ``slow_matmul``. Both have the code that waits;
only the fraction of the time that it waits for differs, and is 0 in the baseline. At 5 % this matters: other code can
lie elsewhere in memory, and be as much faster or slower for that reason.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click
from scipy.stats import binomtest

from starpullm.checks.result import Result, json_value
from starpullm.data.generator import generate_checkpoint
from starpullm.golden.records import SHIPPED_RECORDS, shipped_record
from starpullm.runtime import Partition
from starpullm.speed.gate import BUDGET
from starpullm.speed.interleaved_rounds import ROUNDS, interleaved_rounds, with_control
from starpullm.speed.speed_verdict import SpeedVerdict
from starpullm.speed.variant import Variant
from starpullm.speed.worker import STEP
from starpullm.speed.workload import Workload

CONFIDENCE = 0.95

CHECKOUT = Path(__file__).resolve().parents[1]
ALIKE_BYTES = 8 + 20
"""What may differ: the fraction, a double, and the linker's build ID, which is a hash of the library."""

PATCH = CHECKOUT / "tests" / "mutation" / "defects" / "slow_matmul.patch"


def build_slowed(operation: str, fraction: float, directory: Path) -> Path:
    """Build the library whose tasks of an operation wait for a fraction of their kernel's time; return its path."""
    text = PATCH.read_text("utf-8")
    for old, new in (('"matmul_forward"', f'"{operation}"'), ("fraction = 0.2;", f"fraction = {fraction!r};")):
        if text.count(old) != 1:
            raise click.ClickException(f"{PATCH}: found {text.count(old)} times {old}, expected it once")
        text = text.replace(old, new)
    name = f"{operation}-{fraction:g}"
    patch, library = directory / f"{name}.patch", directory / f"{name}.so"
    patch.write_text(text, "utf-8")
    command = [sys.executable, "-m", "evaluation.mutation.mutants", str(patch), "-o", str(library)]
    subprocess.run(command, cwd=CHECKOUT, stdout=sys.stderr, check=True)
    return library


def build_pair(operation: str, fraction: float, directory: Path) -> tuple[Path, Path]:
    """Return the baseline and the slowed library, which have the same code."""
    baseline, slowed = (build_slowed(operation, slowdown, directory) for slowdown in (0.0, fraction))
    before, after = baseline.read_bytes(), slowed.read_bytes()
    differing = sum(a != b for a, b in zip(before, after, strict=False))
    if len(before) != len(after) or differing > ALIKE_BYTES:
        raise click.ClickException(
            f"{baseline} and {slowed}: found {differing} bytes that differ, and {len(before)} and {len(after)} bytes, "
            f"expected libraries of one size that differ in {ALIKE_BYTES} bytes at most"
        )
    return baseline, slowed


def run(
    workload: Workload, checkpoint: Path, libraries: tuple[Path, Path], rounds: int
) -> tuple[Result, list[list[dict[str, float]]]]:
    """Run the gate once with a baseline and a new library; also return all turns of the three series."""
    baseline, new = Variant("baseline", library=libraries[0]), Variant("new", library=libraries[1])
    with interleaved_rounds(workload, checkpoint, with_control(new, baseline)) as turns:
        for _ in range(rounds):
            turns.run_round()
        return turns.decide(turns.finish(), BUDGET), [variant.seconds for variant in turns.variants]


def line(name: str, runs: list[dict[str, Any]]) -> str:
    """Return a row of the table."""
    slow = runs[0]["slow"]
    operation = slow.partition(":")[0] if slow else None

    def is_seen(result: dict[str, Any]) -> bool:
        slower = [change["name"] for change in result["changes"] if change["verdict"] == SpeedVerdict.SLOWER.value]
        return operation in slower if operation else bool(slower)

    seen = sum(map(is_seen, runs))
    low, high = binomtest(seen, len(runs)).proportion_ci(CONFIDENCE)  # Clopper and Pearson's
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in Counter(run["verdict"] for run in runs).items())
    operations, steps = [], []
    for run in runs:
        detectable = {
            change["name"]: change["minimum_detectable_effect"] for change in run["changes"] if change["verdict"]
        }
        steps.append(detectable.pop(STEP))
        operations.append(max(detectable.values(), default=math.nan))
    seconds, loads = ([run[key] for run in runs] for key in ("seconds", "load"))
    return (
        f"| {name} | {seen} of {len(runs)} | {low:.0%} to {high:.0%} | {verdicts} | "
        f"{min(operations):.1%} to {max(operations):.1%} | {min(steps):.1%} to {max(steps):.1%} | "
        f"{statistics.median(seconds):.0f} s | {min(loads):.1f} to {max(loads):.1f} |"
    )


@click.command()
@click.argument("results", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--model", type=click.Choice(SHIPPED_RECORDS), default="small", show_default=True)
@click.option("--partition", default="1x1", show_default=True, help="Workers x threads of each.")
@click.option("--slow", "operations", multiple=True, help="An operation to slow down; may be repeated.")
@click.option("--fraction", default=0.05, show_default=True, help="The slowdown, as a fraction of the kernels' time.")
@click.option("--runs", default=10, show_default=True, help="Runs for each slowed operation.")
@click.option("--clean-runs", default=20, show_default=True, help="Runs of a library against itself.")
@click.option("--rounds", default=ROUNDS, show_default=True, help="Turns of each library in a run.")
def main(
    results: Path,
    model: str,
    partition: str,
    operations: tuple[str, ...],
    fraction: float,
    runs: int,
    clean_runs: int,
    rounds: int,
) -> None:
    """Measure power and false alarms; append each run to RESULTS, and show the table of all runs in that file."""
    record = shipped_record(model)
    workload = Workload(
        model=model,
        batch_size=record.batch_size,
        seq_len=record.seq_len,
        partition=partition,
        sub_batches=Partition.parse(partition).workers,
    )
    cases = [None] * clean_runs + [f"{operation}:{fraction:g}" for operation in operations for _ in range(runs)]
    with tempfile.TemporaryDirectory() as directory, results.open("a") as file:
        checkpoint = Path(directory) / "model.bin"
        generate_checkpoint(checkpoint, record.model, record.seed)
        libraries: dict[str | None, tuple[Path, Path]] = {
            f"{operation}:{fraction:g}": build_pair(operation, fraction, Path(directory))
            for operation in operations or ("matmul_forward",)
        }
        baseline = next(iter(libraries.values()))[0]
        libraries[None] = baseline, baseline
        for slow in cases:
            start = time.monotonic()
            result, turns = run(workload, checkpoint, libraries[slow], rounds)
            judged = {change.name for change in result.facts["changes"]}
            if slow and slow.partition(":")[0] not in judged:
                raise click.ClickException(f"--slow {slow}: expected one of the operations {', '.join(sorted(judged))}")
            told = {"slow": slow, "seconds": time.monotonic() - start, "load": os.getloadavg()[0]}
            file.write(json.dumps({**told, **json_value(result.facts), "turns": turns}) + "\n")
            file.flush()
            click.echo(f"{slow or 'clean'}: {result.sentence}", err=True)
    of_case: dict[str, list[dict[str, Any]]] = {}
    for text in results.read_text().splitlines():
        values = json.loads(text)
        of_case.setdefault(f"{values['configuration']}, {values['slow'] or 'nothing'}", []).append(values)
    click.echo(
        "| configuration, slowed | called slower, and named | 95 % interval | verdicts "
        "| minimum detectable effect in any operation | in the step | a run | load |"
    )
    click.echo("|---|---|---|---|---|---|---|---|")
    for name, of_name in of_case.items():
        click.echo(line(name, of_name))


if __name__ == "__main__":
    main()
