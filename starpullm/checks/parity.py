"""Bitwise parity: every tensor of every step of a run is compared with llm.c's, without tolerance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.bits import bits_of, compare_bits
from starpullm.checks.cases import Case, Promise, SuiteOptions, find_record, pipeline_cases, record_cases, sharing_cases
from starpullm.checks.check import Check, Needs, check
from starpullm.checks.check_context import CheckContext
from starpullm.checks.execution_order import execution_order
from starpullm.checks.llmc_reference import run_llmc
from starpullm.checks.references import (
    ExpectedValues,
    GoldenReference,
    Reference,
    of_arithmetic,
    plain_model,
    record_trainer,
    why_not_comparable,
)
from starpullm.checks.result import MAX_LISTED, Finding, Outcome, Result
from starpullm.checks.training import local_sequences
from starpullm.data.generator import generate_tokens
from starpullm.errors import InvalidArgumentError
from starpullm.golden.plain import PlainModel
from starpullm.golden.records import GoldenRecord, layer_name, tensor_digest
from starpullm.instruments import Instruments
from starpullm.options import REDUCTIONS, SCHEDULES
from starpullm.runtime import Runtime
from starpullm.schedules import number_of_pipelines
from starpullm.trace import TaskRecord
from starpullm.trainer import Trainer


class TensorDifference(NamedTuple):
    """A tensor whose digest isn't the record's; ``step`` counts from 0, ``tensor`` is named like ``qkvw[1]``.

    For the mean loss (group ``loss``) the digests are its bits.
    """

    step: int
    group: str
    tensor: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"step {self.step}, {self.group}/{self.tensor}"


@dataclass
class _Found:
    """What rank 0 has compared and found; of the first tensor that differs also its values and last writers."""

    compared: int = 0
    differences: list[TensorDifference] = field(default_factory=list)
    values: NDArray[np.float32] | None = None
    writers: dict[str, TaskRecord] = field(default_factory=dict)
    evidence: dict[str, str] = field(default_factory=dict)
    kept: str = ""
    """Of which sub-batches activations were compared, if not of all."""
    facts: dict[str, Any] = field(default_factory=dict)


@check
class Parity(Check):
    """Train a record's steps, and compare all six groups of tensors and the mean loss after each with its digests.

    With fewer activation sets than sub-batches, a step leaves the activations of the last sub-batches alone. Those of
    the others are the plain model's, and the record's digest is still that of the whole tensor. If the functions are
    the platform's, these activations aren't compared.

    The text of a failure names the first tensor that differs in the order of execution, which is the nearest to the
    cause, with its first element, the task that wrote it last, and where the expected values are from.
    """

    family, unit = "parity", "tensors"
    claim = "every tensor of every step has the bits of llm.c"
    fault = "tensors have other bits than llm.c's"
    cannot_see = "other sizes and settings than the records'; wrong declarations that happen to do no harm"
    needs: ClassVar = Needs(promises=(Promise.BITWISE,))

    def cases(self, options: SuiteOptions, ranks: int) -> Iterator[Case]:
        """Yield the cases of all records, also of those that only parity is checked with, in the first arithmetic.

        Others have a case for each of the first two records.
        """
        first, *others = options.arithmetics
        of_records = (
            record_cases(options, ranks, self.needs.promises, records=records)
            for records in (options.records, options.parity_records)
        )
        for case in chain(*of_records, sharing_cases(options, ranks), pipeline_cases(options, ranks)):
            yield replace(case, arithmetic=first)
        for record in options.records[:2] if REDUCTIONS[0] in options.reductions else ():
            case = Case(
                record,
                sub_batches=max(options.sub_batches(record, ranks), default=0),
                reduction=REDUCTIONS[0],
                seed=options.seed,
            )
            yield from (replace(case, arithmetic=other) for other in others if case.sub_batches)

    def run(self, context: CheckContext, case: Case) -> Result:
        """Compare with a golden record, or with llm.c, which runs once for each record."""
        record = find_record(case.record)
        checkpoint = context.checkpoint(record)
        if case.library:
            of_llmc = replace(record, arithmetic=case.arithmetic)
            reference = run_llmc(Path(case.library), of_llmc, checkpoint, context.directory, context.runtime.comm)
            record = reference.record
        else:
            reference = None
            record = of_arithmetic(record, case.arithmetic, checkpoint)
        runtime, compare = context.runtime, partial(self.compare, reference=reference, progress=context.progress)
        found = compare(record, runtime, checkpoint, case)
        if found.outcome is Outcome.FAILED and (runtime.ranks > 1 or runtime.partition != (1, 1)):
            sub_batches = case.sub_batches * number_of_pipelines(runtime.ranks, case.stages)
            alone = replace(case, sub_batches=sub_batches, stages=1, schedule=SCHEDULES[0])
            with runtime.interrupted(), Runtime("1x1") as one_worker:
                again = compare(record, one_worker, checkpoint, alone).outcome
            told = "passes: suspect the runtime" if again is Outcome.PASSED else "fails too: suspect a kernel"
            first, *others = found.findings
            first = replace(first, evidence={**first.evidence, "again on 1x1, in one process": told})
            return replace(found, findings=(first, *others))
        return found

    def compare(
        self,
        record: GoldenRecord,
        runtime: Runtime,
        checkpoint: Path,
        case: Case,
        *,
        reference: Reference | None = None,
        instruments: Instruments | None = None,
        progress: Callable[[], None] | None = None,
    ) -> Result:
        """Run a record's steps on a runtime. Over ranks all ranks must call this, and all get the same result.

        The runtime is restarted if it hasn't the record's arithmetic, or the reference's elementary functions.
        ``checkpoint`` is the record's model, from ``make_inputs``. Expected values come from the reference of rank 0;
        by default the record is a golden one. ``progress`` is called after each step. An `InvalidArgumentError` is
        raised if the ranks, or a rank's sub-batches, don't divide the record's batch.
        """
        local_sequences(runtime, record.batch_size, f"{record.name}: its", case.stages)
        reference = reference or GoldenReference(record, checkpoint)
        runtime.restart(platform_functions=reference.platform_functions, arithmetic=record.arithmetic)
        undecided = why_not_comparable(runtime)
        found = _Found()
        if not undecided:
            with record_trainer(
                runtime,
                record,
                checkpoint,
                keep_activations=case.keeps_activations,
                trace=True,
                instruments=instruments,
                **case.settings,
            ) as trainer:
                found = _comparison(record, checkpoint, trainer, case).run(progress)
            if found.differences:  # only rank 0 has any
                _describe_first(record, reference, found, case.sub_batches * trainer.pipelines)
            if runtime.comm:
                found = runtime.comm.bcast(found)
        evidence = [found.evidence, *[{}] * MAX_LISTED]  # of the first one alone
        findings = [
            Finding("other bits", labelled, where=str(difference), kind="differs")
            for difference, labelled in zip(found.differences[:MAX_LISTED], evidence, strict=False)
        ]
        return self.result(
            compared=found.compared,
            findings=findings,
            count=len(found.differences),
            undecided=undecided,
            note="" if undecided else f"{record.num_steps} steps against {reference.name}{found.kept}",
            record=record.name,
            reference=reference.name,
            partition=str(runtime.partition),
            scheduler=runtime.scheduler,
            ranks=runtime.ranks,
            **case.settings,
            matmul=runtime.matmul,
            platform_functions=runtime.platform_functions,
            steps=0 if undecided else record.num_steps,
            first=findings[0].where if findings else "",
            **found.facts,
        )


@check
class ParityWithLlmc(Parity):
    """The same comparison with llm.c itself, which trains on this machine with the record's model and tokens."""

    claim = "every tensor of every step has the bits that llm.c itself computes here"
    cannot_see = "what llm.c itself does wrong"
    without_cases = "there is no llm.c: --starpullm-llmc-library names one"

    def cases(self, options: SuiteOptions, ranks: int) -> Iterator[Case]:
        """Yield the same cases, if there is an llm.c."""
        library = str(options.llmc_library or "")
        for case in super().cases(options, ranks):
            if library and case.arithmetic == options.arithmetics[0]:
                yield replace(case, library=library)

    def run(self, context: CheckContext, case: Case) -> Result:
        """Compare with llm.c, which the case has to name."""
        if not case.library:
            raise InvalidArgumentError("library: found none, expected a shared object of llm.c")
        return super().run(context, case)


@dataclass
class _RecordComparison:
    """The steps of a record on a trainer, compared on rank 0.

    ``plain`` is the record's model there, if the trainer can't give the activations of all sub-batches back.
    """

    record: GoldenRecord
    trainer: Trainer
    case: Case
    plain: PlainModel | None
    found: _Found = field(default_factory=_Found)

    def run(self, progress: Callable[[], None] | None) -> _Found:
        """Train on a rank's own sequences."""
        record, trainer, found = self.record, self.trainer, self.found
        comm = trainer.runtime.comm
        own = local_sequences(trainer.runtime, record.batch_size, "the", self.case.stages)
        for number in range(record.num_steps):
            batch = generate_tokens(record.seed, number, record.batch_size, record.seq_len, record.model.vocab_size)
            trainer.clear_trace()
            loss = trainer.step(*(ids[own] for ids in batch))
            if self.plain:
                self.plain.step(*batch)
            known = len(found.differences)
            for difference, values in self._differences(number, loss):
                if not found.differences:
                    found.values = values
                found.differences.append(difference)
            first = found.differences[0] if found.differences and not known else None
            if comm:  # all ranks have to name the tasks that they ran
                first = comm.bcast(first)
            if first is not None:
                found.writers = _last_writers(trainer, first)
            if progress:
                progress()
        return found

    def _differences(self, number: int, loss: np.float32) -> Iterator[tuple[TensorDifference, NDArray[np.float32]]]:
        """Yield the differences after a step with their values, and count the tensors; nothing on ranks above 0."""
        trainer, step = self.trainer, self.record.steps[number]
        drops = trainer.runtime.drops and not self.case.keeps_activations
        for group, tensor, layer in execution_order(self.record.model.num_layers):
            dropped = drops and (group == "grads" or group.startswith("activation"))
            if dropped or not self.case.can_read(group, tensor, layer):
                continue
            values = self._values(group, tensor, layer)
            if values is None:
                continue
            self.found.compared += 1
            name = layer_name(tensor, layer)
            expected, digest = step.digests[group][name], tensor_digest(values)
            if digest != expected:
                yield TensorDifference(number, group, name, expected, digest), values
        if trainer.runtime.rank == 0 and bits_of(loss) != step.mean_loss_bits:
            yield TensorDifference(number, "loss", "mean_loss", step.mean_loss_bits, bits_of(loss)), np.array(loss)

    def _values(self, group: str, tensor: str, layer: int | None) -> NDArray[np.float32] | None:
        """Return a tensor, on rank 0; sub-batches whose activations the trainer has no more are the plain model's."""
        is_partial = group.startswith("activation") and bool(self.found.kept)
        parts = self.trainer.kept_sequences(group, tensor) if is_partial else []
        if not parts:
            values = self.trainer.tensor(group, tensor, layer)
            return None if self.trainer.runtime.rank > 0 else values
        whole = None if self.plain is None else self.plain.tensor(group, tensor, layer).copy()
        for part in parts:
            values = self.trainer.tensor(group, tensor, layer, sequences=part)
            if whole is not None:
                whole[part] = values
        return whole


def _comparison(record: GoldenRecord, checkpoint: Path, trainer: Trainer, case: Case) -> _RecordComparison:
    """Return a comparison, before the first step."""
    comparison = _RecordComparison(record, trainer, case, None)
    kept = trainer.kept_sequences("activations", "encoded")[0]
    num_kept = (kept.stop - kept.start) * trainer.sub_batches // trainer.batch_size
    if num_kept < trainer.sub_batches:
        comparison.found.kept = f", activations of the last {num_kept} of {trainer.sub_batches} sub-batches"
        if trainer.runtime.platform_functions:  # which the plain model hasn't
            comparison.found.kept = ", no activations"
        elif trainer.runtime.rank == 0:
            comparison.plain = plain_model(record, checkpoint)
    return comparison


def _last_writers(trainer: Trainer, difference: TensorDifference) -> dict[str, TaskRecord]:
    """Return the last task of this step that wrote each of a tensor's buffers, by the buffer's name.

    Every rank has recorded all tasks, but it knows the workers of its own tasks only.
    """
    group = difference.group
    writers = trainer.trace().last_writers(difference.tensor if group == "loss" else f"{group}/{difference.tensor}")
    if not trainer.runtime.comm:
        return writers
    of_ranks = trainer.runtime.comm.allgather(writers)
    return {name: of_ranks[task.rank][name] for name, task in writers.items()}


def _describe_first(record: GoldenRecord, reference: Reference, found: _Found, num_sub_batches: int) -> None:
    """Add what is known of the tensor that differs first: its first element, and which tasks wrote it last.

    If the element isn't known, the last writer of each sub-batch's part is named.
    """
    first, values = found.differences[0], found.values
    assert values is not None
    if first.group == "loss":
        bits = np.array(int(first.expected, 16), np.uint32)
        expected = ExpectedValues(bits.view(np.float32), "the record's")
    else:
        expected = reference.expected_values(first.step, first.group, first.tensor)
    compared = None if expected.values is None else compare_bits(expected.values.reshape(values.shape), values)
    writers = sorted(found.writers.items(), key=lambda entry: entry[1].id)  # buffers with their last tasks
    if not first.group.startswith("activation"):
        writers = writers[-1:]  # parameters and their gradients have no parts by sub-batch
    elif compared is not None:
        part = compared.position[0] * num_sub_batches // record.batch_size
        writers = [(name, task) for name, task in writers if name.endswith(f"#{part}")]
    if compared is None:
        found.evidence = {"expected digest": first.expected, "found digest": first.found}
    else:
        found.evidence, found.facts = compared.evidence(), compared.facts()
    found.evidence["expected values"] = expected.source
    workers = (f"worker {task.worker} of " if task.worker >= 0 else "" for _, task in writers)  # a transfer has none
    named = [f"{task} on {worker}rank {task.rank}" for worker, (_, task) in zip(workers, writers, strict=True)]
    found.evidence["written last by"] = "; ".join(named) or "no task of this step"
