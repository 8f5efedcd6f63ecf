"""The text of a parity failure: which tensors differ, and how the first one does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from starpullm.checks.bits import BitDifference
from starpullm.checks.task_name import TaskName


@dataclass(frozen=True, slots=True)
class DigestDifference:
    """A tensor whose digest isn't the record's; ``step`` counts from 0, ``tensor`` is named like ``qkvw[1]``.

    For the mean loss (group ``loss``) the digests are its bits.
    """

    step: int
    group: str
    tensor: str
    expected_digest: str
    found_digest: str

    def __str__(self) -> str:
        return f"step {self.step}, {self.group}/{self.tensor}"


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """Everything that is known of the tensor that differs first in the order of execution.

    ``source`` says where the expected values are from, or why they aren't known; ``bits`` is None then. ``writers`` is
    the task that wrote the first differing element last; if the element isn't known, the last writer of each
    sub-batch's part. It is empty if no task wrote the tensor in that step.
    """

    difference: DigestDifference
    source: str
    bits: BitDifference | None
    writers: tuple[TaskName, ...]

    def lines(self) -> Iterator[str]:
        """Yield the lines that describe the difference."""
        yield f"first: {self.difference}"
        if self.bits is None:
            yield f"  expected digest {self.difference.expected_digest}, found {self.difference.found_digest}"
        else:
            yield from (f"  {line}" for line in self.bits.lines())
        yield f"  expected values: {self.source}"
        for writer in self.writers:
            worker = f"worker {writer.worker} of " if writer.worker >= 0 else ""  # a transfer has none
            yield f"  written last by {writer} on {worker}rank {writer.rank}"
        if not self.writers:
            yield "  written by no task of this step"
