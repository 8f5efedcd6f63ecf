"""``starpullm predict``: how long a step takes on workers and ranks that need not be here, and what it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import click

from starpullm.checks.result import json_value
from starpullm.commands import options
from starpullm.commands.main import refuse_ranks
from starpullm.commands.render import ERR, OUT, print_json
from starpullm.data.models import MODELS
from starpullm.files.checkpoint import checkpoint_config
from starpullm.files.model import ModelConfig
from starpullm.golden.records import SHIPPED_RECORDS, shipped_record
from starpullm.graph.on_paper import Network
from starpullm.options import training_options
from starpullm.predict.costs import Costs, MatmulSpeed, costs_of_run
from starpullm.predict.prediction import Prediction, predict
from starpullm.predict.recorded_steps import Recorded, measured_costs, record_placements
from starpullm.processes.lock import machine_lock
from starpullm.runtime import Partition
from starpullm.schedules import number_of_pipelines
from starpullm.speed.workload import Workload
from starpullm.traces.traced_run import load_run, save_run

_SEED = 1
_WAITS = 4
"""So many things that the step waits for are printed."""


@click.command(
    "predict",
    epilog=options.example(
        "starpullm predict --model gpt2-124m --partition 36x1 --gflops 10",
        "starpullm predict --model gpt2-124m --partition 12x3 --ranks 16 --network 10us,10GB/s --gflops 10",
        "starpullm predict --model small --partition 2x1 --validate",
    ),
)
@click.option(
    "--model",
    type=click.Choice(tuple(dict.fromkeys((*SHIPPED_RECORDS, *MODELS)))),
    help="Sizes of a shipped record or a model.",
)
@options.of_model
@click.option("--batch-size", type=int, show_default="one per sub-batch", help="Sequences per step on each rank.")
@click.option("--seq-len", type=int, show_default="64, or the model's longest", help="Tokens per sequence.")
@options.partition
@click.option("--sub-batches", type=int, show_default="one per worker", metavar="S", help=f"{options.SUB_BATCHES}.")
@options.settings
@options.scheduler
@click.option("--ranks", type=click.IntRange(min=1), default=1, help="Number of ranks.")
@click.option("--steps", type=int, default=1, help="Steps, submitted ahead.")
@click.option(
    "--network", metavar="LATENCY,BANDWIDTH", show_default="messages are free", help="Latency and bandwidth of a rank."
)
@click.option("--gflops", type=float, help="10^9 operations per second of a thread; only matmuls take time.")
@click.option(
    "--durations", type=options.PATH, metavar="FILE", help="Trace that has the durations of tasks, of any machine."
)
@click.option("--validate", is_flag=True, help="Measure what this machine can run, and print the errors.")
@click.option("--trace", type=options.PATH, metavar="FILE", help="Trace of the predicted steps, for `starpullm trace`.")
@options.time_limit
@options.as_json
def command(**values: Any) -> None:
    """Predict how long a step takes, and what it waits for.

    A model of the library's own task graph: no task is run. Tasks take as long as tasks of the same kind do here on all
    cores, unless --gflops or --durations is given; threads of a worker share its tasks without loss. Memory, caches
    and the order of submission aren't modelled.

    With --validate, 1x1, 2x1, 1x2 and two ranks are also measured here, as far as there are
    cores: "error" is that of the prediction, "of the model" what is left of it with each task's own duration.
    """
    refuse_ranks("--ranks says on how many to predict")
    run = SimpleNamespace(**values)
    options.expect_one(model=run.model, checkpoint=run.checkpoint)
    if (run.gflops is not None) + (run.durations is not None) + run.validate > 1:
        raise click.UsageError("expected at most one of --gflops, --durations and --validate")
    config = _config(run)
    workload = _workload(run, config)
    network = Network.parse(run.network) if run.network is not None else None
    costs, comparisons = _costs(run, config, workload)
    prediction, on_paper = predict(config, workload, costs, network)
    if run.as_json:
        print_json({**json_value(prediction), "validated": comparisons})
    else:
        _print(prediction, comparisons)
    if run.trace is not None:
        save_run(run.trace, on_paper)


def _config(run: SimpleNamespace) -> ModelConfig:
    if run.checkpoint is not None:
        return checkpoint_config(run.checkpoint)
    return MODELS[run.model] if run.model in MODELS else shipped_record(run.model).model


def _workload(run: SimpleNamespace, config: ModelConfig) -> Workload:
    sub_batches = Partition.parse(run.partition).workers if run.sub_batches is None else run.sub_batches
    return Workload(
        model=run.model or str(run.checkpoint),
        batch_size=(sub_batches if run.batch_size is None else run.batch_size)
        * number_of_pipelines(run.ranks, run.stages),
        seq_len=min(64, config.max_seq_len) if run.seq_len is None else run.seq_len,
        partition=run.partition,
        scheduler=run.scheduler,
        ranks=run.ranks,
        iterations=run.steps,
        warm_up=2,  # tasks are those of a plan only after an even number: see `same_tasks`
        **{**training_options(run), "sub_batches": sub_batches},
    )


def _costs(run: SimpleNamespace, config: ModelConfig, workload: Workload) -> tuple[Costs, Sequence[dict[str, Any]]]:
    """Return what tasks cost, and how far predictions with it are off."""
    if run.gflops is not None:
        return MatmulSpeed(run.gflops), ()
    if run.durations is not None:
        return costs_of_run(f"in {run.durations}", load_run(run.durations)), ()
    with options.model_file(run.checkpoint, config, _SEED) as checkpoint, machine_lock(ERR.print):
        costs = measured_costs(config, workload, checkpoint, run.time_limit)
        placements = record_placements(workload, checkpoint, run.time_limit) if run.validate else ()
        return costs, [_comparison(config, costs, recorded) for recorded in placements]


def _comparison(config: ModelConfig, costs: Costs, recorded: Recorded) -> dict[str, Any]:
    """Return a placement with its predicted and its measured step; errors are fractions of the measured time."""
    predicted, measured = predict(config, recorded.configuration, costs).prediction, recorded.measured_seconds
    return {
        "configuration": json_value(recorded.configuration),
        "predicted_seconds": predicted.step_seconds,
        "measured_seconds": measured,
        "error": predicted.step_seconds / measured - 1,
        "model_error": recorded.model_seconds / measured - 1,
        "name": str(recorded.configuration),
    }


def _print(prediction: Prediction, comparisons: Sequence[dict[str, Any]]) -> None:
    run = prediction.configuration
    OUT.print(f"{run.model}, B = {run.batch_size}, T = {run.seq_len}, {run}, {run.scheduler}, {run.iterations} steps")
    OUT.print(f"kernels     {prediction.costs}")
    OUT.print(f"messages    {prediction.network}")
    OUT.print(f"buffers     {prediction.bytes_on_a_rank / 2**20:.0f} MiB on the rank with most")
    OUT.print(f"step        {prediction.step_seconds:.4g} s, {prediction.tasks} tasks")
    OUT.print(f"efficiency  {prediction.efficiency:.1%} of the workers' time is in kernels on the busiest rank")
    OUT.print(f"bounds      kernels {prediction.work_seconds:.4g} s, longest path {prediction.path_seconds:.4g} s")
    waits = list(prediction.waits.items())
    shares = [f"{name} {share:.0%}" for name, share in waits[:_WAITS]]
    others = sum(share for _, share in waits[_WAITS:])
    OUT.print(f"waits for   {', '.join([*shares, f'others {others:.0%}'])}")
    for of_placement in comparisons:
        OUT.print(
            "{name:<30}  predicted {predicted_seconds:.4g} s, measured {measured_seconds:.4g} s, error {error:+.1%}, "
            "of the model {model_error:+.1%}".format(**of_placement)
        )
    beyond = "other placements are" if comparisons else "nothing was measured to compare with: this is"
    OUT.print(f"{beyond} a what-if")
