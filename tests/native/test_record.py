"""``starpullm record`` with the stand-in for llm.c: what it writes, and what it refuses.

It needs the checkout and a compiler.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from starpullm.golden.records import GoldenRecord, shipped_record

from .children import TWO_CORES, Finished, run_cli

StandIn = Callable[..., Path]
OWN = "--layers 3 --heads 3 --channels 15 --vocab 29 --batch-size 6 --seq-len 7 --steps 2 --seed 12".split()
TINY = (
    "--layers 2 --heads 2 --channels 16 --vocab 61 --padded-vocab 64 --max-seq-len 16 --batch-size 2 --seq-len 8"
    " --steps 3 --weight-decay 0"
).split()


def record(library: Path, out: Path, *options: object) -> Finished:
    return run_cli("record", "--llmc-library", library, *options, out)


def test_own_sizes(llmc_stand_in: StandIn, tmp_path: Path) -> None:
    """The record is one like those of the package, and training has its bits."""
    out = tmp_path / "mine.json"
    run = record(llmc_stand_in(), out, *OWN).check()
    made = GoldenRecord.load(out)
    tensors = sum(len(group) for step in made.steps for group in step.digests.values())
    assert run.stdout == f"{out}: {tensors} tensors over 2 steps\n"
    assert (made.name, made.batch_size, made.model.padded_vocab_size, made.model.max_seq_len) == ("mine", 6, 128, 7)
    parity = run_cli("parity", out, "--partition", "2x1", "--sub-batches", "all", environment=TWO_CORES).check()
    assert parity.stdout.splitlines()[-1] == f"parity: {4 * tensors} tensors over 8 steps, 0 differ"


def test_a_shipped_record_again(llmc_stand_in: StandIn, tmp_path: Path) -> None:
    """With the sizes of a shipped record it is the same file, apart from the libm fingerprint."""
    out = tmp_path / "tiny.json"
    record(llmc_stand_in(), out, *TINY).check()
    shipped = shipped_record("tiny")
    content = json.loads(out.read_text())
    assert content.pop("libm_fingerprint") == shipped.libm_fingerprint
    assert content == json.loads(shipped.path.read_text())


def test_other_bits_are_refused(llmc_stand_in: StandIn, tmp_path: Path) -> None:
    """Two ULPs in one gradient of a shipped record are enough, and an existing file is unchanged."""
    out = tmp_path / "mine.json"
    out.write_text("before")
    library = llmc_stand_in("OTHER_BITS")
    run = record(library, out, *OWN).check(2)
    assert run.stdout == ""
    assert run.stderr.startswith(f"Error: {library}: ")
    assert run.stderr.endswith(
        "of 570 tensors differ from the golden record tiny, expected none: was it built as docs/numerics.md says?\n"
    )
    assert out.read_text() == "before"
    assert list(tmp_path.iterdir()) == [out]


def test_a_library_that_ends(llmc_stand_in: StandIn, tmp_path: Path) -> None:
    run = record(llmc_stand_in("EXITS=3"), tmp_path / "mine.json", *OWN).check(4)
    assert "the process ended with exit status 3" in run.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--batch-size", "0"), "batch_size: expected a positive number, found 0"),
        (("--max-seq-len", "6"), "seq_len: found 7, expected at most max_seq_len = 6"),
        (("--heads", "2"), "channels: expected divisible by num_heads = 2, found 15"),
        (("--llmc-library", "none.so"), "none.so: no such file"),
    ],
)
def test_bad_options(llmc_stand_in: StandIn, tmp_path: Path, change: tuple[str, str], message: str) -> None:
    run = record(llmc_stand_in(), tmp_path / "mine.json", *OWN, *change).check(2)
    assert message in run.stderr
    assert not list(tmp_path.iterdir())
