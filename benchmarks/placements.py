"""Measures the tokens per millisecond of placements and reductions, and the cost of saving the state every step.

Run by hand: ``python benchmarks/placements.py [--model gpt2-124m] [--total-batch-size 12] [--steps 4] [--rounds 3]``. A
round has one run of each placement, in processes of its own; the first two steps of each run are not counted. The table
has medians and ranges over rounds. Nothing else should be running.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from starpullm.data.generator import generate_checkpoint, generate_tokens
from starpullm.golden.records import shipped_records
from starpullm.machine import inspect_machine
from starpullm.processes.job import Job, run_job
from starpullm.processes.ranks import rank_and_size_from_environment, world
from starpullm.runtime import Runtime
from starpullm.trainer import REDUCTIONS, Trainer

WARM_UP_STEPS = 2


@dataclass(frozen=True)
class Placement:
    """What one run uses; `sub_batches` is the number on all ranks together."""

    partition: str
    ranks: int
    sub_batches: int
    reduction: str
    saves: bool = False

    def __str__(self) -> str:
        ranks = f", {self.ranks} ranks" if self.ranks > 1 else ""
        return f"{self.partition}{ranks}, S = {self.sub_batches}, {self.reduction}{', saving' if self.saves else ''}"


def placements(cores: int, reductions: list[str]) -> Iterator[Placement]:
    """Yield one worker, one worker with all cores, a worker per core, and a rank per core, with each reduction."""
    for reduction in reductions:
        yield Placement("1x1", 1, 1, reduction)
        yield Placement(f"1x{cores}", 1, 1, reduction)
        yield Placement(f"{cores}x1", 1, cores, reduction)
        yield Placement("1x1", cores, cores, reduction)
    yield Placement(f"{cores}x1", 1, cores, "ordered", saves=True)


def run_one(options: dict[str, object], placement: Placement) -> None:
    """Train in this process and print the mean seconds of the counted steps, as JSON."""
    record = shipped_records()[str(options["model"])]
    batch_size = int(str(options["batch_size"])) // placement.ranks
    steps = int(str(options["steps"]))
    _, size = rank_and_size_from_environment()
    inputs, targets = generate_tokens(record.seed, 0, batch_size, record.seq_len, record.model.vocab_size)
    with (
        tempfile.TemporaryDirectory(dir=str(options["directory"])) as states,
        Runtime(placement.partition, comm=world() if size > 1 else None) as runtime,
        Trainer(
            runtime,
            str(options["checkpoint"]),
            batch_size=batch_size,
            seq_len=record.seq_len,
            sub_batches=placement.sub_batches // placement.ranks,
            reduction=placement.reduction,
        ) as trainer,
    ):
        begin = 0.0
        losses = []
        for step in range(WARM_UP_STEPS + steps):
            if step == WARM_UP_STEPS:
                trainer.wait()
                trainer.wait_saved()
                begin = time.perf_counter()
            losses.append(trainer.submit(inputs, targets))
            if placement.saves:
                trainer.save_state(states, batches=step, keep=1)
        trainer.wait()
        seconds = time.perf_counter() - begin
        trainer.wait_saved()
        if runtime.rank == 0:
            print(json.dumps({"seconds": seconds / steps, "loss": float(losses[-1].result())}))


@click.command()
@click.option("--model", default="gpt2-124m", show_default=True, type=click.Choice(list(shipped_records())))
@click.option(
    "--total-batch-size", "batch_size", default=12, show_default=True, help="B, sequences on all ranks together."
)
@click.option("--steps", default=4, show_default=True, help="Counted steps of each run.")
@click.option("--rounds", default=3, show_default=True, help="Runs of each placement.")
@click.option(
    "--reduction", "reductions", multiple=True, type=click.Choice(REDUCTIONS), default=REDUCTIONS, help="Of gradients."
)
@click.option("--time-limit", default=600.0, show_default=True, help="Seconds for one run.")
@click.option("--one", hidden=True)
def main(
    model: str,
    batch_size: int,
    steps: int,
    rounds: int,
    reductions: tuple[str, ...],
    time_limit: float,
    one: str | None,
) -> None:
    """Print the tokens per millisecond of each placement."""
    if one:
        options = json.loads(one)
        run_one(options, Placement(**options["placement"]))
        return
    record = shipped_records()[model]
    cores = inspect_machine().cores
    plan = list(placements(cores, list(reductions)))
    rates: dict[Placement, list[float]] = {placement: [] for placement in plan}
    tokens = batch_size * record.seq_len
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="placements-") as directory:
        checkpoint = Path(directory, "model.bin")
        generate_checkpoint(checkpoint, record.model, record.seed)
        options = {
            "model": model,
            "batch_size": batch_size,
            "steps": steps,
            "checkpoint": str(checkpoint),
            "directory": directory,
        }
        for number in range(rounds):
            for placement in plan:
                argument = json.dumps({**options, "placement": asdict(placement)})
                outcome = run_job(
                    Job(
                        (sys.executable, "-P", __file__, "--one", argument),
                        time_limit=time_limit,
                        ranks=placement.ranks if placement.ranks > 1 else None,
                    )
                ).completed()
                seconds = json.loads(outcome.reports[0].stdout)["seconds"]
                rates[placement].append(tokens / seconds / 1e3)
                print(f"round {number + 1}: {placement}: {rates[placement][-1]:.4f}", file=sys.stderr)
    reference = statistics.median(rates[plan[0]])
    print(f"{model}, B = {batch_size}, T = {record.seq_len}, {rounds} rounds of {steps} steps: tokens/ms, range")
    for placement, values in rates.items():
        median = statistics.median(values)
        print(f"{placement!s:<36}{median:.4f}  {min(values):.4f}-{max(values):.4f}  {median / reference:.2f} x")


if __name__ == "__main__":
    main()
