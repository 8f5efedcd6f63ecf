"""Which cases a check has: the chosen records, numbers of sub-batches and reductions, as far as they suit it."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from starpullm.checks.execution_order import SHARED_ACTIVATIONS
from starpullm.errors import FileError
from starpullm.files.model import num_parameters
from starpullm.golden.records import SHIPPED_RECORDS, GoldenRecord, shipped_record
from starpullm.options import (
    ARITHMETICS,
    GRADIENT_BUFFERS,
    RECOMPUTATIONS,
    REDUCTIONS,
    SCHEDULES,
    WEIGHT_GRADIENTS,
    RuntimeConfiguration,
    TrainingOptions,
    training_options,
)

LIGHT_PARAMETERS = 10**7
"""Of a model whose tensors are kept twice."""

TILES = 3
"""Of a case with tiles: not a divisor of the rows of most tensors."""


class Promise(Enum):
    """What a reduction mode promises about the bits of its sums; the strongest promise first."""

    BITWISE = "bitwise"  # those of the golden run
    FIXED_BITS = "fixed bits"  # the same in every run, on any partition and number of ranks
    BOUNDED = "bounded"  # within the bound of a sum in any order


PROMISES: Mapping[str, Promise] = {
    "ordered": Promise.BITWISE,
    "tree": Promise.FIXED_BITS,
    "redux": Promise.BOUNDED,
}
"""The promise of each reduction mode of ``Trainer``."""

REPRODUCIBLE = (Promise.BITWISE, Promise.FIXED_BITS)


@dataclass(frozen=True)
class Case(TrainingOptions):
    """What a check is run with; each check uses some of the fields. ``sub_batches`` are those of one rank."""

    record: str = ""
    sub_batches: int = field(default=0, kw_only=True)
    reduction: str = field(default="", kw_only=True)
    what: str = ""
    """A kernel, for example."""
    seed: int = 1
    counts: Sequence[int] = ()
    """Numbers of sub-batches whose bits must be equal."""
    delays: int | None = None
    """The seed of delays in tasks."""
    library: str = ""
    """llm.c."""
    arithmetic: str = ARITHMETICS[0]
    devices: int | str = 1
    """Of the check that has some."""

    @property
    def settings(self) -> dict[str, Any]:
        """Return what its trainer is created with."""
        always = {"sub_batches": self.sub_batches or 1, "reduction": self.reduction or REDUCTIONS[0]}
        return training_options(self) | always

    @property
    def keeps_activations(self) -> bool:
        """Whether its trainer has memory for all activations, of all blocks and sub-batches."""
        return self.recompute == RECOMPUTATIONS[0] and self.schedule == SCHEDULES[0] and self.activation_sets == 0

    def can_read(self, group: str, tensor: str, layer: int | None) -> bool:
        """Return whether a tensor can be read after a step, of some sub-batches at least: layers don't share it."""
        match group:
            case "grads":
                return layer is None or self.weight_gradients == WEIGHT_GRADIENTS[0]
            case "activations":
                return self.keeps_activations or tensor not in SHARED_ACTIVATIONS[self.recompute]
            case "activation_grads":
                return self.keeps_activations or layer is None
        return True

    def __str__(self) -> str:
        counts = "_".join(map(str, self.counts)) or str(self.sub_batches or "")
        delays = "" if self.delays is None else f"delays{self.delays}"
        tiles = f"tiles{self.weight_gradient_tiles}" if self.weight_gradient_tiles else ""
        sets = f"sets{self.activation_sets}" if self.activation_sets else ""
        recompute = self.recompute.removeprefix(RECOMPUTATIONS[0])
        gradients = self.weight_gradients.removeprefix(WEIGHT_GRADIENTS[0])
        cut = [self.stages] if isinstance(self.stages, int) else self.stages
        stages = "" if self.stages == 1 else f"stages{'_'.join(map(str, cut))}-{self.schedule}"
        buffers = f"{self.gradient_buffers}buffers" if self.gradient_buffers != GRADIENT_BUFFERS[0] else ""
        fused = self.arithmetic.removeprefix(ARITHMETICS[0])
        devices = "" if self.devices == 1 else f"devices{self.devices}"
        parts = (counts, self.reduction, tiles, sets, recompute, gradients, stages, buffers, fused)
        return "-".join(filter(None, (Path(self.record).stem, *parts, self.what, devices, delays)))


class SuiteOptions(Protocol):
    """What the user has chosen: the options of a run of pytest."""

    seed: int
    llmc_library: Path | None
    records: Sequence[str]
    """Names of shipped ones, paths of others."""
    reductions: Sequence[str]
    arithmetics: Sequence[str]
    devices: int | str

    @property
    def parity_records(self) -> Sequence[str]:
        """The records that only parity is checked with."""

    def sub_batches(self, record: str, ranks: int = 1) -> list[int]:
        """Return the chosen numbers of sub-batches that divide each rank's part of a record's batch."""

    def configurations(self, ranks: int = 1) -> list[RuntimeConfiguration]:
        """Return every chosen placement."""

    @property
    def perturbing_configurations(self) -> list[RuntimeConfiguration]:
        """The placements of runs with delays."""


def record_cases(
    options: SuiteOptions,
    ranks: int,
    promises: Sequence[Promise],
    *,
    light: bool = False,
    records: Sequence[str] | None = None,
) -> Iterator[Case]:
    """Yield the cases of the chosen records, or of others, with a reduction that makes one of the promises.

    The last of the first record that has one with running sums follows once more, with `TILES` tiles.
    """
    last: Case | None = None
    for record in options.records if records is None else records:
        if light and num_parameters(find_record(record).model) > LIGHT_PARAMETERS:
            continue
        for sub_batches in options.sub_batches(record, ranks):
            # With one sub-batch there is nothing to reduce.
            modes = options.reductions if ranks * sub_batches > 1 else options.reductions[:1]
            for reduction in modes:
                if PROMISES[reduction] in promises:
                    yield (case := Case(record, sub_batches=sub_batches, reduction=reduction, seed=options.seed))
                    running_sums = PROMISES[reduction] is Promise.BITWISE and ranks * sub_batches > 1
                    if running_sums and (last is None or last.record == record):
                        last = case
    if last:
        yield replace(last, weight_gradient_tiles=TILES)


def sharing_cases(options: SuiteOptions, ranks: int) -> Iterator[Case]:
    """Yield cases whose blocks share memory, of the first record with a third block, which reuses the gradients' first.

    The last block, whose activations are still there, also has fewer activation sets than sub-batches.
    """
    for record in options.records if REDUCTIONS[0] in options.reductions else ():
        counts = options.sub_batches(record, ranks)
        if counts and find_record(record).model.num_layers > 2:
            case = Case(record, sub_batches=max(counts), reduction=REDUCTIONS[0], seed=options.seed)
            yield replace(case, recompute="attention")
            yield replace(case, recompute="block", activation_sets=min(2, case.sub_batches))
            if ranks == 1 and 1 in counts:
                yield replace(case, sub_batches=1, recompute="block", weight_gradients="reused")
            return


def pipeline_cases(options: SuiteOptions, ranks: int) -> Iterator[Case]:
    """Yield cases with a stage on each rank, of the first record with enough blocks: schedules, cuts and fewer sets.

    Of more ranks, each two are also one of several pipelines.
    """
    for record in options.records if REDUCTIONS[0] in options.reductions and ranks > 1 else ():
        counts, layers = options.sub_batches(record), find_record(record).model.num_layers
        if counts and layers + 1 >= ranks:
            case = Case(record, sub_batches=max(counts), reduction=REDUCTIONS[0], seed=options.seed, stages=ranks)
            yield case
            yield replace(case, schedule="1f1b")
            yield replace(case, activation_sets=min(2, case.sub_batches), recompute="block")
            cut = (layers - ranks + 2, *[1] * (ranks - 2), 0)
            yield replace(case, stages=cut, schedule="1f1b", weight_gradient_tiles=TILES)
            yield replace(case, schedule="zero-bubble", gradient_buffers="block")
            of_two = options.sub_batches(record, ranks // 2) if ranks > 2 and ranks % 2 == 0 else ()
            yield from (replace(case, sub_batches=count, stages=2, schedule="1f1b") for count in of_two[-1:])
            return


def one_record(options: SuiteOptions, ranks: int) -> Iterator[Case]:
    """Yield the first record whose batch the ranks divide: for what doesn't depend on the record."""
    known = [record for record in options.records if options.sub_batches(record, ranks)]
    yield from (Case(record, seed=options.seed) for record in known[:1])


def find_record(name: str) -> GoldenRecord:
    """Return the shipped record of this name, or else the record in the file of this name.

    A file that isn't a record or can't be read raises a `FormatError` or a `FileError`.
    """
    if name in SHIPPED_RECORDS:
        return shipped_record(name)
    if not name or not Path(name).exists():
        found = f"{name}: no such file" if name else "record: found none"
        known = f"expected one or the name of a shipped record: {', '.join(SHIPPED_RECORDS)}"
        raise FileError(f"{found}, {known}", errno.ENOENT, name)
    return GoldenRecord.load(name)
