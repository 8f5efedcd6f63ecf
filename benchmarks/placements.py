"""Measures tokens per millisecond over placements and reductions, and what saving the state every step costs.

``python benchmarks/placements.py [--model gpt2-124m] [--total-batch-size 12] [--steps 4] [--rounds 3]`` prints a
table, the configurations interleaved, medians and ranges over rounds. Nothing else should be running. Each
configuration runs in processes of its own; the first two steps of each run are not counted.
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
class Configuration:
    """What one run is: `batch_size` and `sub_batches` are of all ranks together."""

    partition: str
    ranks: int
    sub_batches: int
    reduction: str
    saves: bool = False

    def __str__(self) -> str:
        ranks = f", {self.ranks} ranks" if self.ranks > 1 else ""
        return f"{self.partition}{ranks}, S = {self.sub_batches}, {self.reduction}{', saving' if self.saves else ''}"


def configurations(cores: int, reductions: list[str]) -> Iterator[Configuration]:
    """Yield one worker, all cores in one worker, a worker per core, and a rank per core, with each reduction."""
    for reduction in reductions:
        yield Configuration("1x1", 1, 1, reduction)
        yield Configuration(f"1x{cores}", 1, 1, reduction)
        yield Configuration(f"{cores}x1", 1, cores, reduction)
        yield Configuration("1x1", cores, cores, reduction)
    yield Configuration(f"{cores}x1", 1, cores, "ordered", saves=True)


def run_one(options: dict[str, object], configuration: Configuration) -> None:
    """Train in this process and print the seconds of each step that counts, as JSON."""
    record = shipped_records()[str(options["model"])]
    batch_size = int(str(options["batch_size"])) // configuration.ranks
    steps = int(str(options["steps"]))
    _, size = rank_and_size_from_environment()
    inputs, targets = generate_tokens(record.seed, 0, batch_size, record.seq_len, record.model.vocab_size)
    with (
        tempfile.TemporaryDirectory(dir=str(options["directory"])) as states,
        Runtime(configuration.partition, comm=world() if size > 1 else None) as runtime,
        Trainer(
            runtime,
            str(options["checkpoint"]),
            batch_size=batch_size,
            seq_len=record.seq_len,
            sub_batches=configuration.sub_batches // configuration.ranks,
            reduction=configuration.reduction,
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
            if configuration.saves:
                trainer.save_state(states, batches=step, keep=1)
        trainer.wait()
        seconds = time.perf_counter() - begin
        trainer.wait_saved()
        if runtime.rank == 0:
            print(json.dumps({"seconds": seconds / steps, "loss": float(losses[-1].value)}))


@click.command()
@click.option("--model", default="gpt2-124m", show_default=True, type=click.Choice(list(shipped_records())))
@click.option(
    "--total-batch-size", "batch_size", default=12, show_default=True, help="B, sequences on all ranks together."
)
@click.option("--steps", default=4, show_default=True, help="Steps that count, per run.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--reduction", "reductions", multiple=True, type=click.Choice(REDUCTIONS), default=REDUCTIONS)
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
    """Print tokens per millisecond of each configuration."""
    if one:
        options = json.loads(one)
        run_one(options, Configuration(**options["configuration"]))
        return
    record = shipped_records()[model]
    cores = inspect_machine().cores
    plan = list(configurations(cores, list(reductions)))
    rates: dict[Configuration, list[float]] = {configuration: [] for configuration in plan}
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
            for configuration in plan:
                argument = json.dumps({**options, "configuration": asdict(configuration)})
                outcome = run_job(
                    Job(
                        (sys.executable, "-P", __file__, "--one", argument),
                        time_limit=time_limit,
                        ranks=configuration.ranks if configuration.ranks > 1 else None,
                    )
                ).completed()
                seconds = json.loads(outcome.reports[0].stdout)["seconds"]
                rates[configuration].append(tokens / seconds / 1e3)
                print(f"round {number + 1}: {configuration}: {rates[configuration][-1]:.4f}", file=sys.stderr)
    reference = statistics.median(rates[plan[0]])
    print(f"{model}, B = {batch_size}, T = {record.seq_len}, {rounds} rounds of {steps} steps: tokens/ms, range")
    for configuration, values in rates.items():
        median = statistics.median(values)
        print(f"{configuration!s:<36}{median:.4f}  {min(values):.4f}-{max(values):.4f}  {median / reference:.2f} x")


if __name__ == "__main__":
    main()
