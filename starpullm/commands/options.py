"""Options that several commands have, so that each of them has one meaning and one help text."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import click

from starpullm.data.generator import generate_checkpoint
from starpullm.files.model import ModelConfig
from starpullm.options import (
    ARITHMETICS,
    GRADIENT_BUFFERS,
    OFFLOAD_PLANS,
    RECOMPUTATIONS,
    REDUCTIONS,
    SCHEDULES,
    WEIGHT_GRADIENTS,
)
from starpullm.runtime import DEFAULT_SCHEDULER, MATMULS

PATH = click.Path(path_type=Path)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

# Help texts without their full stops, for `repeated` too.
WORKERS = "W workers of T threads each on each rank"
SUB_BATCHES = "Sub-batches into which the batch of each rank is cut"
SCHEDULER = "StarPU scheduler; `starpullm doctor` lists them"
REDUCTION = "How the gradients of sub-batches are summed"
SETS = "Sub-batches of each rank that have buffers for activations, and run, at a time"
RECOMPUTE = "What the backward pass computes again, so that the blocks share its memory"
TILES = "Running sums that the gradient of each weight is cut into, with the reduction ordered"
TILES_DEFAULT = "by the model and the workers"

PARTITION_VARIABLE = "STARPULLM_PARTITION"


Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


def _word(name: str, words: Sequence[str], help: str) -> Decorator:
    """Return an option that is one of several words, the first one by default."""
    return click.option(name, type=click.Choice(words), default=words[0], help=help)


def together(*options: Decorator) -> Decorator:
    """Return a decorator that adds several options, which --help shows in this order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


partition = click.option("--partition", default="1x1", metavar="WxT", envvar=PARTITION_VARIABLE, help=f"{WORKERS}.")
scheduler = click.option("--scheduler", default=DEFAULT_SCHEDULER, metavar="NAME", help=f"{SCHEDULER}.")
sub_batches = click.option("--sub-batches", type=int, default=1, metavar="S", help=f"{SUB_BATCHES}.")
reduction = _word("--reduction", REDUCTIONS, f"{REDUCTION}.")
sets = click.option("--activation-sets", type=int, default=0, show_default="all", metavar="K", help=f"{SETS}.")
tiles = click.option(
    "--weight-gradient-tiles", type=int, default=0, show_default=TILES_DEFAULT, metavar="N", help=f"{TILES}."
)
recompute = _word("--recompute", RECOMPUTATIONS, f"{RECOMPUTE}.")
weight_gradients = _word(
    "--weight-gradients",
    WEIGHT_GRADIENTS,
    "reused: the blocks share two gradients of each weight, on one rank with one sub-batch.",
)


class _Stages(click.ParamType[Any]):
    name = "stages"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | tuple[int, ...]:
        numbers = value.split(",") if isinstance(value, str) else [value]
        try:
            blocks = tuple(int(number) for number in numbers)
        except ValueError:
            self.fail(f'expected a number of stages or the blocks of each, found "{value}"', param, ctx)
        return blocks if len(blocks) > 1 else blocks[0]


stages = click.option(
    "--stages",
    type=_Stages(),
    default=1,
    metavar="P|L,L,…",
    help="Stages of the model, one on each rank, or the blocks of each stage.",
)
schedule = _word(
    "--schedule",
    SCHEDULES,
    "How far the forward passes of a stage are ahead: by --activation-sets; for each worker, by its place (1f1b) or "
    "the number of stages.",
)
gradient_buffers = _word(
    "--gradient-buffers",
    GRADIENT_BUFFERS,
    "block: each block has those that the gradients of its weights are computed from, which zero-bubble needs.",
)
matmul = _word("--matmul", MATMULS, "What computes the matmuls. Results with a BLAS are not strict.")
blas_library = click.option(
    "--blas-library",
    type=click.Path(),
    metavar="PATH|NAME",
    show_default="the first one found",
    help="CBLAS library: its path, or its name for the dynamic linker.",
)
limited_memory = together(
    click.option(
        "--offload",
        type=PATH,
        metavar="FOLDER",
        help="Folder on a disk that data move to when they take more than --memory-limit. On one rank.",
    ),
    click.option("--memory-limit", metavar="SIZE", help="Limit of the memory for data with --offload, such as 12G."),
    _word(
        "--offload-plan", OFFLOAD_PLANS, "What moves to the disk: by the order of a step, or what was used longest ago."
    ),
)
devices = click.option(
    "--devices", default="0", metavar="N|all", help="OpenCL devices that run tasks beside the workers."
)
pipelines = together(stages, schedule, gradient_buffers)
settings = together(sets, recompute, weight_gradients, pipelines, reduction, tiles)
arithmetic = _word("--arithmetic", ARITHMETICS, "fused: a sum of products rounds each term once, with other bits.")
computing = together(matmul, blas_library, arithmetic, limited_memory, devices)

report = click.option("--report", type=PATH, metavar="DIR", help="Folder for a page of the results, and their data.")


def model_sizes(longest: str | None = None, otherwise: str = "") -> Decorator:
    """Return a decorator that adds options of a model's sizes; the texts say what two of them are by default."""
    size = partial(click.option, type=int)
    return together(
        size("--layers", "num_layers", metavar="L", help="Number of transformer blocks."),
        size("--heads", "num_heads", metavar="NH", help="Number of attention heads; has to divide the channels."),
        size("--channels", metavar="C", help="Number of channels."),
        padded_vocab(f"{otherwise}V rounded up to a multiple of 128, as in llm.c", "Number of rows of wte."),
        size("--vocab", "vocab_size", metavar="V", help="Number of tokens in the vocabulary."),
        size("--max-seq-len", metavar="maxT", show_default=longest, help="Tokens of the longest sequence."),
    )


def padded_vocab(default: str, help: str) -> Decorator:
    """Return the option of the padded vocabulary."""
    return click.option("--padded-vocab", "padded_vocab_size", type=int, metavar="Vp", show_default=default, help=help)


of_model = click.option("--checkpoint", type=PATH, help="Checkpoint of a model, instead of --model.")
_time_limit = partial(click.option, "--time-limit", type=click.FloatRange(min=0, min_open=True), default=1800.0)
time_limit = _time_limit(help="Seconds that one measurement may take.")
progress_limit = _time_limit(help="Seconds without progress, as in one step, after which the run is ended.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print results as JSON.")


def repeated(*names: str, help: str, **attributes: Any) -> Decorator:
    """Return an option that may be given several times."""
    return click.option(*names, multiple=True, help=f"{help}; may be repeated.", **attributes)


def repeated_word(name: str, words: Sequence[str], *, help: str) -> Decorator:
    """Return an option that is one of several words, or some of them; the first one by default."""
    return repeated(name, type=click.Choice(words), default=[words[0]], help=help)


partitions = repeated(
    "--partition", "partitions", default=["1x1"], metavar="WxT", envvar=PARTITION_VARIABLE, help=WORKERS
)


def expect_one(**given: Any) -> None:
    """Refuse the usage unless one of two options is given."""
    if sum(value is not None for value in given.values()) != 1:
        raise click.UsageError("expected either " + " or ".join(f"--{name}" for name in given))


@contextmanager
def model_file(checkpoint: Path | None, config: ModelConfig, seed: int) -> Iterator[Path]:
    """Provide the checkpoint that --checkpoint names, or one that is generated for --model."""
    with tempfile.TemporaryDirectory(prefix="starpullm-model-") as directory:
        path = (checkpoint or Path(directory, "model.bin")).absolute()
        if checkpoint is None:
            generate_checkpoint(path, config, seed)
        yield path


def example(*commands: str) -> str:
    """Return the epilog of a command's help: command lines, which click must not wrap."""
    return "\n".join(["\b", "Example:" if len(commands) == 1 else "Examples:", *(f"  {line}" for line in commands)])
