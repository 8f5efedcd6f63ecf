"""``starpullm debug-state``: compares a step with llm.c's debug state, within tolerances."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import click

from starpullm.checks.debug_state import check_debug_state, expected_losses
from starpullm.checks.result import Outcome
from starpullm.commands import options
from starpullm.commands.main import EXIT_DIFFERENT, all_ranks, guarded_ranks
from starpullm.commands.render import OUT, print_json, progress_bar
from starpullm.files.checkpoint import checkpoint_config
from starpullm.files.debug_state import read_debug_state
from starpullm.runtime import Runtime


@click.command(
    "debug-state",
    epilog=options.example("starpullm debug-state gpt2_124M_debug_state.bin --checkpoint gpt2_124M.bin"),
)
@click.argument("state_file", metavar="STATE.bin", type=options.PATH)
@click.option("--checkpoint", type=options.PATH, required=True, help="Checkpoint that STATE.bin was made from.")
@options.placement
@options.as_json
def command(**values: Any) -> None:
    """Compare a step with llm.c's debug state, within tolerances.

    STATE.bin holds logits, loss and gradients of one step, computed by PyTorch. With llm.c's gpt2_124M_debug_state.bin,
    the losses of ten steps are compared as well. The tolerances are those of llm.c's own test. `starpullm parity`
    compares bits instead.

    Exit status: 0 if all values are within the tolerances; 1 if some aren't; 2 for bad usage or input.
    """
    run = SimpleNamespace(**values)
    with all_ranks() as comm:
        state = read_debug_state(run.state_file, checkpoint_config(run.checkpoint), mmap=True)
        with (
            Runtime(run.partition, run.scheduler, comm, matmul=run.matmul, blas_library=run.blas_library) as runtime,
            guarded_ranks(comm),
            progress_bar(hidden=run.as_json) as progress,
        ):
            bar = progress.add_task("debug state", total=len(expected_losses(state)))
            result = check_debug_state(
                state,
                runtime,
                run.checkpoint,
                sub_batches=run.sub_batches,
                reduction=run.reduction,
                progress=lambda: progress.advance(bar),
            )
        if run.as_json:
            print_json(result.as_json())
        else:
            OUT.print("\n".join(result.describe()))
    if result.outcome is Outcome.FAILED:
        sys.exit(EXIT_DIFFERENT)
