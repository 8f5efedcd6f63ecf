"""The command line: reads options, calls the package, prints. Nothing is computed here.

Installed as ``starpullm``. Exit status: 0 done; 1 a comparison found differences; 2 bad usage or input;
3 not comparable; 4 the machine failed (memory, disk, StarPU); 130 interrupted.
"""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import starpullm
from starpullm.checks.debug_state import check_debug_state, expected_losses
from starpullm.checks.libm import NUM_INPUTS, LibmResult, check_libm, vector_levels
from starpullm.checks.llmc import run_llmc
from starpullm.checks.parity import ParityResult, check_parity, make_inputs
from starpullm.checks.references import GoldenReference
from starpullm.checks.result import Outcome
from starpullm.data import TokenLoader, generate_checkpoint, initial_parameters, text_encoding
from starpullm.errors import (
    FileError,
    FormatError,
    InvalidArgumentError,
    MissingDependencyError,
    StarpullmError,
)
from starpullm.formats import (
    Checkpoint,
    ModelConfig,
    checkpoint_config,
    num_parameters,
    parameter_shapes,
    read_debug_state,
    write_checkpoint,
    write_tokens,
)
from starpullm.golden.records import SHIPPED_RECORDS, GoldenRecord, shipped_record, shipped_records
from starpullm.machine import inspect_machine, vector_libm
from starpullm.processes.ranks import (
    check_same_options,
    default_exit_status,
    guarded,
    rank_and_size_from_environment,
    world,
)
from starpullm.runtime import DEFAULT_SCHEDULER, MATMULS, Partition, Runtime
from starpullm.speed import plots
from starpullm.speed.measure import bench
from starpullm.speed.peers.compare import OPPONENTS, STRICT, Comparison, compare
from starpullm.speed.throughput import Configuration, Throughput
from starpullm.trainer import REDUCTIONS, Trainer, TrainingState, training_state
from starpullm.training import demo as demo_run
from starpullm.training.loop import StepReport, encoding_for, generate, mean_loss, train

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

EXIT_DIFFERENT = 1
EXIT_BAD_INPUT = 2
EXIT_NOT_COMPARABLE = 3
EXIT_MACHINE_FAILED = 4
EXIT_INTERRUPTED = 128 + signal.SIGINT  # as shells count; click's own would be 1

MAX_DETAILS = 16
"""So many lines are shown of what differs in one run."""

_INPUT_ERRORS = (InvalidArgumentError, FormatError, MissingDependencyError)
# Numbers that say that the path was wrong, not that the disk failed.
_PATH_ERRORS = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EINVAL,  # not a regular file
)

# Results go to standard output; progress and errors to standard error.
_out = Console(highlight=False, soft_wrap=True)
_err = Console(stderr=True, highlight=False, soft_wrap=True)

_PATH = click.Path(path_type=Path)


def _exit_status(error: BaseException) -> int:
    """Return the exit status that an error has, as the module's head lists them."""
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, SystemExit | click.ClickException | click.exceptions.Exit):
        return default_exit_status(error)
    missing = isinstance(error, FileError) and error.errno in _PATH_ERRORS
    # A defect of ours must not look like EXIT_DIFFERENT, which is Python's status for a trace back.
    return EXIT_BAD_INPUT if missing or isinstance(error, _INPUT_ERRORS) else EXIT_MACHINE_FAILED


class _Group(click.Group):
    """Prints an error's sentence instead of a trace back, and gives it its exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except StarpullmError as error:
            _err.print(f"Error: {error}", markup=False)
            status = _exit_status(error)
        except MemoryError as error:
            _err.print(f"Error: out of memory: {error}", markup=False)
            status = EXIT_MACHINE_FAILED
        except KeyboardInterrupt as error:
            _err.print("Interrupted.")
            status = _exit_status(error)
        except Exception as error:
            traceback.print_exc()
            status = _exit_status(error)
        ctx.exit(status)


@contextmanager
def _all_ranks() -> Iterator[Comm | None]:
    """Give the communicator of the ranks that this command was started with, None for one process alone.

    Rank 0 alone prints; an error of one rank ends all.
    """
    _, size = rank_and_size_from_environment()
    if size == 1:
        yield None
        return
    comm = world()
    with guarded(comm, _exit_status):
        params = click.get_current_context().params
        check_same_options(comm, {name: value for name, value in params.items() if "partition" not in name})
        _out.quiet = comm.Get_rank() > 0
        yield comm


def _guarded(comm: Comm | None) -> AbstractContextManager[None]:
    """Stand inside what waits for other ranks when it is closed: an error must end them first."""
    return guarded(comm, _exit_status) if comm else nullcontext()


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(starpullm.__version__, prog_name="starpullm")
def main() -> None:
    """Train GPT-2 as one StarPU task graph, and prove that its bits are llm.c's."""


def _print_json(value: Any) -> None:
    if not _out.quiet:
        click.echo(json.dumps(value, indent=2, allow_nan=False))


def _json_number(value: float | np.float32) -> float | None:
    """JSON has no NaN and no infinity: null stands for them."""
    return float(value) if math.isfinite(value) else None


def _progress(*, hidden: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=_err,
        disable=hidden or _out.quiet or not _err.is_terminal,
    )


_partition_option = click.option(
    "--partition", default="1x1", show_default=True, metavar="WxT", help="W workers of T threads each."
)
_scheduler_option = click.option(
    "--scheduler", default=DEFAULT_SCHEDULER, show_default=True, metavar="NAME", help="StarPU's scheduler."
)
_reduction_option = click.option(
    "--reduction",
    type=click.Choice(REDUCTIONS),
    default=REDUCTIONS[0],
    show_default=True,
    help="Of gradients.",
)
_matmul_option = click.option(
    "--matmul",
    type=click.Choice(MATMULS),
    default=MATMULS[0],
    show_default=True,
    help="Who computes matrix products; with a BLAS nothing is strict.",
)
_blas_library_option = click.option(
    "--blas-library", metavar="PATH|NAME", help="A CBLAS: path, or name for pkg-config; by default one that is found."
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for a program to read.")


# ---- doctor ----


@main.command()
@click.option("--prove-libm", is_flag=True, help="Compare the vector versions of libm's functions with libm's own.")
@click.option(
    "--every",
    type=click.IntRange(min=1, max=NUM_INPUTS),
    default=1,
    show_default=True,
    metavar="N",
    help="With --prove-libm: only each N-th part of all inputs; quicker, but no proof.",
)
@_json_option
def doctor(prove_libm: bool, every: int, as_json: bool) -> None:
    """Show what this machine and this build have, and what will not work and why.

    --prove-libm instead compares, at each SIMD level, all 2^32 inputs of each function, which takes minutes; exit
    status 1: some have other bits.
    """
    if prove_libm:
        _prove_libm(every, as_json)
        return
    machine = inspect_machine()
    if as_json:
        _print_json(machine.as_json())
        return
    rows = [
        ("starpullm", f"{machine.version}, {machine.library}"),
        ("compiler", f"{machine.compiler}, {machine.build_type}, {machine.compiler_flags}"),
        ("StarPU", f"{machine.starpu_version} in {machine.starpu_prefix}"),
        (
            "StarPU's features",
            f"parallel workers {'yes' if machine.starpu_parallel_workers else 'no'}, at most "
            f"{machine.starpu_max_workers} workers, {machine.starpu_max_contexts} scheduling contexts",
        ),
        ("schedulers", ", ".join(machine.schedulers)),
        ("processor", machine.processor or "unknown"),
        (
            "topology",
            f"{machine.cores} cores, {machine.processing_units} processing units, {machine.numa_nodes} NUMA nodes"
            + (" (HWLOC_SYNTHETIC)" if machine.synthetic_topology else ""),
        ),
        ("partitions", ", ".join(machine.partitions)),
        ("kernels", f"{machine.simd_level}"),
        (
            "vector functions",
            ", ".join(name for name, vector in machine.vector_libm.items() if vector.used) or "none",
        ),
        ("BLAS", f"{machine.blas or 'none found'}; used only with --matmul blas"),
        ("MPI", f"{machine.mpirun or 'none found'}; this build has {'ranks' if machine.mpi else 'no ranks'}"),
        ("libm", "known: golden records are comparable" if machine.libm_known else "unknown"),
        ("float environment", machine.float_environment or "as the contract wants it"),
    ]
    for name, text in rows:
        _out.print(f"{name:<19}{text}", markup=False)
    for finding in machine.findings:
        _out.print(f"{'problem' if finding.is_problem else 'note'}: {finding.sentence}", markup=False)


def _prove_libm(every: int, as_json: bool) -> None:
    results: list[LibmResult] = []
    known = vector_libm()
    levels = vector_levels()
    with _progress(hidden=as_json) as progress:
        total = NUM_INPUTS / every / 2**20 * len(known) * len(levels)
        bar = progress.add_task("libm, 2^20 inputs", total=math.ceil(total))
        for function in known:
            for level in levels:
                result = check_libm(
                    function, level, every=every, progress=lambda inputs: progress.advance(bar, inputs / 2**20)
                )
                results.append(result)
                if not as_json:
                    _out.print(f"{result.describe()[0]}, {result.seconds:.1f} s", markup=False)
    if as_json:
        _print_json([result.as_json() for result in results])
    else:
        for function, vector in known.items():
            used = "known, its vector versions are used" if vector.used else "unknown, kernels call it"
            _out.print(f"this libm's {function}: fingerprint {vector.fingerprint}, {used}", markup=False)
    if any(result.outcome is Outcome.FAILED for result in results):
        sys.exit(EXIT_DIFFERENT)


# ---- train ----


@main.command("train")
@click.option("--checkpoint", type=_PATH, help="Model to start from.")
@click.option("--resume", type=_PATH, help="Or folder of training states: go on from the newest complete one.")
@click.option("--tokens", required=True, metavar="PATTERN", help="Token files to train on.")
@click.option("--val-tokens", metavar="PATTERN", help="Token files to validate on, before and after.")
@click.option("--val-batches", type=click.IntRange(min=1), default=10, show_default=True, help="Batches of them.")
@click.option("--batch-size", type=int, default=4, show_default=True, help="B, sequences per step.")
@click.option("--seq-len", type=int, default=64, show_default=True, help="T, tokens per sequence.")
@click.option("--steps", type=click.IntRange(min=1), default=10, show_default=True, help="Number of the last step.")
@_partition_option
@click.option("--sub-batches", type=int, default=1, show_default=True, help="S, independent parts of a batch.")
@_reduction_option
@_scheduler_option
@_matmul_option
@_blas_library_option
@click.option("--learning-rate", type=float, default=3e-4, show_default=True)
@click.option("--beta1", type=float, default=0.9, show_default=True)
@click.option("--beta2", type=float, default=0.999, show_default=True)
@click.option("--eps", type=float, default=1e-8, show_default=True)
@click.option("--weight-decay", type=float, default=0.0, show_default=True)
@click.option("--save", type=_PATH, help="Write the trained model here.")
@click.option("--save-every", type=click.IntRange(min=1), metavar="N", help="Save the training state every N steps.")
@click.option("--state-dir", type=_PATH, help="Folder of training states; by default that of --resume.")
@click.option("--keep-states", type=click.IntRange(min=1), default=2, show_default=True, help="States that stay.")
@_json_option
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
            _err.print(f"note: {state.passed_over}", markup=False)
        if not state.strict:
            _err.print(f"note: {state.path}: a BLAS computed matmuls of its steps: not strict", markup=False)
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
        _all_ranks() as comm,
        Runtime(partition, scheduler, comm, matmul=matmul, blas_library=blas_library) as runtime,
    ):
        if runtime.matmul != "strict" and not as_json:
            _out.print(f"matmuls by {runtime.matmul}: not strict", markup=False)

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
            _guarded(comm),
        ):

            def validate(when: str) -> None:
                if val_loader is None:
                    return
                validations.append(mean_loss(trainer, val_loader, val_batches))
                if not as_json:
                    _out.print(f"validation loss {when}: {validations[-1]:.6f}")

            validate("before")
            with _progress(hidden=as_json) as progress:
                bar = progress.add_task("training", total=steps - first_step + 1)
                for report in train(trainer, loader, steps, first_step=first_step, after_submit=save_state):
                    reports.append(report)
                    progress.advance(bar)
                    if not as_json:
                        tokens_left = (steps - report.step) * runtime.ranks * batch_size * seq_len
                        _out.print(
                            f"step {report.step}/{steps}: loss {report.loss:.6f}, "
                            f"{report.tokens_per_ms:.3f} tokens/ms, "
                            f"{tokens_left / report.tokens_per_ms / 1e3:.0f} s left"
                        )
            validate("after")
            trainer.wait_saved()
            if save:
                trainer.save_checkpoint(save)
                if not as_json:
                    _out.print(f"saved {save}", markup=False)
    if as_json:
        _print_json(
            {
                "losses": [_json_number(report.loss) for report in reports],
                "tokens_per_ms": reports[-1].tokens_per_ms,
                "matmul": runtime.matmul,
                "validation_losses": [_json_number(loss) for loss in validations],
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


# ---- generate ----


@main.command("generate")
@click.option("--checkpoint", type=_PATH, required=True, help="Model to sample from.")
@click.option("--prompt", default="", help="Text to continue; empty: from the start of a text.")
@click.option("--tokenizer", type=_PATH, help="llm.c's gpt2_tokenizer.bin, for a model with GPT-2's vocabulary.")
@click.option("--num-tokens", type=click.IntRange(min=1), default=64, show_default=True, help="Tokens to sample.")
@click.option("--seed", type=click.IntRange(min=1), default=1337, show_default=True, help="llm.c's is 1337.")
@_partition_option
@_scheduler_option
def generate_command(
    checkpoint: Path,
    prompt: str,
    tokenizer: Path | None,
    num_tokens: int,
    seed: int,
    partition: str,
    scheduler: str,
) -> None:
    """Continue a text, sampling as llm.c does."""
    config = checkpoint_config(checkpoint)
    encoding = encoding_for(config, tokenizer)
    prompt_ids = encoding.encode(prompt).tolist()
    seq_len = len(prompt_ids) + num_tokens
    if seq_len > config.max_seq_len:
        raise InvalidArgumentError(
            f"{len(prompt_ids)} tokens of prompt and {num_tokens} to sample: expected at most "
            f"{config.max_seq_len} together, the model's longest sequence"
        )
    ids: list[int] = []
    with (
        Runtime(partition, scheduler) as runtime,
        Trainer(runtime, checkpoint, batch_size=1, seq_len=seq_len) as trainer,
        _progress(hidden=False) as progress,
    ):
        bar = progress.add_task("sampling", total=num_tokens)
        for token in generate(trainer, prompt_ids, encoding.end_of_text, num_tokens, seed):
            ids.append(token)
            progress.advance(bar)
    click.echo(prompt + encoding.decode(ids))


# ---- parity ----


@main.command()
@click.argument("record_files", metavar="[RECORD.json]...", nargs=-1, type=_PATH)
@click.option("--partition", "partitions", multiple=True, default=["1x1"], show_default=True, metavar="WxT")
@click.option(
    "--sub-batches",
    default="1",
    show_default=True,
    metavar="S|all",
    help="Parts of the batch; all: every number that divides it.",
)
@_reduction_option
@click.option("--scheduler", "schedulers", multiple=True, default=[DEFAULT_SCHEDULER], show_default=True)
@click.option("--full", is_flag=True, help="Without RECORD: also the shipped record of the 124M model.")
@_matmul_option
@_blas_library_option
@click.option(
    "--llmc-lib",
    type=_PATH,
    help="Compare with llm.c itself, as this shared object, run on the records' models, tokens and settings.",
)
@_json_option
def parity(
    record_files: Sequence[Path],
    partitions: Sequence[str],
    sub_batches: str,
    reduction: str,
    schedulers: Sequence[str],
    full: bool,
    matmul: str,
    blas_library: str | None,
    llmc_lib: Path | None,
    as_json: bool,
) -> None:
    """Compare every tensor of every step with llm.c's golden records, bit for bit.

    Without RECORD: the records shipped with the package. --partition and --scheduler may be repeated. Under mpirun the
    ranks share the record's batch; --sub-batches are those of one rank.

    Exit status 0: all bits are equal; 1: some differ; 2: bad usage or input; 3: not comparable (another libm,
    or matmuls by a BLAS).
    """
    if record_files:
        records = [GoldenRecord.load(path) for path in record_files]
    else:
        records = [record for name, record in shipped_records().items() if full or name != "gpt2-124m"]
    results: list[ParityResult] = []
    with _all_ranks() as comm:
        ranks = comm.Get_size() if comm else 1
        plan = [
            (record, _sub_batch_counts(record, sub_batches, ranks))
            for record in records
            if record_files or record.batch_size % ranks == 0
        ]
        runs = len(partitions) * len(schedulers)
        with (
            tempfile.TemporaryDirectory(prefix="starpullm-parity-") as directory,
            _progress(hidden=as_json) as progress,
        ):
            steps = sum(record.num_steps * len(counts) for record, counts in plan) * runs
            bar = progress.add_task("parity", total=steps)
            for record, counts in plan:
                checkpoint = make_inputs(record, Path(directory))
                reference = run_llmc(llmc_lib, record, checkpoint, Path(directory), comm) if llmc_lib else None
                for partition in partitions:
                    for scheduler in schedulers:
                        with (
                            Runtime(partition, scheduler, comm, matmul=matmul, blas_library=blas_library) as runtime,
                            _guarded(comm),
                        ):
                            for count in counts:
                                result = check_parity(
                                    reference.record if reference else record,
                                    runtime,
                                    checkpoint,
                                    sub_batches=count,
                                    reduction=reduction,
                                    reference=reference,
                                    progress=lambda: progress.advance(bar),
                                )
                                results.append(result)
                                if not as_json:
                                    for line in _parity_lines(result):
                                        _out.print(line, markup=False)
                checkpoint.unlink()
        if as_json:
            _print_json([result.as_json() for result in results])
        else:
            _out.print(_parity_summary(results), markup=False)
    outcomes = {result.outcome for result in results}
    if Outcome.FAILED in outcomes:
        sys.exit(EXIT_DIFFERENT)
    if Outcome.NOT_COMPARABLE in outcomes:
        sys.exit(EXIT_NOT_COMPARABLE)


def _sub_batch_counts(record: GoldenRecord, sub_batches: str, ranks: int) -> list[int]:
    if sub_batches == "all":
        own = record.batch_size // ranks
        return [count for count in range(1, own + 1) if own % count == 0]
    try:
        return [int(sub_batches)]
    except ValueError:
        raise click.BadParameter(f'expected a number or "all", found "{sub_batches}"') from None


def _parity_line(result: ParityResult) -> str:
    live = result.reference != GoldenReference.name
    line = (
        f"{result.record} {result.partition} {result.scheduler} "
        f"{f'ranks {result.ranks} ' if result.ranks > 1 else ''}sub-batches {result.sub_batches} {result.reduction}"
        f"{f' against {result.reference}' if live else ''}: "
    )
    if result.outcome is Outcome.NOT_COMPARABLE:
        return f"{line}not comparable, {result.finding}"
    line += f"{result.num_tensors} tensors over {result.num_steps} steps, {len(result.differences)} differ"
    return f"{line}; first {result.differences[0]}" if result.differences else line


def _parity_lines(result: ParityResult) -> Iterator[str]:
    yield _parity_line(result)
    details = list(result.detail_lines())
    yield from (f"  {line}" for line in details[:MAX_DETAILS])
    if len(details) > MAX_DETAILS:
        yield f"  … and {len(details) - MAX_DETAILS} more, see --json"


def _parity_summary(results: Sequence[ParityResult]) -> str:
    different = sum(len(result.differences) for result in results)
    if not different and any(result.outcome is Outcome.NOT_COMPARABLE for result in results):
        return "parity: not comparable" + ("" if any(of.matmul != "strict" for of in results) else " on this machine")
    tensors = sum(result.num_tensors for result in results)
    steps = sum(result.num_steps for result in results if result.outcome is not Outcome.NOT_COMPARABLE)
    return f"parity: {tensors} tensors over {steps} steps, {different} differ"


@main.command("debug-state")
@click.argument("state_file", metavar="STATE.bin", type=_PATH)
@click.option("--checkpoint", type=_PATH, required=True, help="The model that it belongs to.")
@_partition_option
@_scheduler_option
@click.option("--sub-batches", type=int, default=1, show_default=True, help="Parts of each rank's batch.")
@_reduction_option
@_matmul_option
@_blas_library_option
@_json_option
def debug_state_command(
    state_file: Path,
    checkpoint: Path,
    partition: str,
    scheduler: str,
    sub_batches: int,
    reduction: str,
    matmul: str,
    blas_library: str | None,
    as_json: bool,
) -> None:
    """Compare a step with llm.c's debug state, within the tolerances of llm.c's own test.

    Logits, loss and gradients; for the starter pack's gpt2_124M_debug_state.bin also ten steps' losses. That is no
    comparison of bits: see parity.

    Exit status 0: all within the tolerances; 1: some aren't; 2: bad usage or input.
    """
    with _all_ranks() as comm:
        state = read_debug_state(state_file, checkpoint_config(checkpoint), mmap=True)
        with (
            Runtime(partition, scheduler, comm, matmul=matmul, blas_library=blas_library) as runtime,
            _guarded(comm),
            _progress(hidden=as_json) as progress,
        ):
            bar = progress.add_task("debug state", total=len(expected_losses(state)))
            result = check_debug_state(
                state,
                runtime,
                checkpoint,
                sub_batches=sub_batches,
                reduction=reduction,
                progress=lambda: progress.advance(bar),
            )
        if as_json:
            _print_json(result.as_json())
        else:
            for line in result.describe():
                _out.print(line, markup=False)
    if result.outcome is Outcome.FAILED:
        sys.exit(EXIT_DIFFERENT)


# ---- bench ----


@main.command("bench")
@click.option("--model", type=click.Choice(SHIPPED_RECORDS), help="A generated model with a shipped record's sizes.")
@click.option("--checkpoint", type=_PATH, help="Or a model of your own.")
@click.option(
    "--batch-size", "batch_sizes", multiple=True, type=int, help="B of all ranks; by default the record's, or 4."
)
@click.option("--seq-len", type=int, help="T; by default the record's, or 64.")
@click.option("--partition", "partitions", multiple=True, default=["1x1"], show_default=True, metavar="WxT")
@click.option(
    "--sub-batches", "sub_batch_counts", multiple=True, type=int, help="S of each rank; by default one per worker."
)
@click.option(
    "--reduction",
    "reductions",
    multiple=True,
    type=click.Choice(REDUCTIONS),
    default=[REDUCTIONS[0]],
    show_default=True,
    help="Of gradients.",
)
@click.option("--ranks", "rank_counts", multiple=True, type=int, default=[1], show_default=True, help="Under mpirun.")
@_scheduler_option
@click.option("--iterations", type=int, default=10, show_default=True, help="Steps that count.")
@click.option("--warm-up", type=int, default=2, show_default=True, help="Steps before them.")
@click.option("--time-limit", type=float, default=1800.0, show_default=True, help="Seconds per configuration.")
@_matmul_option
@_blas_library_option
@click.option(
    "--against",
    "opponents",
    multiple=True,
    type=click.Choice(OPPONENTS),
    help="Run by turns with matmuls by a BLAS, or with PyTorch, and print ratios; may be repeated.",
)
@_json_option
def bench_command(
    model: str | None,
    checkpoint: Path | None,
    batch_sizes: Sequence[int],
    seq_len: int | None,
    partitions: Sequence[str],
    sub_batch_counts: Sequence[int],
    reductions: Sequence[str],
    rank_counts: Sequence[int],
    scheduler: str,
    iterations: int,
    warm_up: int,
    time_limit: float,
    matmul: str,
    blas_library: str | None,
    opponents: Sequence[str],
    as_json: bool,
) -> None:
    """Measure tokens per millisecond, beside what the processor could do at most and where the time goes.

    --batch-size, --partition, --sub-batches, --reduction and --ranks may be repeated: every combination is measured,
    each in processes of its own, one after the other. Nothing else should be running. `starpullm plot` draws what
    --json prints.

    With --against, contenders take turns, --iterations of them, and ratios are taken within each round. "strict is":
    how many times as fast as the contender the strict run is.

    "of limit": the matrix products' operations per second, of what the same cores do in registers in this arithmetic.
    Idle time of workers is "StarPU" while the data of a task are there, else "waiting": the graph has none.
    """
    if (model is None) == (checkpoint is None):
        raise click.UsageError("expected either --model or --checkpoint")
    record = shipped_record(model) if model else None
    configurations = [
        Configuration(
            model=record.name if record else str(checkpoint),
            batch_size=batch_size,
            seq_len=seq_len if seq_len is not None else record.seq_len if record else 64,
            partition=partition,
            scheduler=scheduler,
            sub_batches=sub_batches,
            reduction=reduction,
            ranks=ranks,
            iterations=iterations,
            warm_up=warm_up,
            matmul=matmul,
            blas_library=None if opponents else blas_library,
        )
        for batch_size in batch_sizes or [record.batch_size if record else 4]
        for ranks in rank_counts
        for partition in partitions
        for sub_batches in sub_batch_counts or [Partition.parse(partition).workers]
        for reduction in reductions
    ]
    results: list[Throughput] = []
    comparisons: list[Comparison] = []
    with (
        _ended_by_sigterm(),
        tempfile.TemporaryDirectory(prefix="starpullm-bench-") as directory,
        _progress(hidden=as_json) as progress,
    ):
        bar = progress.add_task("bench", total=len(configurations) * (iterations if opponents else 1))
        if checkpoint is None:
            assert record is not None
            checkpoint = Path(directory, "model.bin")
            generate_checkpoint(checkpoint, record.model, record.seed)
        for configuration in configurations:
            if opponents:
                comparison = compare(
                    configuration,
                    checkpoint.absolute(),
                    opponents,
                    blas_library=blas_library,
                    time_limit=time_limit,
                    progress=lambda: progress.advance(bar),
                )
                comparisons.append(comparison)
            else:
                results.append(bench(configuration, checkpoint.absolute(), time_limit))
                progress.advance(bar)
    if as_json:
        _print_json([result.as_json() for result in comparisons or results])
    elif opponents:
        _print_comparisons(comparisons)
    else:
        _print_throughputs(results)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the command as an exception, so that children are ended and generated files removed.

    Only where nothing native keeps Python from noticing the signal.
    """

    def leave(number: int, frame: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_throughputs(results: Sequence[Throughput]) -> None:
    first = results[0].configuration
    sizes = {result.configuration.batch_size for result in results}
    _out.print(
        f"{first.model}, B = {first.batch_size if len(sizes) == 1 else 'as given'}, T = {first.seq_len}, "
        f"{first.iterations} iterations after {first.warm_up}, {first.scheduler}, {results[0].simd_level}",
        markup=False,
    )
    if results[0].matmul != "strict":
        _out.print(f"matmuls by {results[0].matmul}: not strict", markup=False)
    _print_table(_bench_table(results))
    for result in results:
        low, high = result.matmul_limit_range
        busy = f"; limit between {low:.4g} and {high:.4g}: something else was running" if high > _QUIET * low else ""
        _out.print(f"{_bench_row(result, results)}: {_operation_shares(result)}{busy}", markup=False)


_BENCH_COLUMNS = 110
_NUM_OPERATIONS = 5
_QUIET = 1.25  # the most that repetitions of the limit differ by on a machine that does nothing else


def _bench_table(results: Sequence[Throughput]) -> Table:
    table = Table("configuration", box=None, pad_edge=False)
    for column in ("tokens/ms", "GFLOP/s", "limit", "with FMA", "of limit", "kernels", "StarPU", "waiting", "memory"):
        table.add_column(column, justify="right", no_wrap=True)
    for result in results:
        table.add_row(
            _bench_row(result, results),
            f"{result.tokens_per_ms:.4g}",
            f"{result.matmul_gflops:.4g}",
            f"{result.matmul_limit_gflops:.4g}",
            "-" if result.fma_peak_gflops is None else f"{result.fma_peak_gflops:.4g}",
            f"{result.fraction_of_limit:.1%}",
            f"{result.kernel_fraction:.1%}",
            f"{result.runtime_overhead_fraction:.1%}",
            f"{result.waiting_fraction:.1%}",
            f"{result.peak_rss_bytes / 2**20:.0f} MiB",
        )
    return table


def _bench_row(result: Throughput, results: Sequence[Throughput]) -> str:
    """Return what tells a result from the others."""
    several = len({of.configuration.batch_size for of in results}) > 1
    batch = f"B = {result.configuration.batch_size}, " if several else ""
    return f"{batch}{result.configuration}"


def _print_table(table: Table) -> None:
    Console(highlight=False, width=max(_out.width, _BENCH_COLUMNS)).print(table)


def _operation_shares(result: Throughput) -> str:
    total = sum(result.seconds_by_operation.values())
    longest = list(result.seconds_by_operation.items())[:_NUM_OPERATIONS]
    shares = [f"{operation} {seconds / total:.1%}" for operation, seconds in longest]
    others = total - sum(seconds for _, seconds in longest)
    return ", ".join([*shares, f"others {others / total:.1%}"])


def _print_comparisons(comparisons: Sequence[Comparison]) -> None:
    for comparison in comparisons:
        configuration = comparison.configuration
        _out.print(
            f"{configuration.model}, B = {configuration.batch_size}, T = {configuration.seq_len}, {configuration}, "
            f"{configuration.iterations} rounds",
            markup=False,
        )
        table = Table("contender", box=None, pad_edge=False)
        for column in ("tokens/ms", "least", "most", "strict is", "least", "most"):
            table.add_column(column, justify="right", no_wrap=True)
        for contender in comparison.contenders:
            speed, slower = contender.tokens_per_ms, contender.times_slower
            ratios = (f"{slower.median:.2f} x", f"{slower.low:.2f}", f"{slower.high:.2f}")
            table.add_row(
                contender.name,
                f"{speed.median:.4g}",
                f"{speed.low:.4g}",
                f"{speed.high:.4g}",
                *(ratios if contender.name != STRICT else ("", "", "")),
            )
        _print_table(table)
        for contender in comparison.contenders[1:]:
            _out.print(f"{contender.name}: {contender.description}", markup=False)
        for name, reason in comparison.left_out.items():
            _out.print(f"{name}: left out: {reason}", markup=False)
        _out.print(f"losses of the first steps differ by at most {comparison.loss_difference:.2g}")


@main.command("plot")
@click.argument("kind", type=click.Choice(plots.KINDS))
@click.argument("results", nargs=-1, required=True, metavar="RESULTS.json...", type=_PATH)
@click.option(
    "--output", required=True, type=_PATH, help="Picture, in the format that its suffix names: png, svg, pdf."
)
def plot_command(kind: str, results: Sequence[Path], output: Path) -> None:
    """Draw what `bench --json` printed: strong or weak scaling, or partitions by batch size.

    strong: tokens per millisecond by cores, with the batch the same. weak: with the batch per core the same.
    partitions: by batch size. The dotted line is where the matmuls alone would take all that the cores can do.
    """
    plots.save(plots.draw(kind, plots.read_results(results)), output)
    _out.print(f"saved {output}", markup=False)


# ---- checkpoint, tokenize ----


@main.group()
def checkpoint() -> None:
    """Make and show model checkpoints."""


@checkpoint.command("new")
@click.option("--layers", type=int, required=True, help="L")
@click.option("--heads", type=int, required=True, help="NH; divides the channels.")
@click.option("--channels", type=int, required=True, help="C")
@click.option("--vocab", type=int, required=True, help="V")
@click.option("--padded-vocab", type=int, help="Vp; by default V rounded up to a multiple of 128, as llm.c's.")
@click.option("--max-seq-len", type=int, required=True, help="maxT")
@click.option("--seed", type=click.IntRange(min=0), default=42, show_default=True)
@click.argument("out", type=_PATH)
def checkpoint_new(
    layers: int,
    heads: int,
    channels: int,
    vocab: int,
    padded_vocab: int | None,
    max_seq_len: int,
    seed: int,
    out: Path,
) -> None:
    """Write an untrained model with GPT-2's usual initialisation."""
    config = ModelConfig(
        max_seq_len=max_seq_len,
        vocab_size=vocab,
        num_layers=layers,
        num_heads=heads,
        channels=channels,
        padded_vocab_size=-(-vocab // 128) * 128 if padded_vocab is None else padded_vocab,
    )
    write_checkpoint(out, Checkpoint(config, dict(initial_parameters(config, seed))))
    click.echo(f"{out}: {num_parameters(config)} parameters")


@checkpoint.command("show")
@click.argument("file", type=_PATH)
@_json_option
def checkpoint_show(file: Path, as_json: bool) -> None:
    """Show a model's sizes and tensors."""
    config = checkpoint_config(file)
    sizes = {
        "max_seq_len": config.max_seq_len,
        "vocab_size": config.vocab_size,
        "padded_vocab_size": config.padded_vocab_size,
        "num_layers": config.num_layers,
        "num_heads": config.num_heads,
        "channels": config.channels,
        "num_parameters": num_parameters(config),
    }
    if as_json:
        _print_json({**sizes, "tensors": {name: list(shape) for name, shape in parameter_shapes(config).items()}})
        return
    for name, value in sizes.items():
        click.echo(f"{name}: {value}")
    for name, shape in parameter_shapes(config).items():
        click.echo(f"{name}: {' x '.join(map(str, shape))}")


@main.command()
@click.argument("text", type=_PATH)
@click.argument("out", type=_PATH)
@click.option("--tokenizer", type=_PATH, help="llm.c's gpt2_tokenizer.bin.")
def tokenize(text: Path, out: Path, tokenizer: Path | None) -> None:
    """Write a text file's tokens: GPT-2's where its vocabulary is there, else bytes."""
    encoding = text_encoding(tokenizer)
    try:
        content = text.read_text(encoding="utf-8")
    except OSError as error:
        raise FileError(f"{text}: can't be read: {error.strerror}", error.errno) from error
    except UnicodeDecodeError as error:
        raise FormatError(f"{text}: byte {error.start}: expected UTF-8 text, found {error.reason}") from error
    ids = encoding.encode(content)
    write_tokens(out, ids)
    click.echo(f"{out}: {ids.size} tokens, {encoding.name}, vocabulary {encoding.vocab_size}")


# ---- demo ----


@main.command("demo")
@click.option("--output", type=_PATH, help="Folder for the results; by default a new one in the current folder.")
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
    _out.print(
        f"A GPT-2 of {num_parameters(config)} parameters ({config.num_layers} layers, {config.channels} channels) "
        f"learns Shakespeare's sonnets byte by byte: {steps} steps of {demo_run.BATCH_SIZE} x {demo_run.SEQ_LEN} "
        "tokens."
    )
    cores = inspect_machine().cores
    other_partition = "2x1" if cores > 1 else "1x1"

    def run(
        partition: str, sub_batches: int, save: Path | None, show: Callable[[StepReport], None]
    ) -> demo_run.DemoRun:
        with _progress(hidden=False) as progress:
            bar = progress.add_task(f"{partition}, {sub_batches} sub-batches", total=steps)

            def report(step: StepReport) -> None:
                progress.advance(bar)
                show(step)

            return demo_run.run(
                untrained, tokens, partition=partition, sub_batches=sub_batches, report=report, save=save
            )

    def show(step: StepReport) -> None:
        if step.step == 1 or step.step % 100 == 0:
            _out.print(f"  step {step.step:4}: loss {step.loss:.6f}")

    first = run("1x1", 1, trained, show)
    _out.print(f"1x1, 1 sub-batch: {first.tokens_per_ms:.2f} tokens/ms.")
    _out.print(f"saved and read back: {_bits(first.reloads)}")
    for prompt in ("Shall I", "When"):
        _out.print(f'\nThe model continues "{prompt}":\n', markup=False)
        text = demo_run.sample_text(trained, prompt, 56)
        _out.print("    " + text.replace("\n", "\n    "), markup=False)

    _out.print(f"\nThe same run on {other_partition} with 4 sub-batches:")
    second = run(other_partition, 4, None, lambda step: None)
    _out.print(f"{other_partition}, 4 sub-batches: {second.tokens_per_ms:.2f} tokens/ms.")
    same_losses = [a.tobytes() for a in first.losses] == [b.tobytes() for b in second.losses]
    same_state = first.state_sha256 == second.state_sha256
    _out.print(f"losses of all {steps} steps: {_bits(same_losses)}")
    _out.print(f"parameters, m and v after the last: {_bits(same_state)}, SHA-256 {second.state_sha256[:16]}…")
    _out.print(f"Results are in {folder.resolve()} ({time.perf_counter() - start:.0f} s).", markup=False)
    if not (first.reloads and same_losses and same_state):
        sys.exit(EXIT_DIFFERENT)


def _bits(same: bool) -> str:
    return "the same bits" if same else "DIFFERENT"


if __name__ == "__main__":
    main()
