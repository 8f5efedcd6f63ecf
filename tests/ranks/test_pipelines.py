"""Stages on ranks: the bits of llm.c for every schedule and cut, states that any placement resumes, exact memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from starpullm.processes.endings import Completed

from . import training_programs as programs
from .test_parity import run_cli
from .test_training import model, run, token_file

ZERO_BUBBLE = ("--schedule", "zero-bubble", "--gradient-buffers", "block")


@pytest.mark.parametrize(
    ("ranks", "record", "sub_batches", "options", "compared", "kept"),
    [
        (2, "odd", 3, ("--stages", "3,0", "--partition", "2x1", "--schedule", "1f1b"), "852 tensors over 4 steps", 2),
        (2, "odd", 3, ("--stages", "1,2", "--activation-sets", 1), "852 tensors over 4 steps", 1),
        (3, "odd", 3, ("--stages", 3, "--schedule", "1f1b", "--recompute", "block"), "708 tensors over 4 steps", 1),
        (
            3,
            "odd",
            3,
            ("--stages", "1,2,0", "--activation-sets", 2, "--weight-gradient-tiles", 3),
            "852 tensors over 4 steps",
            2,
        ),
        (3, "odd", 3, (*ZERO_BUBBLE, "--stages", "2,1,0", "--activation-sets", 2), "852 tensors over 4 steps", 2),
        (4, "small", 4, (*ZERO_BUBBLE, "--stages", 2), "1096 tensors over 4 steps", 4),
    ],
)
def test_parity(
    ranks: int, record: str, sub_batches: int, options: tuple[object, ...], compared: str, kept: int
) -> None:
    """One batch for all ranks of a pipeline; of four ranks with two stages, each pipeline has half of it."""
    done = run_cli(ranks, "parity", record, "--sub-batches", sub_batches, *options)
    *_, case, total = done.reports[0].stdout.splitlines()
    assert total == f"parity: {compared}, 0 differ"
    of_last = f", activations of the last {kept} of {sub_batches} sub-batches"
    assert case.endswith(" steps against golden record" + of_last * (kept < sub_batches))


def test_states_of_stages(tmp_path: Path) -> None:
    """Two stages save; one rank, three stages, and two pipelines go on, and all of them write the same model."""
    tokens = ("--seq-len", 8, "--tokens", token_file(tmp_path, 6 * 4 * 8 + 1))
    of_two = ("--stages", 2, "--sub-batches", 2, "--batch-size", 4)
    start, states = ("--checkpoint", model(tmp_path)), tmp_path / "states"
    names = ("whole", "one", "two", "three", "pipelines")
    models = {name: tmp_path / f"{name}.bin" for name in names}
    run_cli(None, "train", *start, *tokens, "--batch-size", 4, "--steps", 6, "--save", models["whole"])
    run_cli(2, "train", *start, *tokens, *of_two, "--steps", 3, "--save-every", 3, "--state-dir", states)
    for name, ranks, options in (
        ("one", None, ("--batch-size", 4)),
        ("two", 2, (*of_two, "--schedule", "1f1b", "--trace", tmp_path / "trace.npz")),
        ("three", 3, ("--batch-size", 4, "--sub-batches", 4, "--stages", "1,1,0", "--activation-sets", 2)),
        ("pipelines", 4, (*of_two[2:4], "--stages", 2, "--batch-size", 2)),
    ):
        run_cli(ranks, "train", "--resume", states, *tokens, *options, "--steps", 6, "--save", models[name])
    whole = models["whole"].read_bytes()
    assert [name for name, path in models.items() if path.read_bytes() != whole] == []


@pytest.mark.parametrize("ranks", [4])
def test_memory_of_stages(tmp_path: Path, ranks: int) -> None:
    """What the plan says of each rank, whose formulas test_schedules.py has, is enough, and a byte less is not."""
    outcome = run(programs.memory_of_stages, model(tmp_path), ranks=ranks)
    assert isinstance(outcome, Completed), outcome
    found = outcome.reports[1].stdout.splitlines()
    lacking = [re.match(r"rank (\d) on \S+: memory: found \d+ bytes of buffers on rank \1, ", line) for line in found]
    assert [match and match[1] for match in lacking] == [str(rank) for rank in range(ranks)] * 3


@pytest.mark.parametrize("ranks", [4])
def test_plans(tmp_path: Path, ranks: int) -> None:
    """The bubble, messages and bytes of test_schedules.py are those of the tasks that are submitted."""
    outcome = run(programs.plans_of_pipelines, model(tmp_path), ranks=ranks)
    assert isinstance(outcome, Completed), outcome
    assert [report.stdout.split() for report in outcome.reports.values()] == [["True"] * 6] * ranks


def test_tree(tmp_path: Path) -> None:
    """With as many sub-batches in all, stages and pipelines have the bits of one rank."""
    files = ("--checkpoint", model(tmp_path), "--tokens", token_file(tmp_path, 4 * 4 * 8 + 1), "--seq-len", 8)
    trained = set()
    for ranks, size, options in (
        (None, 4, ()),
        (2, 4, ("--stages", 2, "--schedule", "1f1b")),
        (4, 2, ("--stages", 2)),
    ):
        saved = tmp_path / "trained.bin"
        sizes = ("--batch-size", size, "--sub-batches", size, "--steps", 4)
        run_cli(ranks, "train", *files, *sizes, "--reduction", "tree", *options, "--save", saved)
        trained.add(saved.read_bytes())
    assert len(trained) == 1


@pytest.mark.parametrize("ranks", [4])
def test_ranks_with_different_batches(tmp_path: Path, ranks: int) -> None:
    """One of a pipeline's two: the ranks of the other pipeline are told too."""
    outcome = run(programs.different_batches, model(tmp_path), ranks=ranks)
    assert isinstance(outcome, Completed), outcome
    for report in outcome.reports.values():
        *refused, tasks, probability, loss = report.stdout.splitlines()
        sentence = "inputs, targets: found other tokens on other ranks of the pipeline, expected the same"
        assert refused[:2] == [sentence] * 2
        assert len(refused) == (3 if report.rank == 0 else 2), "a file that rank 0 can't write keeps no rank waiting"
        assert tasks == "0"
        assert float(probability) == pytest.approx(1, abs=1e-6)
        assert float(loss) > 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_schedule_of_the_users(tmp_path: Path, ranks: int) -> None:
    """Losses of steps and of an evaluation between them are the same with every schedule."""
    outcome = run(programs.own_schedule, model(tmp_path), ranks=ranks)
    assert isinstance(outcome, Completed), outcome
    losses = {line for report in outcome.reports.values() for line in report.stdout.splitlines()}
    assert len(losses) == 1
    assert len(set(losses.pop().split())) == 5
