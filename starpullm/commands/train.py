"""``starpullm train``: reads the options of a run, refuses what can't be resumed or saved, prints losses."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import click

from starpullm.commands.main import all_ranks, guarded_ranks
from starpullm.commands.options import (
    PATH,
    blas_library_option,
    json_option,
    matmul_option,
    partition_option,
    reduction_option,
    scheduler_option,
)
from starpullm.commands.render import ERR, OUT, json_number, print_json, progress_bar
from starpullm.data.loader import TokenLoader
from starpullm.errors import (
    FileError,
    FormatError,
    InvalidArgumentError,
)
from starpullm.files.checkpoint import checkpoint_config
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer, TrainingState, training_state
from starpullm.training.loop import StepReport, mean_loss, train

__all__ = ["train_command"]


@click.command("train")
@click.option("--checkpoint", type=PATH, help="Model to start from.")
@click.option("--resume", type=PATH, help="Or folder of training states: go on from the newest complete one.")
@click.option("--tokens", required=True, metavar="PATTERN", help="Token files to train on.")
@click.option("--val-tokens", metavar="PATTERN", help="Token files to validate on, before and after.")
@click.option("--val-batches", type=click.IntRange(min=1), default=10, show_default=True, help="Batches of them.")
@click.option("--batch-size", type=int, default=4, show_default=True, help="B, sequences per step.")
@click.option("--seq-len", type=int, default=64, show_default=True, help="T, tokens per sequence.")
@click.option("--steps", type=click.IntRange(min=1), default=10, show_default=True, help="Number of the last step.")
@partition_option
@click.option("--sub-batches", type=int, default=1, show_default=True, help="S, independent parts of a batch.")
@reduction_option
@scheduler_option
@matmul_option
@blas_library_option
@click.option("--learning-rate", type=float, default=3e-4, show_default=True)
@click.option("--beta1", type=float, default=0.9, show_default=True)
@click.option("--beta2", type=float, default=0.999, show_default=True)
@click.option("--eps", type=float, default=1e-8, show_default=True)
@click.option("--weight-decay", type=float, default=0.0, show_default=True)
@click.option("--save", type=PATH, help="Write the trained model here.")
@click.option("--save-every", type=click.IntRange(min=1), metavar="N", help="Save the training state every N steps.")
@click.option("--state-dir", type=PATH, help="Folder of training states; by default that of --resume.")
@click.option("--keep-states", type=click.IntRange(min=1), default=2, show_default=True, help="States that stay.")
@json_option
def train_command(
    checkpoint: Path | None,
    resume: Path | None,
    tokens: str,
    val_tokens: str | None,
    val_batches: int,
    batch_size: int,
    seq_len: int,
    steps: int,
    partition: str,
    sub_batches: int,
    reduction: str,
    scheduler: str,
    matmul: str,
    blas_library: str | None,
    learning_rate: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    save: Path | None,
    save_every: int | None,
    state_dir: Path | None,
    keep_states: int,
    as_json: bool,
) -> None:
    """Train a model: losses, tokens per millisecond, time left.

    Under mpirun each rank brings --batch-size sequences, cut into --sub-batches. A run that was ended goes on bit for
    bit with --resume and otherwise the same options, on any partition.
    """
    if save:
        _check_can_save(save)
    state_dir = state_dir or resume
    if save_every and not state_dir:
        raise click.UsageError("--save-every needs --state-dir")
    state = None
    if resume is not None and checkpoint is None:
        state = training_state(resume)
        config = state.config
        if state.passed_over:
            ERR.print(f"note: {state.passed_over}", markup=False)
        if not state.strict:
            ERR.print(f"note: {state.path}: a BLAS computed matmuls of its steps: not strict", markup=False)
    elif checkpoint is not None and resume is None:
        config = checkpoint_config(checkpoint)
    else:
        raise click.UsageError("expected either --checkpoint or --resume")
    if state and state.step >= steps:
        raise InvalidArgumentError(
            f"{state.path}: {state.step} steps have been done, expected fewer than --steps {steps}"
        )
    first_step = state.step + 1 if state else 1
    if save_every and state_dir:
        _check_no_newer_states(state_dir, first_step - 1)
    with (
        all_ranks() as comm,
        Runtime(partition, scheduler, comm, matmul=matmul, blas_library=blas_library) as runtime,
    ):
        if runtime.matmul != "strict" and not as_json:
            OUT.print(f"matmuls by {runtime.matmul}: not strict", markup=False)

        def open_tokens(pattern: str) -> TokenLoader:
            return TokenLoader(
                pattern, batch_size, seq_len, rank=runtime.rank, num_ranks=runtime.ranks, vocab_size=config.vocab_size
            )

        loader = open_tokens(tokens)
        data_id = loader.fingerprint
        if state:
            _check_same_data(state, runtime.ranks * batch_size, seq_len, data_id)
            loader.seek(state.batches)

        def save_state(step: int) -> None:
            if save_every and step % save_every == 0:
                assert state_dir is not None
                trainer.save_state(state_dir, batches=loader.position, data_id=data_id, keep=keep_states)

        val_loader = open_tokens(val_tokens) if val_tokens else None
        reports: list[StepReport] = []
        validations: list[float] = []
        with (
            Trainer(
                runtime,
                checkpoint,
                resume=state.path if state else None,
                batch_size=batch_size,
                seq_len=seq_len,
                sub_batches=sub_batches,
                reduction=reduction,
                learning_rate=learning_rate,
                betas=(beta1, beta2),
                eps=eps,
                weight_decay=weight_decay,
            ) as trainer,
            guarded_ranks(comm),
        ):

            def validate(when: str) -> None:
                if val_loader is None:
                    return
                validations.append(mean_loss(trainer, val_loader, val_batches))
                if not as_json:
                    OUT.print(f"validation loss {when}: {validations[-1]:.6f}")

            validate("before")
            with progress_bar(hidden=as_json) as progress:
                bar = progress.add_task("training", total=steps - first_step + 1)
                for report in train(trainer, loader, steps, first_step=first_step, after_submit=save_state):
                    reports.append(report)
                    progress.advance(bar)
                    if not as_json:
                        tokens_left = (steps - report.step) * runtime.ranks * batch_size * seq_len
                        OUT.print(
                            f"step {report.step}/{steps}: loss {report.loss:.6f}, "
                            f"{report.tokens_per_ms:.3f} tokens/ms, "
                            f"{tokens_left / report.tokens_per_ms / 1e3:.0f} s left"
                        )
            validate("after")
            trainer.wait_saved()
            if save:
                trainer.save_checkpoint(save)
                if not as_json:
                    OUT.print(f"saved {save}", markup=False)
    if as_json:
        print_json(
            {
                "losses": [json_number(report.loss) for report in reports],
                "tokens_per_ms": reports[-1].tokens_per_ms,
                "matmul": runtime.matmul,
                "validation_losses": [json_number(loss) for loss in validations],
                "saved": str(save) if save else None,
            }
        )


def _check_no_newer_states(folder: Path, step: int) -> None:
    """Refuse a folder from which a later --resume would take another run's state."""
    try:
        newest = training_state(folder)
    except (FormatError, FileError):  # none there; a folder that can't be written is told when it is saved to
        return
    if newest.step > step:
        raise InvalidArgumentError(
            f"{folder}: holds the state after step {newest.step}, newer than step {step} that this run starts from, "
            f"expected a folder without newer states, or --resume"
        )


def _check_same_data(state: TrainingState, batch_size: int, seq_len: int, data_id: int) -> None:
    """Refuse to go on where the next batch would be another than without the interruption."""
    if (state.batch_size, state.seq_len) != (batch_size, seq_len):
        raise InvalidArgumentError(
            f"{state.path}: was saved with batches of {state.batch_size} x {state.seq_len} tokens on all ranks "
            f"together, expected {batch_size} x {seq_len}"
        )
    if state.data_id != data_id:
        raise InvalidArgumentError(f"{state.path}: was saved while training on other token files, expected the same")


def _check_can_save(path: Path) -> None:
    """Refuse a place where the model can't be saved while nothing is lost by it."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        os.scandir(path.parent).close()
    except OSError as error:
        raise FileError(f"{path}: can't be written: {error.strerror}", error.errno, str(path)) from error
