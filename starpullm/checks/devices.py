"""Tasks on OpenCL devices: the bits are llm.c's wherever a task runs, and no byte moves that needn't."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from starpullm.checks.cases import TILES, Case, SuiteOptions
from starpullm.checks.check import Needs, StandaloneCheck, check
from starpullm.checks.check_context import StandaloneContext, environment
from starpullm.checks.parity import Parity
from starpullm.checks.references import record_trainer
from starpullm.checks.result import Finding, Result
from starpullm.checks.training import checkpoint_in, local_batch
from starpullm.golden.records import GoldenRecord, shipped_record
from starpullm.instruments import Instruments
from starpullm.machine import devices
from starpullm.runtime import DEFAULT_SCHEDULER, Runtime
from starpullm.trace import Trace


class Placement(NamedTuple):
    """A record, workers beside one device, the percentage of tasks that the device runs, and its memory in MiB."""

    record: str
    partition: str = "1x1"
    scheduler: str = DEFAULT_SCHEDULER
    percent: int | None = None
    memory: str | None = None


DRAWN: Final = 50

PLACEMENTS: Final = {
    "one worker": Placement("odd"),
    "two workers": Placement("tiny", "2x1", "dmdas"),
    "device alone": Placement("tiny", percent=100),
    "drawn": Placement("odd", percent=DRAWN),
    "evicting": Placement("small", memory="6"),
}
"""The last has little more memory than the largest task takes."""

STEPS: Final = 5
DRAWN_STEPS: Final = 20
"""So many that by chance every operation runs on both kinds."""

ON_WORKERS: Final = ("mean_loss", "report_loss")
"""Operations that no device runs: the host waits for their result."""


@check
class Devices(StandaloneCheck):
    """Compare with a golden record while a device runs some of the tasks, and count which, and what moves.

    By the trace, an operand is copied to a memory where it is read and its last value isn't yet. StarPU's own count
    differs by at most a tenth with one device, unless its memory is short.
    """

    family, unit = "memory", "tensors"
    claim = "on a worker or a device, a task has llm.c's bits, and only what is read elsewhere moves"
    fault = "with a device, training goes wrong"
    cannot_see = "how fast a device is"
    needs = Needs(ranks=(1, 1))
    without_cases = "--starpullm-devices is 0"

    def cases(self, options: SuiteOptions, ranks: int) -> Iterator[Case]:
        """Yield a case for each placement, if there are to be devices."""
        for what in PLACEMENTS if options.devices else ():
            yield replace(case_on(what, options.seed), devices=options.devices)

    def run(self, context: StandaloneContext, case: Case) -> Result:
        """Train in a process that has no runtime, if there is a device; a CPU counts if there is no other."""
        with environment(STARPU_OPENCL_ON_CPUS=os.environ.get("STARPU_OPENCL_ON_CPUS") if devices() else "1"):
            if not devices():
                return self.result(compared=0, undecided="no OpenCL device is found that StarPU can use")
            return self._run(context.directory, case)

    def _run(self, directory: Path, case: Case) -> Result:
        placement, record = PLACEMENTS[case.what], shipped_record(case.record)
        checkpoint = checkpoint_in(directory, record)
        instruments = Instruments(device_percent=placement.percent, device_seed=case.seed)
        with (
            environment(HWLOC_SYNTHETIC="numa:1 core:2 pu:1", STARPU_LIMIT_OPENCL_MEM=placement.memory),
            Runtime(placement.partition, placement.scheduler, devices=case.devices) as runtime,
        ):
            compared = Parity().compare(record, runtime, checkpoint, case, instruments=instruments)
            findings = [*compared.findings, *_watched(runtime, record, checkpoint, case, instruments)]
        return self.result(compared=compared.compared, findings=findings)


def case_on(placement: str, seed: int) -> Case:
    """Return the case of a placement; in tiles, as kernels get buffers from an offset on then."""
    record = PLACEMENTS[placement].record
    return Case(record, sub_batches=1, reduction="ordered", what=placement, seed=seed, weight_gradient_tiles=TILES)


def _watched(
    runtime: Runtime, record: GoldenRecord, checkpoint: Path, case: Case, instruments: Instruments
) -> Iterator[Finding]:
    """Train without reading tensors; yield operations on the wrong kind of worker, and steps that move too much."""
    placement, workers = PLACEMENTS[case.what], runtime.partition.workers
    ran: Counter[tuple[str, bool]] = Counter()
    latest: dict[int, set[bool]] = {}
    watched: dict[str, Any] = {"keep_activations": False, "trace": True, "instruments": instruments}
    with record_trainer(runtime, record, checkpoint, **watched) as trainer:
        for step in range(DRAWN_STEPS if placement.percent == DRAWN else STEPS):
            before = runtime.moved()
            trainer.clear_trace()
            trainer.step(*local_batch(trainer, case.seed, step))
            trace = trainer.trace()
            found = sum(runtime.moved()) - sum(before)
            ran.update((task.operation, task.worker >= workers) for task in trace)
            least = bytes_to_move(trace, workers, latest)
            if case.devices == 1 and placement.memory is None and abs(found - least) > least / 10:
                yield Finding(f"step {step}: {found} bytes moved, expected {least}")
    for operation in sorted({operation for operation, _ in ran}):
        on_worker, on_device = ran[operation, False], ran[operation, True]
        wanted = operation not in ON_WORKERS
        is_wrong = placement.percent is not None and bool(on_device) != wanted
        if is_wrong or (placement.percent == DRAWN and not on_worker):
            yield Finding(f"{operation}: {on_worker} tasks on workers and {on_device} on the device")


def bytes_to_move(trace: Trace, workers: int, latest: dict[int, set[bool]]) -> int:
    """Return how many bytes a trace's tasks need that aren't where they run.

    ``latest`` says where each handle's value is: on the device, elsewhere, or both.
    """
    moved = 0
    for handle in trace.handles:
        if handle.name.startswith(("inputs", "targets")):  # the host has written it since
            latest.pop(handle.id, None)
    for task in trace:
        on_device = task.worker >= workers
        for handle, mode in ((access.handle, access.mode) for access in task.accesses):
            has = latest.setdefault(handle.id, {False})
            if mode.reads and on_device not in has:
                moved += handle.bytes
                has.add(on_device)
            if mode.writes:
                latest[handle.id] = {on_device}
    return moved
