"""Training on several ranks: failures, and resuming."""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from starpullm.binding import allocations
from starpullm.data.generator import generate_checkpoint, generate_tokens
from starpullm.files.checkpoint import read_checkpoint
from starpullm.files.header import HEADER_BYTES
from starpullm.files.model import num_parameters
from starpullm.files.tokens import write_tokens
from starpullm.golden.records import shipped_record
from starpullm.processes.endings import Completed, Crashed, ExitedWith, Job, JobEnding
from starpullm.processes.job import run_job

from . import training_programs as programs
from .test_parity import run_cli

TIME_LIMIT = 100.0
END_SECONDS = 20.0
"""From a failure to the end of the job: two seconds on a quiet machine."""


def model(directory: Path, channels: int = 16) -> Path:
    config = replace(shipped_record("tiny").model, channels=channels)
    path = directory / f"{channels} channels.bin"
    generate_checkpoint(path, config, 1)
    return path


def token_file(directory: Path, count: int) -> Path:
    path = directory / "tokens.bin"
    write_tokens(path, generate_tokens(1, 0, 1, count, 61)[0].reshape(-1))
    return path


def run(
    program: Callable[..., None],
    *arguments: object,
    time_limit: float = TIME_LIMIT,
    ranks: int = 2,
    environment: Mapping[str, str] | None = None,
) -> JobEnding:
    command = [sys.executable, programs.__file__, program.__name__, *map(str, arguments)]
    return run_job(Job(command, time_limit, ranks, environment=environment or {}))


def assert_ended_soon(outcome: JobEnding) -> None:
    for report in outcome.reports.values():
        assert report.phase is not None, outcome
        assert report.phase.seconds_ago < END_SECONDS, outcome


# ---- Failures ----


@pytest.mark.parametrize("where", ["a step", "the last step", "all ranks"])
def test_raises_without_a_guard(tmp_path: Path, where: str) -> None:
    """The exception is written and the job ends; if all ranks can close what they have open, they do."""
    outcome = run(programs.raise_without_guard, model(tmp_path), where)
    assert isinstance(outcome, ExitedWith), outcome
    assert outcome.status == 1
    first, failing = outcome.reports.values()
    assert re.search(r'training_programs\.py", line \d+, in raise_without_guard\n', failing.stderr)
    assert "\nValueError: found a bad number\n" in failing.stderr
    if where == "a step":  # the other rank waits in it
        last_line = "rank 1: ValueError: found a bad number (last finished step 5, phase after step 5)"
        assert last_line in failing.stderr.splitlines()
        assert first.phase is not None
        assert (first.phase.step, first.phase.phase) == (5, "waiting for the loss of step 6")
        assert (first.stdout, failing.stdout) == ("", "")
    else:
        assert "rank 1: " not in failing.stderr
        assert (first.stdout, failing.stdout) == ("closed\n", "closed\n")
    assert_ended_soon(outcome)


def test_the_example_of_the_page(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference.md").read_text("utf-8")
    [example] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    code = f"import os; os.chdir({str(model(tmp_path).rename(tmp_path / 'model.bin').parent)!r})\n{example}"
    outcome = run_job(Job([sys.executable, "-c", code], TIME_LIMIT, 2))
    assert isinstance(outcome, Completed), outcome
    first, second = (re.fullmatch(r"rank [01]: (\d\.\d{6})\n", report.stdout) for report in outcome.reports.values())
    assert first is not None
    assert second is not None
    assert first[1] == second[1]
    assert [report.phase and report.phase.step for report in outcome.reports.values()] == [10, 10]


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("'--sub-batches', str(rank + 1)", "sub_batches is 1 on rank 0 and 2 on rank 1"),
        ("'--arithmetic', ['strict', 'fused'][rank]", "arithmetic is 'strict' on rank 0 and 'fused' on rank 1"),
    ],
)
def test_different_options_are_refused(tmp_path: Path, option: str, sentence: str) -> None:
    code = (
        "import sys; from starpullm.commands import main\n"
        "from starpullm.processes.rank_wrapper import rank_and_size_from_environment\n"
        "rank, _ = rank_and_size_from_environment()\n"
        f"main([*sys.argv[1:], {option}])"
    )
    options = ("--checkpoint", model(tmp_path), "--tokens", token_file(tmp_path, 400), "--seq-len", 8)
    command = [sys.executable, "-c", code, "train", *map(str, options)]
    outcome = run_job(Job(command, TIME_LIMIT, ranks=2))
    assert isinstance(outcome, ExitedWith), outcome
    assert outcome.status == 2
    assert f"different options on ranks: {sentence}" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_a_dropped_trainer_waits_for_no_rank(tmp_path: Path) -> None:
    """It may be dropped on one rank alone, at any time: the garbage collector decides."""
    outcome = run(programs.drop_trainer, model(tmp_path), time_limit=30)
    assert isinstance(outcome, Crashed), outcome
    report = outcome.reports[1]
    assert report.phase is not None
    assert report.phase.phase == "dropped"
    assert re.fullmatch(
        r"ResourceWarning: <Trainer 2x8 on <Runtime 1x1 lws, rank 1 of 2, running>, open> was dropped, "
        r"expected close\(\) on every rank\n",
        report.stdout,
    )


def test_several_trainers_on_one_runtime(tmp_path: Path) -> None:
    """Two trainers at the same time, and one after the other, have the losses of a trainer alone."""
    outcome = run(programs.several_trainers, model(tmp_path))
    assert isinstance(outcome, Completed), outcome
    for report in outcome.reports.values():
        losses = json.loads(report.stdout)
        alone = losses[-3:]
        assert len(set(alone)) == 3
        assert losses == [loss for loss in alone for _ in range(2)] + alone * 2


def test_what_one_rank_saves_later_is_resumed(tmp_path: Path) -> None:
    outcome = run(programs.resumed_at_once, model(tmp_path), str(tmp_path / "states"))
    assert isinstance(outcome, Completed), outcome
    for report in outcome.reports.values():
        resumed, expected = report.stdout.split()
        assert resumed == expected


def test_memory_that_one_rank_lacks(tmp_path: Path) -> None:
    """What the plan says is enough. With a byte less both ranks refuse the trainer, and name the rank."""
    outcome = run(programs.limited_memory, model(tmp_path))
    assert isinstance(outcome, Completed), outcome
    (first,), (second,) = (outcome.reports[rank].stdout.splitlines() for rank in (0, 1))
    assert re.match(r"rank 1 on \S+: memory: found \d+ bytes of buffers on rank 1, expected at most \d+: ", second)
    assert first == second


def test_one_rank_fails_in_a_native_call(tmp_path: Path, refusing_library: Path) -> None:
    """The others aren't left waiting, and name the rank that failed. What no rank can do is refused on all.

    A runtime is closed also after a step that was submitted half way.
    """
    huge, path = huge_model(tmp_path), model(tmp_path)
    environment = {**allocations.preloading(refusing_library), "MALLOC_PERTURB_": "165"}
    outcome = run(programs.one_rank_fails, path, huge, environment=environment)
    assert isinstance(outcome, Completed), outcome
    running, scheduler, blas, transfers, ranks, variables, memory, checkpoint, message, half = outcome.reports[
        1
    ].stdout.splitlines()
    assert message == (
        "params/wte: found 536870912 elements, expected at most 536870911 on 2 ranks: MPI has no larger messages"
    )
    where = f"rank 1 on {socket.gethostname()}: "
    assert running == f"{where}a runtime is running already in this process, expected none: close it"
    assert f"{path} of no BLAS" in blas
    assert transfers == f"{where}StarPU's transfers over MPI could not be started (error -5)"
    assert {ranks, variables} == {f"{where}a table of 2 ranks", f"{where}a copy of the environment"}
    assert memory == f"{where}a session could not be allocated"
    assert scheduler.startswith(f'{where}scheduler: found "no_such", expected one that StarPU ')
    assert f"{path} which is missing" in checkpoint
    *others, half_of_first = outcome.reports[0].stdout.splitlines()
    assert others == [running, scheduler, blas, transfers, ranks, variables, memory, checkpoint, message]
    for sentence in (half, half_of_first):
        assert re.fullmatch(r"StarPU refused a task of [a-z_]+_backward[a-z_]* in step 0 \(error -19\)", sentence)


def huge_model(directory: Path) -> Path:
    """Return a checkpoint whose wte is a message of just 2 GiB; the file has no blocks on the disk."""
    path = model(directory).rename(directory / "huge.bin")
    small = read_checkpoint(path).config
    config = replace(small, padded_vocab_size=2**31 // 4 // small.channels)
    with path.open("r+b") as file:
        file.seek(4 * (2 + list(vars(config)).index("padded_vocab_size")))
        file.write(config.padded_vocab_size.to_bytes(4, "little"))
        file.truncate(HEADER_BYTES + 4 * num_parameters(config))
    return path


@pytest.mark.parametrize("call", programs.CALLS)
def test_a_call_that_one_rank_is_refused_ends_the_job(tmp_path: Path, call: str) -> None:
    """The other rank would wait in it for ever."""
    outcome = run(programs.one_rank_is_refused, model(tmp_path), call)
    assert isinstance(outcome, ExitedWith), outcome
    assert outcome.rank == 1
    assert f"phase {call}): " in outcome.sentence
    assert ("layer 99" if call == "tensor" else "targets[1, 3]: token -1 is out of range") in outcome.sentence
    assert_ended_soon(outcome)


def test_a_step_that_is_half_submitted_ends_the_job(tmp_path: Path, refusing_library: Path) -> None:
    """All ranks say why; none closes its trainer, because another one waits for what it hasn't submitted.

    Memory that is freed is overwritten, so that using it later shows.
    """
    environment = {"LD_PRELOAD": str(refusing_library), "MALLOC_PERTURB_": "165"}
    outcome = run(programs.half_submitted, model(tmp_path), environment=environment)
    assert isinstance(outcome, ExitedWith), outcome
    refused = (r"a task of [a-z_]+ in step 1 \(error -19\)", r"the transfer from \S+ to \S+ in step 1 \(error -22\)")
    for report, part in zip(outcome.reports.values(), refused, strict=True):
        assert report.native_stacks == "", outcome  # it hasn't hung until it was killed
        where = r"\(last finished step 1, phase submitting step 2\)"
        assert re.search(f"^rank {report.rank}: StarPU refused {part} {where}$", report.stderr, re.MULTILINE), outcome
    assert re.fullmatch(
        r"rank [01] of 2 ended with exit status 1 \(last finished step 1, phase submitting step 2\): StarPU refused .*",
        outcome.sentence,
    )


# ---- Resuming ----


def train(ranks: int | None, *options: object) -> Completed:
    return run_cli(ranks, "train", "--seq-len", 8, *options)


def test_three_ranks_resume_what_three_ranks_saved(tmp_path: Path) -> None:
    tokens = ("--tokens", token_file(tmp_path, 6 * 3 * 8 + 1))
    checkpoint, states = ("--checkpoint", model(tmp_path)), tmp_path / "states"
    models = {name: tmp_path / f"{name}.bin" for name in ("whole", "three", "one")}
    train(None, *checkpoint, *tokens, "--batch-size", 3, "--steps", 6, "--save", models["whole"])
    saving = ("--save-every", 3, "--state-dir", states)
    train(3, *checkpoint, *tokens, "--batch-size", 1, "--steps", 3, *saving)
    assert len(list(states.glob("step-000000000003/rank-*-of-00003.state"))) == 3
    resuming = ("--resume", states, *tokens, "--steps", 6)
    train(3, *resuming, "--batch-size", 1, "--save", models["three"])
    train(None, *resuming, "--batch-size", 3, "--save", models["one"])
    whole, three, one = (path.read_bytes() for path in models.values())
    assert three == whole
    assert one == whole


def test_a_loss_that_is_not_finite_ends_all_ranks(tmp_path: Path) -> None:
    """It is said once; rank 0 alone writes the log; the state that leads to it is set aside."""
    log, states = tmp_path / "run.jsonl", tmp_path / "states"
    files = (
        "--checkpoint",
        model(tmp_path),
        "--tokens",
        token_file(tmp_path, 400),
        "--log",
        log,
        "--state-dir",
        states,
    )
    options = ("--seq-len", 8, "--batch-size", 1, "--steps", 9, "--save-every", 1, "--learning-rate", 1e30)
    command = [sys.executable, "-m", "starpullm.commands", "train", *map(str, (*files, *options))]
    outcome = run_job(Job(command, TIME_LIMIT, 2))
    assert isinstance(outcome, ExitedWith), outcome
    assert outcome.status == 4, outcome
    note, sentence = outcome.stderr.splitlines()[:2]
    assert note == f"note: {states / 'not-finite-step-000000000001'}: is the state that leads to this loss"
    assert sentence.startswith("ranks 0-1: step 2, loss: found nan, expected a finite number")
    assert [json.loads(line)["step"] for line in log.read_text("utf-8").splitlines()] == [1, 2]
    assert sorted(path.name for path in states.iterdir()) == [".lock", "not-finite-step-000000000001"]
