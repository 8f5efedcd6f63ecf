"""What runs in the processes of a variant: measurements of a workload, in all of which the same steps are run."""

from __future__ import annotations

import resource
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from starpullm.errors import FormatError, InvalidArgumentError, MissingDependencyError, StarpullmError
from starpullm.graph.merge import is_kernel
from starpullm.graph.waits import recorded_waits
from starpullm.machine import processor, simd_level
from starpullm.options import ARITHMETICS
from starpullm.processes import Comm
from starpullm.processes.progress import report_phase
from starpullm.processes.ranks import default_exit_status, guarded
from starpullm.runtime import Partition, Runtime, runtime_options
from starpullm.speed.attribution import attribute_time
from starpullm.speed.builds import digest_tensors, graph_cost, has_fixed_bits
from starpullm.speed.limit import matmul_flops, measure_peaks
from starpullm.speed.workload import MeasuredSteps, Workload, all_values, make_batches, run_steps
from starpullm.trainer import Trainer

STEP = "step"
"""The name of the quantity that isn't an operation."""

REFUSED = 2
"""The exit status of a rank if the workload isn't possible."""

REFUSALS: dict[str, type[StarpullmError]] = {
    kind.__name__: kind for kind in (InvalidArgumentError, FormatError, MissingDependencyError)
}
"""The errors that mean that the workload isn't possible."""

_PEAK_REPETITIONS = 3


@contextmanager
def serve(comm: Comm | None, workload: Workload, checkpoint: Path) -> Iterator[tuple[None, Callable[[str], Any]]]:
    """Answer requests.

    ``"throughput"``: the fields of a ``Throughput``. ``"turn"``: seconds by quantity. ``"first"``: a turn too, but what
    is the same in all turns. ``"peaks"``: repeated measurements of the limit of the workload's cores.
    """
    answers: dict[str, Callable[[], Any]] = {
        "throughput": lambda: _throughput(workload, checkpoint, comm),
        "first": lambda: _turn(workload, checkpoint, comm, is_first=True),
        "turn": lambda: _turn(workload, checkpoint, comm, is_first=False),
        "peaks": lambda: measure_peaks(workload.cores, comm, _PEAK_REPETITIONS)[workload.arithmetic],
    }
    yield None, lambda request: answers[request]()


@contextmanager
def open_trainer(workload: Workload, checkpoint: Path, comm: Comm | None, *, trace: bool) -> Iterator[Trainer]:
    """Provide this rank's trainer of a workload, in a runtime of its own; no step has been run yet."""
    report_phase("loading the model")
    with (
        guarded(comm, _exit_status),
        Runtime(workload.partition, workload.scheduler, comm, **runtime_options(workload)) as runtime,
        Trainer(runtime, checkpoint, **workload.of_each_rank, trace=trace) as trainer,
    ):
        yield trainer


def _exit_status(error: BaseException) -> int:
    return REFUSED if isinstance(error, tuple(REFUSALS.values())) else default_exit_status(error)


def _throughput(workload: Workload, checkpoint: Path, comm: Comm | None) -> dict[str, Any]:
    """Measure a workload; all ranks return the same.

    The limit is measured before StarPU starts and after it has ended, because its workers poll.
    """
    before = measure_peaks(workload.cores, comm, _PEAK_REPETITIONS)
    timed, trainer = run_measured(workload, checkpoint, comm, trace=False)
    peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    traced, _ = run_measured(workload, checkpoint, comm, trace=True)
    after = measure_peaks(workload.cores, comm, _PEAK_REPETITIONS)
    peaks = {arithmetic: measured + after[arithmetic] for arithmetic, measured in before.items()}
    own = peaks[workload.arithmetic] if any(peaks[workload.arithmetic]) else peaks[ARITHMETICS[0]]
    limit = statistics.median(own)
    step_seconds = timed.seconds / workload.iterations
    flops = matmul_flops(trainer.config, workload.batch_size, workload.seq_len)
    gflops = flops / step_seconds / 1e9
    return {
        "matmul": trainer.runtime.matmul,
        "matmul_flops": flops,
        "processor": processor(),
        "simd_level": simd_level(),
        "tokens_per_ms": workload.tokens / step_seconds / 1e3,
        "step_seconds": step_seconds,
        "traced_step_seconds": traced.seconds / workload.iterations,
        "matmul_gflops": gflops,
        "matmul_limit_gflops": limit,
        "matmul_limit_range": [min(own), max(own)],
        "fma_peak_gflops": statistics.median(peaks["fused"]) or None,
        "fraction_of_limit": gflops / limit,
        "peak_rss_bytes": sum(all_values(comm, peak_rss)),
        **_times(workload, traced),
    }


def run_measured(
    workload: Workload, checkpoint: Path, comm: Comm | None, *, trace: bool
) -> tuple[MeasuredSteps, Trainer]:
    """Return a workload's steps after its warm-up, as all ranks have run them, and the trainer, which is closed."""
    with open_trainer(workload, checkpoint, comm, trace=trace) as trainer:
        batches = make_batches(workload, trainer, workload.warm_up + workload.iterations)
        report_phase("warming up")
        for batch in batches[: workload.warm_up]:
            trainer.submit(*batch)
        trainer.wait()
        report_phase("running the iterations")
        return run_steps(trainer, batches[workload.warm_up :], trace=trace), trainer


def _times(workload: Workload, run: MeasuredSteps) -> dict[str, Any]:
    """Return what follows from the trace."""
    assert run.trace is not None
    workers = Partition.parse(workload.partition).workers
    return {
        **attribute_time(run.trace, run.begin_ns, run.end_ns, workers=workers, ranks=workload.ranks),
        "seconds_by_operation": {
            operation: seconds / workload.iterations for operation, seconds in run.trace.seconds_by_operation().items()
        },
        "waits": recorded_waits(run.trace) if workers > 1 and workload.ranks == 1 else {},
        "tasks_per_step": int(is_kernel(run.trace).sum()) / workload.iterations,
    }


def _turn(workload: Workload, checkpoint: Path, comm: Comm | None, *, is_first: bool) -> dict[str, Any]:
    """Run a turn; return seconds by quantity, or of the first turn what is the same in all turns.

    The step's is the least time of the turn's steps, each from the end of a step to the end of the next. An operation's
    is the sum over its tasks of the least time that each task has in these steps: a task is rarely interrupted in all.

    Every turn starts StarPU and loads the model anew: the physical pages that buffers and stacks get change the time of
    some operations by several percent, and must not be the same in all turns of a variant.
    """
    steps = workload.warm_up + workload.iterations
    with open_trainer(workload, checkpoint, comm, trace=True) as trainer:
        report_phase("running a turn")
        run = run_steps(trainer, make_batches(workload, trainer, steps), trace=True)
        assert run.trace is not None
        tasks = run.trace.tasks[is_kernel(run.trace)].reshape(steps, -1)
        operations = [run.trace.operations[number] for number in tasks["operation"][-1]]
        if is_first:
            return {
                "description": trainer.runtime.matmul,
                "losses": run.losses,
                "tasks": Counter(operations),
                "flops": matmul_flops(trainer.config, workload.batch_size, workload.seq_len),
                "cost": asdict(graph_cost(run.trace)),
                "digests": digest_tensors(trainer) if has_fixed_bits(workload) else {},
            }
        ends = tasks["end_ns"].max(axis=1)[workload.warm_up - 1 :]
        nanoseconds = Counter({STEP: int(np.diff(ends).min())})
        durations = (tasks["end_ns"] - tasks["start_ns"])[workload.warm_up :].min(axis=0)
        for operation, duration in zip(operations, durations.tolist(), strict=True):
            nanoseconds[operation] += duration
        return {name: duration * 1e-9 for name, duration in nanoseconds.items()}
