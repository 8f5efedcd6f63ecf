"""``starpullm train``: reads a run's options, refuses what can't be resumed or saved, and prints losses."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import click
import numpy as np

from starpullm.commands import options
from starpullm.commands.main import all_ranks
from starpullm.commands.render import OUT, json_number, note, print_json, progress_bar
from starpullm.data.loader import TokenLoader
from starpullm.errors import InvalidArgumentError, NotFiniteError, StarpullmError
from starpullm.files.atomic import check_can_write
from starpullm.files.checkpoint import checkpoint_config
from starpullm.files.header import file_errors
from starpullm.files.model import ModelConfig
from starpullm.options import training_options
from starpullm.processes.progress import OwnReport, report_phase
from starpullm.processes.ranks import check_same_options, failing_together
from starpullm.resume import TrainingState, training_state
from starpullm.runtime import Runtime, runtime_options
from starpullm.schedules import number_of_pipelines
from starpullm.traces.traced_run import Recording, save_run
from starpullm.trainer import Trainer
from starpullm.training.learning_rate import LEARNING_RATE_SCHEDULES, LearningRateSchedule
from starpullm.training.log import loss_log
from starpullm.training.loop import StepReport, check_finite, mean_loss, train

POSITIVE = click.IntRange(min=1)
_Say: TypeAlias = Callable[[str], None]
PATTERN = click.Path()


@click.command(
    "train",
    epilog=options.example(
        "starpullm train --checkpoint model.bin --tokens 'train_*.bin' --steps 100 --save trained.bin",
        "starpullm train --resume states --tokens 'train_*.bin' --steps 200 --partition 2x1",
    ),
)
@click.option("--checkpoint", type=options.PATH, help="Checkpoint to start from.")
@click.option(
    "--resume",
    type=options.PATH,
    metavar="FOLDER",
    help="Folder of training states, instead of --checkpoint: continue from the newest complete one.",
)
@click.option("--tokens", type=PATTERN, required=True, metavar="PATTERN", help="Token files to train on.")
@click.option(
    "--val-tokens", type=PATTERN, metavar="PATTERN", help="Token files to validate on, before and after training."
)
@click.option("--val-batches", type=POSITIVE, default=10, help="Batches to validate on.")
@click.option("--batch-size", type=int, default=4, help="Sequences per step on each rank.")
@click.option("--seq-len", type=int, default=64, help="Tokens per sequence.")
@click.option("--steps", type=POSITIVE, default=10, help="Number of the last step.")
@options.partition
@options.sub_batches
@options.settings
@options.scheduler
@options.computing
@click.option("--learning-rate", type=float, default=3e-4, help="Learning rate of AdamW, the highest of the schedule.")
@click.option(
    "--learning-rate-schedule",
    type=click.Choice(LEARNING_RATE_SCHEDULES),
    default=LEARNING_RATE_SCHEDULES[0],
    help="After the warm-up: constant, or falling to 0 at --steps as half a cosine.",
)
@click.option(
    "--warm-up-steps",
    type=click.IntRange(min=0),
    metavar="N",
    default=0,
    help="Steps in which the learning rate rises linearly.",
)
@click.option("--beta1", type=float, default=0.9, help="Decay rate of AdamW's first moment, m.")
@click.option("--beta2", type=float, default=0.999, help="Decay rate of AdamW's second moment, v.")
@click.option("--eps", type=float, default=1e-8, help="Term of AdamW's denominator.")
@click.option("--weight-decay", type=float, default=0.0, help="Weight decay of AdamW.")
@click.option("--save", type=options.PATH, help="Checkpoint to write after the last step.")
@click.option("--save-every", type=POSITIVE, metavar="N", help="Save the state every N steps, or the last one.")
@click.option(
    "--state-dir", type=options.PATH, show_default="that of --resume", help="Folder to save training states in."
)
@click.option("--keep-states", type=POSITIVE, default=2, help="Number of newest states to keep, at least 2.")
@options.progress_limit
@click.option("--keep-going", is_flag=True, help="Go on after a loss that is NaN or infinite.")
@click.option("--log", type=options.PATH, metavar="FILE", help="Write a line of JSON for each loss; --resume appends.")
@click.option(
    "--trace",
    type=options.PATH,
    metavar="FILE",
    help="Record every task and write the trace of all ranks after the last step, for `starpullm trace`.",
)
@options.as_json
def command(**values: Any) -> None:
    """Train a model.

    Loss, speed and remaining time are printed after each step. Under mpirun, all ranks train one model. Each rank,
    or with --stages each pipeline, adds --batch-size sequences to the batch and cuts them into --sub-batches.

    An interrupted run continues with --resume and otherwise the same options, and has the bits of an uninterrupted run.
    Partition and number of ranks may differ, if the batch of all ranks together is the same.
    """
    run = SimpleNamespace(**values)
    run.learning_rates = LearningRateSchedule(
        run.learning_rate_schedule, run.learning_rate, run.warm_up_steps, run.steps
    )
    if run.save_every and not (run.state_dir or run.resume):
        raise click.UsageError("--save-every: expected --state-dir or --resume with it")
    with all_ranks() as comm:
        with failing_together(comm):
            if comm is None or comm.Get_rank() == 0:
                _check_outputs(run)
            config, state = _start_of(run)
        states = run.state_dir
        if state is not None and states is None:
            is_a_state = state.path.resolve() == run.resume.resolve()
            states = run.resume.resolve().parent if is_a_state else run.resume
        with Runtime(run.partition, run.scheduler, comm, **runtime_options(run)) as runtime:
            result = _train(run, config, state, states, runtime)
    if run.as_json:
        print_json(result)


def _start_of(run: SimpleNamespace) -> tuple[ModelConfig, TrainingState | None]:
    """Return the model's sizes, and the training state to resume if there is one."""
    options.expect_one(checkpoint=run.checkpoint, resume=run.resume)
    if run.checkpoint is not None:
        return checkpoint_config(run.checkpoint), None
    state = training_state(run.resume)
    if state.passed_over:
        note(state.passed_over)
    if state.arithmetic == "none":
        note(f"{state.path}: a BLAS or the platform's libm computed its steps: not strict")
    if state.step > run.steps:
        raise InvalidArgumentError(
            f"{state.path}: {state.step} steps have been done, expected at most --steps {run.steps}"
        )
    _say_other_settings(run, state)
    return state.config, state


def _say_other_settings(run: SimpleNamespace, state: TrainingState) -> None:
    """Say which settings of AdamW aren't those of the state's last step: the bits will be those of no whole run."""
    beta1, beta2 = state.betas
    settings = (
        ("learning rate", state.learning_rate, run.learning_rates.rate(max(state.step, 1))),
        ("beta1", beta1, run.beta1),
        ("beta2", beta2, run.beta2),
        ("eps", state.eps, run.eps),
        ("weight decay", state.weight_decay, run.weight_decay),
    )
    for name, found, given in settings:
        if np.float32(found) != np.float32(given):
            note(f"{state.path}: step {state.step} had {name} {found:g}, by these options it is {given:g}")


def _how_to_go_on(states: Path, ranks: int) -> str:
    """Return which state in a folder is the newest, and the command that goes on from it."""
    try:
        newest = training_state(states)
    except StarpullmError:
        return f"; no complete state in {states} yet"
    words = [word for word in sys.argv[1:] if not word.startswith(("--checkpoint=", "--resume="))]
    for option in {"--checkpoint", "--resume"}.intersection(words):
        position = words.index(option)
        del words[position : position + 2]
    launcher = f"mpirun -n {ranks} " if ranks > 1 else ""
    command = shlex.join(["starpullm", *words, "--resume", str(states)])
    return f"; the newest state is {newest.path}, of step {newest.step}, to go on: {launcher}{command}"


def _train(
    run: SimpleNamespace, config: ModelConfig, state: TrainingState | None, states: Path | None, runtime: Runtime
) -> dict[str, Any]:
    """Train, and return the results as --json prints them; without it, print each step."""
    say: _Say = (lambda line: None) if run.as_json else OUT.print
    if runtime.matmul != "strict":
        say(f"matmuls: {runtime.matmul}, not strict")
    if 0 < run.activation_sets < min(run.sub_batches, workers := runtime.partition.workers):
        say(f"{run.activation_sets} of {workers} workers have a sub-batch: more activation sets keep them busy")
    first_step = state.step + 1 if state else 1
    saved_steps = _saved_steps(run, first_step)
    loader, val_loader, data_id = _open_tokens(run, config, state, saved_steps, runtime)
    reports: list[StepReport] = []
    validations: list[float] = []
    with (
        Trainer(
            runtime,
            run.checkpoint,
            resume=state.path if state else None,
            betas=(run.beta1, run.beta2),
            trace=run.trace is not None,
            **{name: getattr(run, name) for name in ("batch_size", "seq_len", "learning_rate", "eps", "weight_decay")},
            **training_options(run),
        ) as trainer,
        loss_log(run.log if runtime.rank == 0 else None, state.step if state else -1) as log,
    ):
        if saved_steps and states:
            trainer.claim_directory(states)
            if runtime.rank == 0:
                OwnReport.note = lambda: _how_to_go_on(states, runtime.ranks)
        recording = Recording(trainer) if run.trace else None

        def validate(when: str, step: int) -> None:
            if val_loader is not None:
                loss = mean_loss(trainer, val_loader, run.val_batches)
                validations.append(loss)
                say(f"validation loss {when}: {loss:.6f}")
                log(step, validation_loss=json_number(loss))
                if not run.keep_going:
                    check_finite(f"validation {when}, loss", loss)

        def end_step(report: StepReport) -> None:
            reports.append(report)
            step, loss, speed = report.step, report.loss, report.tokens_per_ms
            log(step, loss=json_number(loss), learning_rate=rate(step), tokens_per_ms=speed)
            say(f"step {step}/{run.steps}: loss {loss:.6f}, {speed:.3f} tokens/ms, {report.seconds_left:.0f} s left")
            if not run.keep_going:
                check_finite(f"step {step}, loss", loss)
            # Until the next loss, that of its parameters, this state isn't known to be good: the one before stays.
            if states and step in saved_steps and np.isfinite(loss):
                keep = max(run.keep_states, 2)
                trainer.save_state(states, batches=loader.position, data_id=data_id, keep=keep)

        rate = run.learning_rates.rate
        steps = train(trainer, loader, run.steps, first_step=first_step, learning_rate=rate, saved_steps=saved_steps)
        if first_step > run.steps:  # the run was ended after its last step, perhaps before it wrote the model
            say(f"all {run.steps} steps have been done")
        try:
            validate("before", first_step - 1)
            with progress_bar(hidden=run.as_json) as progress:
                bar = progress.add_task("training", total=run.steps - first_step + 1)
                for report in steps:
                    progress.advance(bar)
                    end_step(report)
            validate("after", run.steps)
        except NotFiniteError:
            last_finite = first_step - 1 + sum(np.isfinite(report.loss) for report in reports)
            if saved_steps and states:
                _set_aside(trainer, states / f"step-{last_finite:012}")
            raise
        _save_results(run, trainer, recording, say)
    return {
        "losses": [json_number(report.loss) for report in reports],
        "tokens_per_ms": reports[-1].tokens_per_ms if reports else None,
        "matmul": runtime.matmul,
        "validation_losses": [json_number(loss) for loss in validations],
        "saved": str(run.save) if run.save else None,
        "trace": str(run.trace) if run.trace else None,
    }


def _saved_steps(run: SimpleNamespace, first_step: int) -> range:
    """Return the steps whose states are saved: the last one, if no other is."""
    if not (run.save_every or run.state_dir):
        return range(0)
    every = run.save_every or run.steps
    return range(first_step + -first_step % every, run.steps + 1, every) or range(run.steps, run.steps + 1)


def _set_aside(trainer: Trainer, state: Path) -> None:
    """Rename a state that leads to a loss that isn't finite, if there is one, so that no run resumes from it."""
    new = state.with_name(f"not-finite-{state.name}")
    trainer.wait_saved()
    if trainer.runtime.comm:
        trainer.runtime.comm.Barrier()
    if trainer.runtime.rank == 0 and state.is_dir():
        shutil.rmtree(new, ignore_errors=True)
        with file_errors(state, "renamed"):
            state.rename(new)
        note(f"{new}: is the state that leads to this loss")


def _save_results(run: SimpleNamespace, trainer: Trainer, recording: Recording | None, say: _Say) -> None:
    """Write what is written after the last step: the model, and the trace, which rank 0 writes for all ranks."""
    trainer.wait_saved()
    if run.save:
        trainer.save_checkpoint(run.save)
        say(f"saved {run.save}")
    if recording is not None:
        traced = recording.finish()
        if traced is not None:
            save_run(run.trace, traced)
        say(f"saved {run.trace}")


def _open_tokens(
    run: SimpleNamespace, config: ModelConfig, state: TrainingState | None, saved_steps: range, runtime: Runtime
) -> tuple[TokenLoader, TokenLoader | None, int]:
    """Open the tokens to train on and to validate on, which all ranks must have; return also what identifies them."""
    parts = number_of_pipelines(runtime.ranks, run.stages)
    own = {"rank": runtime.rank * parts // runtime.ranks, "num_ranks": parts, "vocab_size": config.vocab_size}
    same: dict[str, object] = {}
    with failing_together(runtime.comm):
        loader = TokenLoader(run.tokens, run.batch_size, run.seq_len, **own)
        data_id = loader.fingerprint if state or saved_steps else 0
        if state:
            _check_same_data(state, parts * run.batch_size, run.seq_len, data_id)
            loader.seek(state.batches)
        val_loader = TokenLoader(run.val_tokens, run.batch_size, run.seq_len, **own) if run.val_tokens else None
        if runtime.comm:
            report_phase("comparing the tokens")
            same["SHA-256 of the tokens to train on"] = loader.digest(run.steps - (state.step if state else 0))
            if val_loader is not None:
                same["SHA-256 of the tokens to validate on"] = val_loader.digest(run.val_batches)
    if runtime.comm:
        check_same_options(runtime.comm, same)
    return loader, val_loader, data_id


def _check_same_data(state: TrainingState, batch_size: int, seq_len: int, data_id: int) -> None:
    """Refuse to resume if the next batch would not be that of the uninterrupted run."""
    if (state.batch_size, state.seq_len) != (batch_size, seq_len):
        raise InvalidArgumentError(
            f"{state.path}: was saved with batches of {state.batch_size} x {state.seq_len} tokens on all ranks "
            f"together, expected {batch_size} x {seq_len}"
        )
    if state.data_id != data_id:
        raise InvalidArgumentError(f"{state.path}: was saved while training on other token files, expected the same")


def _check_outputs(run: SimpleNamespace) -> None:
    """Refuse files that can't be written, before any step has been computed."""
    files = {name: path for name in ("save", "trace", "log") if (path := getattr(run, name))}
    for path in files.values():
        check_can_write(path)
    for one, other in combinations(files, 2):
        if files[one].resolve() == files[other].resolve():
            raise click.UsageError(f"--{other}: found {files[other]}, the file of --{one}, expected another")
