"""The run of the user's own sizes: its options, its record, which the plain model computes, and its inputs in files."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import click
import numpy as np
from click.core import ParameterSource

from starpullm.checks.references import plain_model, plain_steps
from starpullm.commands import options
from starpullm.data.generator import generate_checkpoint, generate_tokens, generated_tokens_sha256
from starpullm.errors import FormatError, InvalidArgumentError
from starpullm.files.atomic import atomic_folder
from starpullm.files.model import num_parameters, padded_vocab
from starpullm.files.tokens import write_tokens
from starpullm.golden.records import GoldenRecord, step_results
from starpullm.processes import Comm
from starpullm.processes.ranks import meet

RUN: Final = "run.json"

_NEEDED = ("num_layers", "num_heads", "channels", "vocab_size", "batch_size", "seq_len", "steps")
_OTHERS = ("max_seq_len", "padded_vocab_size", "seed", "learning_rate", "weight_decay")
_SETTINGS = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}

of_run = options.together(
    options.model_sizes("the sequence length"),
    click.option("--batch-size", type=int, metavar="B", help="Sequences of the whole batch."),
    click.option("--seq-len", type=int, metavar="T", help="Tokens of a sequence."),
    click.option("--steps", type=int, metavar="N", help="Number of training steps."),
    click.option("--seed", type=click.IntRange(min=0), default=1, help="Seed of the generated model and tokens."),
    click.option("--learning-rate", type=float, default=1e-4, help="Learning rate of AdamW."),
    click.option("--weight-decay", type=float, default=0.01, help="Weight decay of AdamW."),
)


def are_given() -> bool:
    """Return whether one of the options is on the command line; if so, all sizes have to be."""
    source = click.get_current_context().get_parameter_source
    return any(source(name) is ParameterSource.COMMANDLINE for name in (*_NEEDED, *_OTHERS))


def refuse_others(mode: str) -> None:
    """Raise a usage error if an option stands on the command line that says nothing beside this one."""
    context = click.get_current_context()
    known = {"tensors": ("ulps", "as_json", "report", "time_limit"), "write_inputs": (*_NEEDED, *_OTHERS)}
    for parameter in context.command.params:
        name = parameter.name or ""
        is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if is_given and name not in (mode, *known[mode]):
            found = parameter.opts[0] if isinstance(parameter, click.Option) else "RECORD"
            raise click.UsageError(f"--{mode.replace('_', '-')}: expected no {found} beside it")


def record_of_sizes(run: SimpleNamespace, folder: Path, comm: Comm | None = None) -> GoldenRecord:
    """Write the run's model and record into a folder, and return the record, which rank 0 computes for all ranks."""
    names = {option.name: option.opts[0] for option in click.get_current_context().command.params}
    missing = [names[name] for name in _NEEDED if getattr(run, name) is None]
    if missing:
        raise click.UsageError(f"sizes of a run: expected all, found no {', '.join(missing)}")
    config = {"name": "run", **{name: getattr(run, name) for name in (*_NEEDED, *_OTHERS)}, **_SETTINGS}
    defaults = {"max_seq_len": run.seq_len, "padded_vocab_size": padded_vocab(run.vocab_size)}
    config |= {name: default for name, default in defaults.items() if config[name] is None}
    path, hashes = folder / RUN, dict.fromkeys(("checkpoint_sha256", "tokens_sha256"), "0" * 64)
    content: dict[str, Any] = {"config": config, "origin": "plain model", **hashes}
    path.write_text(json.dumps(content), "utf-8")
    try:
        record = GoldenRecord.load(path, with_results=False)
    except FormatError as error:
        raise InvalidArgumentError(str(error).removeprefix(f"{path}, key config").lstrip(".: ")) from None
    if comm is None or comm.Get_rank() == 0:
        tokens = generated_tokens_sha256(record.seed, record.num_steps, run.batch_size, run.seq_len, run.vocab_size)
        checkpoint = generate_checkpoint(folder / "model.bin", record.model, record.seed)
        model, steps = plain_model(record, folder / "model.bin"), list[dict[str, Any]]()
        for loss in plain_steps(record, model):
            if not np.isfinite(loss):
                raise InvalidArgumentError(f"step {len(steps)}: found the loss {loss}, expected a finite one")
            steps.append(step_results(loss, model.groups))
        content |= {"checkpoint_sha256": checkpoint, "tokens_sha256": tokens, "steps": steps}
    if comm:
        meet(comm)  # the other ranks sleep meanwhile
        content = comm.bcast(content)
    path.write_text(json.dumps(content), "utf-8")
    return GoldenRecord.load(path)


def write_inputs(run: SimpleNamespace) -> None:
    """Write the run's record, and its model and tokens in llm.c's formats, into a new folder."""
    with atomic_folder(run.write_inputs) as folder:
        record = record_of_sizes(run, folder)
        sizes = (run.batch_size, run.seq_len, run.vocab_size)
        ids = [np.ravel(generate_tokens(run.seed, step, *sizes)) for step in range(run.steps)]
        write_tokens(folder / "tokens.bin", np.concatenate(ids))
    click.echo(f"{run.write_inputs}: {num_parameters(record.model)} parameters, tokens of {run.steps} steps")
