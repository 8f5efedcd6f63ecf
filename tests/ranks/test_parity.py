"""Several ranks have the bits of one process: llm.c's in `ordered`, those of as many sub-batches in `tree`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from starpullm.data.generator import generate_checkpoint, generate_tokens
from starpullm.files.tokens import write_tokens
from starpullm.golden.records import shipped_record
from starpullm.machine import inspect_machine
from starpullm.processes.endings import Completed, ExitedWith, Job, JobEnding
from starpullm.processes.job import run_job

TIME_LIMIT = 110.0
STEPS = 5


def run_cli(ranks: int | None, *arguments: object) -> Completed:
    """Run ``starpullm ARGUMENTS`` on several ranks, or None: without mpirun."""
    command = [sys.executable, "-m", "starpullm.commands", *map(str, arguments)]
    return run_job(Job(command, TIME_LIMIT, ranks)).completed()


@pytest.mark.parametrize(
    ("ranks", "name", "sub_batches", "last_line"),
    [
        (3, "odd", 1, "parity: 1080 tensors over 4 steps, 0 differ"),
        (4, "single", 2, "parity: 330 tensors over 3 steps, 0 differ"),
    ],
)
def test_golden_records(ranks: int, name: str, sub_batches: int, last_line: str) -> None:
    """Two ranks compare all records by a command of docs/reference.md, which test_documentation.py runs."""
    run = run_cli(ranks, "parity", "--sub-batches", sub_batches, shipped_record(name).path)
    assert run.reports[0].stdout.splitlines()[-1] == last_line
    assert [report.stdout for rank, report in run.reports.items() if rank > 0] == [""] * (ranks - 1)


def test_own_sizes() -> None:
    """Rank 0 trains the plain model for both, and its sentence is the only one."""
    sizes = "--layers 2 --heads 1 --channels 8 --vocab 9 --batch-size 4 --seq-len 5 --steps 2 --sub-batches 2".split()
    run = run_cli(2, "parity", *sizes)
    assert run.reports[0].stdout.splitlines()[-1] == "parity: 380 tensors over 2 steps, 0 differ"
    command = [sys.executable, "-m", "starpullm.commands", "parity", *sizes, "--learning-rate", "1e30"]
    outcome = run_job(Job(command, TIME_LIMIT, 2))
    assert isinstance(outcome, ExitedWith)
    assert outcome.status == 2
    assert "rank 0: step 1: found the loss nan, expected a finite one" in outcome.stderr


def test_ranks_without_copies_of_each_others_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would wait for ever for values that are sent once."""
    monkeypatch.setenv("STARPU_MPI_CACHE", "0")
    outcome = run_job(Job([sys.executable, "-m", "starpullm.commands", "parity", "tiny"], TIME_LIMIT, 2))
    assert isinstance(outcome, ExitedWith)
    assert outcome.status == 2
    assert "STARPU_MPI_CACHE: found 0, expected ranks that keep copies of each other's values" in outcome.stderr


def test_ranks_that_load_another_starpu(tmp_path: Path) -> None:
    """They are told, and compute the same."""
    built = Path(inspect_machine()["starpu_library"])
    (tmp_path / built.name).write_bytes(built.read_bytes() + b"\0")
    (tmp_path / built.name.rpartition(".0.0")[0]).symlink_to(built.name)  # its SONAME
    on_rank_1 = f'[ "$OMPI_COMM_WORLD_RANK" = 0 ] || export LD_LIBRARY_PATH={tmp_path}; exec "$0" "$@"'
    command = ["sh", "-c", on_rank_1, sys.executable, "-m", "starpullm.commands", "parity", "tiny"]
    run = run_job(Job(command, TIME_LIMIT, 2)).completed()
    assert run.reports[0].stdout.splitlines()[-1] == "parity: 570 tensors over 3 steps, 0 differ"
    said = rf"note: other libraries on some ranks: {built.name} is \w{{16}} on rank 0 and \w{{16}} on rank 1\n"
    assert re.search(said, run.stderr), run


def test_nothing_to_compare_is_refused() -> None:
    """No shipped record's batch can be shared by five ranks: that is bad usage, and no success."""
    outcome = run_job(Job([sys.executable, "-m", "starpullm.commands", "parity"], TIME_LIMIT, 5))
    assert isinstance(outcome, ExitedWith)
    assert outcome.status == 2
    assert outcome.stdout == ""
    assert outcome.stderr.startswith(
        "ranks 0-4: ranks: found 5, expected a divisor of the batch of a shipped record (tiny 2, odd 3, small 8, "
        "deep 12, single 8, ragged 12, long 2, wide 4); nothing would be compared"
    )


def test_a_difference_names_the_rank_that_wrote_it() -> None:
    """A difference is reported with the worker of the owner, which has written the gradient at the end of the tree."""
    outcome = parity_of_two_ranks(shipped_record("single").path, "--reduction", "tree")
    assert isinstance(outcome, ExitedWith), outcome
    assert outcome.status == 1
    [result] = json.loads(outcome.reports[0].stdout)
    first, facts = result["findings"][0], result["facts"]
    assert facts["first"] == first["where"] == "step 0, grads/lnfw"
    assert facts["ulps_of_first"] > 0
    rows = first["evidence"]
    assert rows["expected values"] == "from the plain sequential model, which has the record's digest"
    assert rows["written last by"] == "gradient_add (step 0, sub-batch 0) on worker 0 of rank 0"


def parity_of_two_ranks(record: Path, *options: str) -> JobEnding:
    """Run ``starpullm parity`` with two sub-batches on each of two ranks."""
    command = [sys.executable, "-m", "starpullm.commands", "parity", "--json", "--sub-batches", "2", *options]
    return run_job(Job([*command, str(record)], TIME_LIMIT, 2))


def test_a_live_llmc(llmc_stand_in: Callable[..., Path]) -> None:
    """Rank 0 runs the command; an error is printed once, and all ranks end."""
    options = ("parity", "--sub-batches", 1, shipped_record("tiny").path, "--llmc-library")
    for library in (llmc_stand_in(), llmc_stand_in("PLATFORM")):
        run = run_cli(2, *options, library)
        assert run.reports[0].stdout.splitlines()[-1] == "parity: 570 tensors over 3 steps, 0 differ"
    library = llmc_stand_in("OTHER_CONFIG")
    command = [sys.executable, "-m", "starpullm.commands", *map(str, options), str(library)]
    outcome = run_job(Job(command, TIME_LIMIT, 2))
    assert isinstance(outcome, ExitedWith), outcome
    assert outcome.status == 2
    assert outcome.stderr.count("isn't laid out like llm.c's: config.max_seq_len: found 61, expected 16") == 1


def test_the_worker_is_that_of_the_rank_that_wrote(tmp_path: Path) -> None:
    """Each rank writes its sequences of an activation; without values the writers of all parts are reported."""
    content: dict[str, Any] = json.loads(shipped_record("single").path.read_text())
    content["steps"][0]["activations"]["att[0]"] = "0" * 32
    path = tmp_path / "tampered.json"
    path.write_text(json.dumps(content))
    [result] = json.loads(parity_of_two_ranks(path).reports[0].stdout)
    writers = result["findings"][0]["evidence"]["written last by"].split("; ")
    assert writers == [
        f"attention_forward (step 0, sub-batch {sub_batch}, layer 0) on worker 0 of rank {rank}"
        for rank, sub_batch in ((0, 0), (0, 1), (1, 2), (1, 3))
    ]


@pytest.fixture
def inputs(tmp_path: Path) -> tuple[object, ...]:
    """Options of a training of small: a model, and tokens for a few steps of 4 x 16."""
    record = shipped_record("small")
    checkpoint, tokens = tmp_path / "small.bin", tmp_path / "small.tokens.bin"
    generate_checkpoint(checkpoint, record.model, record.seed)
    write_tokens(tokens, generate_tokens(1, 0, 1, STEPS * 4 * 16 + 1, record.model.vocab_size)[0].reshape(-1))
    return ("--checkpoint", checkpoint, "--tokens", tokens, "--seq-len", 16, "--steps", STEPS, "--json")


def train(ranks: int | None, *options: object, save: Path) -> tuple[dict[str, Any], bytes]:
    """Return what a training of 4 sequences per step printed, and the model that it saved."""
    run = run_cli(ranks, "train", *options, "--batch-size", 4 // (ranks or 1), "--save", save)
    return json.loads(run.reports[0].stdout), save.read_bytes()


def test_two_ranks_are_one_process_with_twice_the_sub_batches(inputs: tuple[object, ...], tmp_path: Path) -> None:
    options = (*inputs, "--reduction", "tree")
    one, one_model = train(None, *options, "--sub-batches", 2, save=tmp_path / "one.bin")
    two, two_model = train(2, *options, "--sub-batches", 1, save=tmp_path / "two.bin")
    assert len(one["losses"]) == STEPS
    assert two["losses"] == one["losses"]
    assert two_model == one_model
    other, other_model = train(None, *options, "--sub-batches", 1, save=tmp_path / "other.bin")
    # The number of sub-batches changes the bits of the tree.
    assert other_model != one_model
    assert other["losses"][0] == one["losses"][0]
