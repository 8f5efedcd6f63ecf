"""``starpullm demo``: a small training run with samples of its text, and the same run elsewhere, bit for bit."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from starpullm.commands import options
from starpullm.commands.main import EXIT_DIFFERENT, refuse_ranks
from starpullm.commands.render import OUT, progress_bar
from starpullm.files.header import file_errors
from starpullm.files.model import num_parameters
from starpullm.machine import machine_info
from starpullm.training import demo as demo_run
from starpullm.training.generate import continue_text
from starpullm.training.loop import StepReport


@click.command("demo", epilog=options.example("starpullm demo"))
@click.option("--output", type=options.PATH, default="starpullm-demo", help="Folder for the results.")
def command(output: Path) -> None:
    """Train a small GPT-2 on Shakespeare, and sample from it.

    The run is then repeated on another partition and has to give the same bits; otherwise the exit status is 1.
    """
    refuse_ranks("the demo trains in one process")
    start = time.perf_counter()
    with file_errors(output, "made"):
        output.mkdir(parents=True, exist_ok=True)
    config, cores = demo_run.CONFIG, machine_info().cores
    (untrained, tokens), trained = demo_run.prepare(output), output / "trained.bin"
    OUT.print(
        f"A GPT-2 of {num_parameters(config)} parameters ({config.num_layers} layers, {config.channels} channels) "
        f"learns Shakespeare's sonnets byte by byte: {demo_run.NUM_STEPS} steps of {demo_run.BATCH_SIZE} x "
        f"{demo_run.SEQ_LEN} tokens."
    )
    first = _run(untrained, tokens, "1x1", 1, save=trained)
    for prompt in ("Shall I", "When"):
        text = continue_text(trained, prompt, 56, seed=1337)
        OUT.print(f'\nThe model continues "{prompt}":\n')
        OUT.print("    " + text.replace("\n", "\n    "))

    other_partition = "2x1" if cores > 1 else "1x1"
    OUT.print(f"\nThe same run on {other_partition} with 4 sub-batches:")
    second = _run(untrained, tokens, other_partition, 4)
    same_losses, same_state = first.losses == second.losses, first.state_sha256 == second.state_sha256
    OUT.print(f"losses of all {demo_run.NUM_STEPS} steps: {_bits(same_losses)}")
    OUT.print(f"parameters, m and v after the last: {_bits(same_state)}, SHA-256 {second.state_sha256[:16]}…")
    OUT.print(f"Results are in {output.resolve()} ({time.perf_counter() - start:.0f} s).")
    if not (same_losses and same_state):
        sys.exit(EXIT_DIFFERENT)


def _run(
    checkpoint: Path, tokens: Path, partition: str, sub_batches: int, save: Path | None = None
) -> demo_run.DemoRun:
    """Train with a progress bar; show some of the losses of the run that is saved."""
    placement = f"{partition}, {sub_batches} sub-batch{'es' if sub_batches > 1 else ''}"
    with progress_bar(hidden=False) as progress:
        bar = progress.add_task(placement, total=demo_run.NUM_STEPS)

        def report(step: StepReport) -> None:
            progress.advance(bar)
            if save and (step.step == 1 or step.step % 100 == 0):
                OUT.print(f"  step {step.step:4}: loss {step.loss:.6f}")

        done = demo_run.run(checkpoint, tokens, partition, sub_batches, report, save)
    OUT.print(f"{placement}: {done.tokens_per_ms:.2f} tokens/ms.")
    return done


def _bits(same: bool) -> str:
    return "the same bits" if same else "DIFFERENT"
