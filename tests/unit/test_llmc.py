"""What is made of a run of llm.c: how it compares with a golden record, and which of its values are taken.

A run of llm.c itself needs a build of it; tests/native/test_llmc.py has one where there is one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from starpullm.checks import llmc_reference
from starpullm.checks.functions import Compared, uses_platform
from starpullm.checks.llmc_reference import LlmcReference, run_llmc
from starpullm.checks.references import GoldenReference
from starpullm.errors import InvalidArgumentError, RuntimeFailureError
from starpullm.golden.records import GoldenRecord

from .plain_trainer import Floats, flip

LIBRARY = Path("/lib/libllmc.so")


def with_digest(record: GoldenRecord, group: str, tensor: str, digest: str) -> GoldenRecord:
    """Return a record with another digest in its first step."""
    step = record.steps[0]
    digests = {**step.digests, group: {**step.digests[group], tensor: digest}}
    return replace(record, steps=(replace(step, digests=digests), *record.steps[1:]))


@pytest.fixture
def values(strict: tuple[GoldenRecord, Path]) -> Floats:
    found = GoldenReference(*strict).expected_values(0, "grads", "fcw[1]").values
    assert found is not None
    return found.copy()


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> Callable[[Floats | None], None]:
    """Return a function that sets what llm.c computes when it is run again; None: it fails."""

    def compute(array: Floats | None) -> None:
        def train(library: Path, case: GoldenRecord, checkpoint: Path, wanted: tuple[int, str, str]) -> Floats:
            assert (library, wanted) == (LIBRARY, (0, "grads", "fcw[1]"))
            if array is None:
                raise RuntimeFailureError("it crashed")
            return array

        monkeypatch.setattr(llmc_reference, "train_llmc", train)

    return compute


def test_tensors_with_other_bits_are_counted(strict: tuple[GoldenRecord, Path]) -> None:
    record, checkpoint = strict
    assert LlmcReference(LIBRARY, record, checkpoint, record).differences() == 0
    other = with_digest(with_digest(record, "m", "wte", "0" * 32), "v", "wpe", "0" * 32)
    assert LlmcReference(LIBRARY, record, checkpoint, other).differences() == 2


@pytest.mark.parametrize(
    ("changed", "doubt"),
    [
        (False, ", which has the golden record's bits"),
        (True, "; 1 of its tensors differ from the golden record's: was it built as docs/numerics.md says?"),
    ],
)
def test_values_of_the_same_bits_are_taken_with_the_doubt_that_there_is(
    strict: tuple[GoldenRecord, Path],
    values: Floats,
    again: Callable[[Floats | None], None],
    changed: bool,
    doubt: str,
) -> None:
    record, checkpoint = strict
    computed = with_digest(record, "m", "wte", "0" * 32) if changed else record
    again(values)
    found = LlmcReference(LIBRARY, record, checkpoint, computed).expected_values(0, "grads", "fcw[1]")
    assert found.source == f"llm.c in /lib/libllmc.so{doubt}"
    assert found.values is not None
    assert np.array_equal(found.values, values)


def test_values_of_other_bits_are_not_taken(
    strict: tuple[GoldenRecord, Path], values: Floats, again: Callable[[Floats | None], None]
) -> None:
    record, checkpoint = strict
    reference = LlmcReference(LIBRARY, record, checkpoint, record)
    flip(values, 3, 4)
    again(values)
    found = reference.expected_values(0, "grads", "fcw[1]")
    assert found.values is None
    assert found.source == f"{reference.name} had other bits when it was run again, so it can't be a reference"
    again(None)
    found = reference.expected_values(0, "grads", "fcw[1]")
    assert found.values is None
    assert found.source == f"{reference.name}, run again for the values, failed: it crashed"


BOTH, OWN, PLATFORM, NEITHER = ((0, 0), (0, 2), (1, 0), (1, 2))
"""In how many elements a tensor isn't what the library's own function gives, and not what libm's gives."""


@pytest.mark.parametrize(
    ("found", "platform"), [([BOTH] * 3, False), ([BOTH, OWN, OWN], False), ([BOTH, PLATFORM, BOTH], True), ([], False)]
)
def test_functions_are_libms_if_only_these_explain_all_values(found: list[tuple[int, int]], platform: bool) -> None:
    assert uses_platform(LIBRARY, [Compared("expf", "activations/att", 9, *counts) for counts in found]) is platform


def test_functions_of_neither_kind_or_of_both_are_refused() -> None:
    strange, own, other = (
        Compared(f"f{n}", "params/wpe", 9, *digests) for n, digests in enumerate((NEITHER, OWN, PLATFORM))
    )
    counts = "aren't those of the correctly rounded function and"
    expected = "expected all functions correctly rounded or all of this machine's libm: was it built as docs/"
    sentence = f"{LIBRARY}: found f0 (of 9 elements of params/wpe, 1 {counts} 2 not those of this machine's libm), "
    for compared in ([strange], [own, strange], [other, own, strange]):
        with pytest.raises(InvalidArgumentError, match=re.escape(sentence + expected)):
            uses_platform(LIBRARY, compared)
    with pytest.raises(InvalidArgumentError, match=r"found f2 \(.*\) and f1 \(of 9 elements of params/wpe, 0 aren't"):
        uses_platform(LIBRARY, [own, other])


class Ranks:
    """A communicator of several ranks, of which this is one."""

    def __init__(self, rank: int, sent: object = None) -> None:
        self.rank, self.sent = rank, sent

    def Get_rank(self) -> int:  # noqa: N802  # the name of MPI
        return self.rank

    def bcast(self, value: object) -> object:
        self.sent = value if self.rank == 0 else self.sent
        return self.sent


def test_a_missing_library_is_refused_on_all_ranks(strict: tuple[GoldenRecord, Path], tmp_path: Path) -> None:
    record, checkpoint = strict
    library = tmp_path / "missing.so"
    sentence = f"{library}: no such file, expected a shared object with llm.c's functions"
    first: Any = Ranks(0)
    with pytest.raises(InvalidArgumentError) as refused:
        run_llmc(library, record, checkpoint, tmp_path, first)
    assert (str(refused.value), str(first.sent)) == (sentence, sentence)
    second: Any = Ranks(1, first.sent)
    with pytest.raises(InvalidArgumentError, match="no such file"):
        run_llmc(library, record, checkpoint, tmp_path, second)


def test_the_other_ranks_get_the_first_ones_reference(strict: tuple[GoldenRecord, Path], tmp_path: Path) -> None:
    reference = LlmcReference(LIBRARY, strict[0], strict[1], strict[0])
    other: Any = Ranks(1, reference)
    assert run_llmc(tmp_path / "missing.so", *strict, tmp_path, other) is reference


def test_llmc_is_run_once_for_a_library_and_a_record(
    strict: tuple[GoldenRecord, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, checkpoint = strict
    library = tmp_path / "libllmc.so"
    runs: list[tuple[object, ...]] = []
    library.write_bytes(b"one")
    steps: list[dict[str, Any]] = [
        {"mean_loss": s.mean_loss, "mean_loss_bits": s.mean_loss_bits, **s.digests, "platform_functions": number > 0}
        for number, s in enumerate(record.steps)
    ]

    def train(*arguments: object) -> list[dict[str, Any]]:
        runs.append(arguments)
        return steps

    monkeypatch.setattr(llmc_reference, "train_llmc", train)
    reference = run_llmc(library, record, checkpoint, tmp_path)
    assert reference.differences() == 0
    assert reference.platform_functions, "the last step says so"
    assert (reference.library, reference.case, reference.checkpoint) == (library, record, checkpoint)
    assert run_llmc(library, record, checkpoint, tmp_path) == reference
    assert runs == [(library, record, checkpoint)]
    library.write_bytes(b"two")
    run_llmc(library, record, checkpoint, tmp_path)
    assert len(runs) == 2
