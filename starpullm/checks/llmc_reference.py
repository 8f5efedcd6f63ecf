"""llm.c itself as the reference: a shared object that the user names trains with a record's model, tokens and settings.

It runs in a child process, because llm.c ends its process on errors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from starpullm import errors
from starpullm.checks.functions import Compared, compare_step, uses_platform
from starpullm.checks.references import ExpectedValues
from starpullm.data.generator import generate_tokens
from starpullm.errors import InvalidArgumentError, RuntimeFailureError, StarpullmError
from starpullm.files.atomic import atomic_write
from starpullm.golden.llmc import LlmcModel
from starpullm.golden.records import TENSOR_GROUPS, GoldenRecord, split_layer, step_results, tensor_digest
from starpullm.options import ARITHMETICS
from starpullm.processes import Comm
from starpullm.processes.children import Child, Lost
from starpullm.processes.endings import Completed
from starpullm.processes.progress import report_phase
from starpullm.processes.service import Raised

LLMC_SECONDS = 900.0
"""Time limit of one run of llm.c."""


@dataclass(frozen=True)
class LlmcReference:
    """What llm.c computed on this machine; for values of tensors it is run again.

    ``case`` is the record whose model (``checkpoint``), tokens and settings were used. ``record`` is what llm.c
    computed with them, in the form of a golden record. With ``platform_functions`` it calls the platform's libm.
    """

    library: Path
    case: GoldenRecord
    checkpoint: Path
    record: GoldenRecord
    platform_functions: bool = False

    @property
    def name(self) -> str:
        """Name of the reference, for messages and reports."""
        return f"llm.c in {self.library}" + (", functions: the platform's libm" if self.platform_functions else "")

    def expected_values(self, step: int, group: str, tensor: str) -> ExpectedValues:
        """Run llm.c again up to a step and return a tensor's values."""
        try:
            values = train_llmc(self.library, self.case, self.checkpoint, (step, group, tensor))
        except StarpullmError as error:
            return ExpectedValues(None, f"{self.name}, run again for the values, failed: {error}")
        digest = self.record.steps[step].digests[group][tensor]
        if tensor_digest(values) != digest:
            return ExpectedValues(None, f"{self.name} had other bits when it was run again, so it can't be a reference")
        return ExpectedValues(values, f"{self.name}{self._doubt()}")

    def differences(self) -> int:
        """Return how many tensors have other bits than the golden record's."""
        return sum(
            digest != ours.digests[group][tensor]
            for golden, ours in zip(self.case.steps, self.record.steps, strict=True)
            for group, tensors in golden.digests.items()
            for tensor, digest in tensors.items()
        )

    def _doubt(self) -> str:
        """Return a phrase on whether this llm.c has the golden record's bits; empty if it needn't."""
        if self.platform_functions or self.record.arithmetic != ARITHMETICS[0]:
            return ""
        if not (different := self.differences()):
            return ", which has the golden record's bits"
        return f"; {different} of its tensors differ from the golden record's: was it built as docs/numerics.md says?"


def run_llmc(
    library: Path, record: GoldenRecord, checkpoint: Path, directory: Path, comm: Comm | None = None
) -> LlmcReference:
    """Train with llm.c in a child process, with a record's model, tokens and settings, and return the result.

    Over ranks all ranks must call it; rank 0 runs llm.c, and all get the same result or the same exception. The result
    is kept in the directory, so that llm.c isn't run again with the same library (docs/suite.md says how to build it)
    and record.
    """
    answer: LlmcReference | StarpullmError | None = None
    if comm is None or comm.Get_rank() == 0:
        try:
            answer = _reference(library, record, checkpoint, directory)
        except StarpullmError as error:
            answer = error
    if comm:
        answer = comm.bcast(answer)
    if not isinstance(answer, LlmcReference):
        assert answer is not None
        raise answer
    return answer


def _reference(library: Path, record: GoldenRecord, checkpoint: Path, directory: Path) -> LlmcReference:
    if not library.is_file():
        found = f"{library}: no such file" if library.name else "library: found none"
        raise InvalidArgumentError(f"{found}, expected a shared object with llm.c's functions")
    key = hashlib.sha256(library.read_bytes() + record.path.read_bytes()).hexdigest()[:16] + record.arithmetic
    path = directory / f"llmc-{key}.json"
    if not path.is_file():
        content = {
            **json.loads(record.path.read_text("utf-8")),
            "steps": train_llmc(library, record, checkpoint),
        }
        with atomic_write(path) as file:
            file.write(json.dumps(content).encode())
    *_, last = json.loads(path.read_text("utf-8"))["steps"]
    results = replace(GoldenRecord.load(path), arithmetic=record.arithmetic)
    return LlmcReference(library, record, checkpoint, results, last["platform_functions"])


def train_llmc(
    library: Path, record: GoldenRecord, checkpoint: Path, wanted: tuple[int, str, str] | None = None
) -> Any:
    """Run llm.c in a child process and return the steps; with ``wanted``, the values of a step's group's tensor.

    The steps are a record's, and say whether llm.c has called the platform's functions so far.
    """
    name = f"llm.c in {library}"
    arguments = {"library": library.absolute(), "record": record.path, "arithmetic": record.arithmetic}
    with Child(name, _train, {**arguments, "checkpoint": checkpoint, "wanted": wanted}) as child:
        reply = child.start(LLMC_SECONDS)
    if isinstance(reply, Raised) and hasattr(errors, reply.kind):
        raise InvalidArgumentError(reply.sentence)
    if isinstance(reply, Lost) and isinstance(reply.ending, Completed):
        raise RuntimeFailureError(f"{name}: ended its process before the end of its run: {reply.ending}")
    return reply.result()


# ---- In the child process ----


@contextmanager
def _train(
    comm: None, library: Path, record: Path, checkpoint: Path, arithmetic: str, wanted: tuple[int, str, str] | None
) -> Iterator[tuple[Any, Callable[[object], None]]]:
    """Train with llm.c, and give the steps of a record, or the values of the wanted tensor."""
    case = replace(GoldenRecord.load(record, with_results=False), arithmetic=arithmetic)
    model = LlmcModel(library, checkpoint)
    steps: list[dict[str, Any]] = []
    compared: list[Compared] = []
    for number in range(wanted[0] + 1 if wanted else case.num_steps):
        batch = generate_tokens(case.seed, number, case.batch_size, case.seq_len, case.model.vocab_size)
        loss = model.forward_backward(*batch)
        before = {
            group: dict(model.tensors(group))["wpe"].copy() for group in ("params", "m", "v")[: 3 if number else 1]
        }
        model.update(case, number + 1)
        report_phase("reading llm.c's tensors", number + 1)
        if not wanted:
            tensors = {group: dict(model.tensors(group)) for group in TENSOR_GROUPS}
            steps.append(step_results(loss, tensors))
            report_phase("comparing llm.c's functions", number + 1)
            compared += compare_step(tensors, before, batch[1], case, number + 1)
            steps[-1]["platform_functions"] = uses_platform(library, compared)
    if wanted:
        name, layer = split_layer(wanted[2])
        values = dict(model.tensors(wanted[1]))[name]
        yield values if layer is None else values[layer], lambda request: None
    else:
        yield steps, lambda request: None
