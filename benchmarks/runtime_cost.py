"""StarPU's own cost: the time of a step minus the sum of its kernels' times, on one worker.

Run by hand, with nothing else running: ``.cache/venv/bin/python -P benchmarks/runtime_cost.py tiny small gpt2-124m``.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import click

from starpullm import Runtime, Trainer
from starpullm.data.generator import generate_checkpoint, generate_tokens
from starpullm.golden.records import SHIPPED_RECORDS, GoldenRecord, shipped_record


def measure(record: GoldenRecord, checkpoint: Path, repetitions: int, steps: int, sub_batches: int) -> str:
    """Return a line with medians over repetitions of `steps` steps, which are submitted ahead; one step warms up."""
    model, sizes = record.model, (record.batch_size, record.seq_len)
    batches = [generate_tokens(record.seed, step, *sizes, model.vocab_size) for step in range(steps)]
    walls, kernels = [], []
    with (
        Runtime("1x1") as runtime,
        Trainer(
            runtime,
            checkpoint,
            batch_size=record.batch_size,
            seq_len=record.seq_len,
            sub_batches=sub_batches,
            trace=True,
        ) as trainer,
    ):
        trainer.step(*batches[0])
        for _ in range(repetitions):
            trainer.wait()
            trainer.clear_trace()
            start = time.perf_counter()
            for batch in batches:
                trainer.submit(*batch)
            trainer.wait()
            walls.append((time.perf_counter() - start) / steps)
            kernels.append(trainer.trace().kernel_seconds() / steps)
        tasks = len(trainer.trace()) // steps
    wall, kernel = statistics.median(walls), statistics.median(kernels)
    share = statistics.median(1 - k / w for w, k in zip(walls, kernels, strict=True))
    return (
        f"{record.name}, {sub_batches} sub-batches: {tasks} tasks, step {wall * 1e3:.3f} ms, kernels "
        f"{kernel * 1e3:.3f} ms, outside of kernels {share:.2%} = {(wall - kernel) / tasks * 1e6:.2f} us per task"
    )


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(SHIPPED_RECORDS))
@click.option("--sub-batches", default=1, show_default=True, help="S.")
@click.option("--repetitions", default=5, show_default=True, help="Measurements of each model.")
def main(names: tuple[str, ...], sub_batches: int, repetitions: int) -> None:
    """Measure the models of the golden records NAMES."""
    with tempfile.TemporaryDirectory() as directory:
        for name in names:
            record = shipped_record(name)
            checkpoint = Path(directory) / f"{name}.bin"
            generate_checkpoint(checkpoint, record.model, record.seed)
            steps = 2 if name == "gpt2-124m" else 20 if name == "small" else 200
            click.echo(measure(record, checkpoint, repetitions, steps, sub_batches))


if __name__ == "__main__":
    main()
