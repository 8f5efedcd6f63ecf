"""Data that crosses ranks: StarPU-MPI's own count of messages and bytes is what the submitted tasks require.

The requirement is derived from the trace alone, by the rules of StarPU-MPI (``graph/work.py``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from starpullm.checks.cases import PROMISES, REPRODUCIBLE, TILES, Case, SuiteOptions
from starpullm.checks.check import Needs, StandaloneCheck, check
from starpullm.checks.check_context import StandaloneContext, captured_output, environment
from starpullm.checks.references import record_trainer
from starpullm.checks.result import Finding, Result
from starpullm.checks.training import STEPS, checkpoint_in, trace_steps
from starpullm.golden.records import shipped_record
from starpullm.graph.work import work_of
from starpullm.runtime import Runtime
from starpullm.schedules import number_of_pipelines
from starpullm.trace import Trace

_TINY = shipped_record("tiny")

_SEQUENCES = 6
"""Of each rank. So little crosses ranks that StarPU's sums of bytes, printed as binary32, are exact."""

_SUB_BATCHES = 3
"""Of each rank."""

_SEED = 1

_OF_RANK = re.compile(r"/rank(\d+)$")
_OF_SUB_BATCH = re.compile(r"#(\d+)$")


@dataclass(frozen=True)
class Sent:
    """What one rank sends: the number of messages, and the bytes by the rank that receives them."""

    messages: int
    sizes: Mapping[int, int]

    @classmethod
    def printed(cls, text: str, rank: int) -> Self | None:
        """Return what StarPU-MPI has printed of a rank at its end, with STARPU_MPI_STATS; None if it has not."""
        count = re.search(rf"\[starpu_comm_stats\]\[{rank}\] nb_sends: (\d+)", text)
        sizes = re.findall(rf"\[starpu_comm_stats\]\[{rank}:(\d+)\]\t(\d+)\.0+ B", text)
        return cls(int(count[1]), {int(receiver): int(size) for receiver, size in sizes}) if count else None


@check
class Transfers(StandaloneCheck):
    """Compare what each rank has sent with what its trace requires: no message more and none less."""

    family, unit = "dependencies", "messages"
    claim = "StarPU-MPI sends as many messages and bytes as the submitted tasks require"
    fault = "other messages were sent than the submitted tasks require"
    cannot_see = "whether the declarations are true (accesses, on one rank); the reduction redux"
    needs = Needs(ranks=(2, None), promises=REPRODUCIBLE)

    def cases(self, options: SuiteOptions, ranks: int) -> Iterator[Case]:
        """Yield a case for each reduction; so little is trained that StarPU's sums of bytes are exact."""
        yield from (Case(reduction=name) for name, promise in PROMISES.items() if promise in REPRODUCIBLE)
        yield Case(reduction="ordered", weight_gradient_tiles=TILES)
        if ranks - 1 <= _TINY.model.num_layers:
            yield Case(reduction="ordered", stages=ranks)
            yield Case(reduction="ordered", stages=ranks, schedule="1f1b", weight_gradient_tiles=TILES)
        if ranks % 2 == 0 and ranks > 2:
            yield from (Case(reduction=name, stages=2, schedule="1f1b") for name in ("ordered", "tree"))

    def run(self, context: StandaloneContext, case: Case) -> Result:
        """Train, end the runtime, and read what StarPU-MPI has counted; it goes on counting with the next runtime."""
        settings = {**case.settings, "sub_batches": _SUB_BATCHES, "keep_activations": False}
        with captured_output() as output:
            with environment(STARPU_MPI_STATS="1"), Runtime(comm=context.comm) as runtime:
                rank, ranks = runtime.rank, runtime.ranks
                record = replace(_TINY, batch_size=_SEQUENCES * number_of_pipelines(ranks, case.stages))
                checkpoint = checkpoint_in(context.directory / str(rank), _TINY)
                with record_trainer(runtime, record, checkpoint, trace=True, **settings) as trainer:
                    trace = trace_steps(trainer, _SEED)
            found = Sent.printed(output(), rank)
        expected = required_messages(trace, owners_of(trace, _SUB_BATCHES, case.stages), ranks)[rank]
        sentences = [*compare_sent(found, expected)]
        if case.stages == ranks:
            sentences += compare_sent(found, sent_by_stage(rank, ranks, max(1, case.weight_gradient_tiles)))
        findings = [Finding(sentence) for sentence in sentences]
        return self.result(compared=expected.messages, findings=findings, note=f"sent by rank {rank}")


def compare_sent(found: Sent | None, expected: Sent) -> Iterator[str]:
    """Yield a sentence for each count that differs."""
    if found is None:
        yield "found no count of messages in StarPU-MPI's output, expected one with STARPU_MPI_STATS"
        return
    if found.messages != expected.messages:
        yield f"found {found.messages} messages sent, expected {expected.messages}"
    for receiver in sorted({*found.sizes, *expected.sizes}):
        size, required = found.sizes.get(receiver, 0), expected.sizes.get(receiver, 0)
        if size != required:
            yield f"found {size} bytes sent to rank {receiver}, expected {required}"


def sent_by_stage(stage: int, stages: int, tiles: int) -> Sent:
    """Return what a stage sends: activations up, gradients down, wte's value and its sum, and the mean loss."""
    config = _TINY.model
    boundary = 4 * _SEQUENCES // _SUB_BATCHES * _TINY.seq_len * config.channels
    wte = 4 * config.padded_vocab_size * config.channels
    messages: list[tuple[int, int]] = []
    for neighbour in {stage - 1, stage + 1} & set(range(stages)):
        messages += [(neighbour, boundary)] * _SUB_BATCHES
    if stage == 0:
        messages += [(stages - 1, wte)]
    if stage == stages - 1:
        messages += [(0, wte), *[(0, 0)] * (tiles - 1), *((rank, 4) for rank in range(stage))]
    sizes = Counter[int]()
    for rank, size in messages:
        sizes[rank] += STEPS * size
    return Sent(STEPS * len(messages), sizes)


def owners_of(trace: Trace, sub_batches: int, stages: int | Sequence[int] = 1) -> dict[int, int]:
    """Return the owner of each handle: by its name, and of the others the rank whose update writes it.

    The trace is of whole steps, and the sub-batches are those of one rank. With stages, each handle belongs to the
    rank whose tasks write it first, or if none does read it.
    """
    if stages != 1:
        tasks = [task for task in trace if task.operation != "transfer"]
        accesses = [(access, task.rank) for task in reversed(tasks) for access in task.accesses]
        readers = {access.handle.id: rank for access, rank in accesses}
        return readers | {access.handle.id: rank for access, rank in accesses if access.mode.writes}
    owners = {}
    for handle in trace.handles:
        of_rank, of_sub_batch = _OF_RANK.search(handle.name), _OF_SUB_BATCH.search(handle.name)
        if of_rank:
            owners[handle.id] = int(of_rank[1])
        elif of_sub_batch:
            owners[handle.id] = int(of_sub_batch[1]) // sub_batches
        elif handle.name.startswith("mean_loss"):
            owners[handle.id] = 0
    for task in trace:
        if task.operation == "adamw_update":
            owners |= {access.handle.id: task.rank for access in task.accesses if access.mode.writes}
    return owners


def required_messages(trace: Trace, owners: Mapping[int, int], ranks: int) -> list[Sent]:
    """Return what each rank has to send for the submitted tasks, by the owner of each handle."""
    work = work_of(trace, np.array([owners.get(handle.id, 0) for handle in trace.handles]), ranks)
    messages, sizes = Counter[int](), [Counter[int]() for _ in range(ranks)]
    for source, receiver, size in zip(work.source.tolist(), work.rank.tolist(), work.bytes.tolist(), strict=True):
        if source >= 0:
            messages[source] += 1
            sizes[source][receiver] += size
    return [Sent(messages[rank], sizes[rank]) for rank in range(ranks)]
