"""``starpullm demo``: a small training run, its text, and the same run elsewhere bit for bit."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from starpullm.commands.main import EXIT_DIFFERENT
from starpullm.commands.options import PATH
from starpullm.commands.render import OUT, progress_bar
from starpullm.errors import (
    FileError,
)
from starpullm.files.model import num_parameters
from starpullm.machine import inspect_machine
from starpullm.training import demo as demo_run
from starpullm.training.loop import StepReport

__all__ = ["demo_command"]


@click.command("demo")
@click.option("--output", type=PATH, help="Folder for the results; by default a new one in the current folder.")
def demo_command(output: Path | None) -> None:
    """Train a small GPT-2 on Shakespeare, sample from it, and prove the run equal bit for bit elsewhere."""
    start = time.perf_counter()
    folder = output or Path("starpullm-demo")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder}: can't be made: {error.strerror}", error.errno) from error
    config, steps = demo_run.CONFIG, demo_run.NUM_STEPS
    tokens, untrained = demo_run.encode_text(folder), demo_run.new_model(folder)
    trained = folder / "trained.bin"
    OUT.print(
        f"A GPT-2 of {num_parameters(config)} parameters ({config.num_layers} layers, {config.channels} channels) "
        f"learns Shakespeare's sonnets byte by byte: {steps} steps of {demo_run.BATCH_SIZE} x {demo_run.SEQ_LEN} "
        "tokens."
    )
    cores = inspect_machine().cores
    other_partition = "2x1" if cores > 1 else "1x1"

    def run(
        partition: str, sub_batches: int, save: Path | None, show: Callable[[StepReport], None]
    ) -> demo_run.DemoRun:
        with progress_bar(hidden=False) as progress:
            bar = progress.add_task(f"{partition}, {sub_batches} sub-batches", total=steps)

            def report(step: StepReport) -> None:
                progress.advance(bar)
                show(step)

            return demo_run.run(
                untrained, tokens, partition=partition, sub_batches=sub_batches, report=report, save=save
            )

    def show(step: StepReport) -> None:
        if step.step == 1 or step.step % 100 == 0:
            OUT.print(f"  step {step.step:4}: loss {step.loss:.6f}")

    first = run("1x1", 1, trained, show)
    OUT.print(f"1x1, 1 sub-batch: {first.tokens_per_ms:.2f} tokens/ms.")
    OUT.print(f"saved and read back: {_bits(first.reloads)}")
    for prompt in ("Shall I", "When"):
        OUT.print(f'\nThe model continues "{prompt}":\n', markup=False)
        text = demo_run.sample_text(trained, prompt, 56)
        OUT.print("    " + text.replace("\n", "\n    "), markup=False)

    OUT.print(f"\nThe same run on {other_partition} with 4 sub-batches:")
    second = run(other_partition, 4, None, lambda step: None)
    OUT.print(f"{other_partition}, 4 sub-batches: {second.tokens_per_ms:.2f} tokens/ms.")
    same_losses = [a.tobytes() for a in first.losses] == [b.tobytes() for b in second.losses]
    same_state = first.state_sha256 == second.state_sha256
    OUT.print(f"losses of all {steps} steps: {_bits(same_losses)}")
    OUT.print(f"parameters, m and v after the last: {_bits(same_state)}, SHA-256 {second.state_sha256[:16]}…")
    OUT.print(f"Results are in {folder.resolve()} ({time.perf_counter() - start:.0f} s).", markup=False)
    if not (first.reloads and same_losses and same_state):
        sys.exit(EXIT_DIFFERENT)


def _bits(same: bool) -> str:
    return "the same bits" if same else "DIFFERENT"
