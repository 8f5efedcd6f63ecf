"""Training with a memory limit and a disk, which is damaged in the end: the bits are llm.c's, or the damage is told."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from starpullm.checks.cases import Case, SuiteOptions
from starpullm.checks.check import Needs, StandaloneCheck, check
from starpullm.checks.check_context import StandaloneContext, environment, is_in_memory
from starpullm.checks.leaks import bytes_on_node
from starpullm.checks.parity import Parity
from starpullm.checks.references import record_trainer
from starpullm.checks.result import Finding, Result
from starpullm.checks.training import checkpoint_in, local_batch
from starpullm.errors import InvalidArgumentError, RuntimeFailureError
from starpullm.golden.records import shipped_record
from starpullm.machine import machine_info
from starpullm.options import OFFLOAD_PLANS
from starpullm.runtime import Runtime

RECORD = "small"
"""The first record with data that are large enough to move."""

PLACES = {"ahead": ("2x1", "8M"), "lru": ("1x2", "12M")}
"""A partition for each plan, and a limit a little above the smallest. Without parallel workers both take two."""

_QUIET_SECONDS = 0.5
"""Without a write: a disk writes one of these data in milliseconds."""


@check
class Offloading(StandaloneCheck):
    """Compare with a golden record while data move to a disk; then damage their file and train on."""

    family, unit = "memory", "tensors"
    claim = "data on a disk keep llm.c's bits, memory has what the next step needs, and damaged data are reported"
    fault = "with a memory limit and a disk, training goes wrong"
    cannot_see = "how much memory is used within a step"
    needs = Needs(ranks=(1, 1))

    def cases(self, options: SuiteOptions, ranks: int) -> Iterator[Case]:
        """Yield a case for each plan; where blocks share activations, gradients are invalidated after the last use."""
        for plan in OFFLOAD_PLANS:
            recompute = "attention" if plan == "ahead" else "none"
            yield Case(RECORD, sub_batches=2, reduction="ordered", what=plan, recompute=recompute, seed=options.seed)

    def run(self, context: StandaloneContext, case: Case) -> Result:
        """Train in a process that has no runtime."""
        partition, limit = PLACES[case.what]
        with environment(HWLOC_SYNTHETIC="numa:1 core:2 pu:1"):
            if not machine_info().starpu_max_contexts:
                partition = "2x1"
            try:
                runtime = Runtime(partition, offload=context.directory, memory_limit=limit, offload_plan=case.what)
            except InvalidArgumentError as error:
                if not is_in_memory(error):
                    raise
                return self.result(compared=0, undecided=str(error))
            with runtime:
                return self._run(runtime, context.directory, case)

    def _run(self, runtime: Runtime, directory: Path, case: Case) -> Result:
        record = shipped_record(case.record)
        checkpoint = checkpoint_in(directory, record)
        compared = Parity().compare(record, runtime, checkpoint, case)
        written, read = runtime.offloaded()
        findings = list(compared.findings)
        if not written or not read:
            findings.append(Finding(f"{written} bytes were written and {read} read, expected some of both"))
        options = {"keep_activations": case.keeps_activations, "trace": True, **case.settings}
        with record_trainer(runtime, record, checkpoint, **options) as trainer:
            trainer.step(*local_batch(trainer, case.seed, 0))
            sizes = {handle.name: handle.bytes for handle in trainer.trace().handles}
            kept, least = ("params/", "m/", "v/") if runtime.drops else ("",), 1 << 16  # what is smaller never moves
            moving = sum(size for name, size in sizes.items() if size >= least and name.startswith(kept))
            staying = sum(size for size in sizes.values() if size < least)
            for node, most in enumerate((moving + staying, moving)):
                if (used := bytes_on_node(node, most)) > most:
                    findings.append(Finding(f"after a step StarPU has {used} bytes on node {node}, expected {most}"))
            wait_until_written(runtime)
            damage(directory)
            try:
                trainer.step(*local_batch(trainer, case.seed, 1))
                findings.append(Finding("damaged data were used, expected a failure"))
            except RuntimeFailureError:
                pass
        undecided = "" if compared.compared else compared.sentence
        return self.result(compared=compared.compared, findings=findings, undecided=undecided)


def unnamed_files(directory: Path) -> Iterator[BinaryIO]:
    """Open again the files without a name that this process has in a directory."""
    for descriptor in Path("/proc/self/fd").iterdir():
        path = str(descriptor.readlink()) if descriptor.is_symlink() else ""
        if path.startswith(str(directory.resolve())) and path.endswith("(deleted)"):
            with descriptor.open("r+b") as file:
                yield file


def wait_until_written(runtime: Runtime) -> None:
    """Wait for what a step still writes after its last task: it would take the place of the damage."""
    before = -1
    while (written := runtime.offloaded()[0]) > before:
        before = written
        time.sleep(_QUIET_SECONDS)


def damage(directory: Path) -> None:
    """Overwrite these files."""
    for file in unnamed_files(directory):
        file.write(os.urandom(1 << 16) * (os.fstat(file.fileno()).st_size >> 16))
