"""Training states: a run that was saved and resumed has the bits of one that wasn't, and saving disturbs nothing.

Resuming on several ranks is in tests/ranks.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from starpullm.data.generator import generate_tokens
from starpullm.data.loader import TokenLoader
from starpullm.errors import FileError
from starpullm.files.checkpoint import read_checkpoint, write_checkpoint
from starpullm.files.tokens import read_tokens, write_tokens

from .children import TWO_CORES, Finished, Reply, attempt, cli_command, names_in, run_cli, run_function, started
from .tiny import TINY, batch, bits_of, tiny_trainer

TIME_LIMIT = 100.0
STEPS = 6


# ---- From Python ----


def close_after_failed_save(checkpoint: str, folder: str) -> list[Reply]:
    """Close a trainer twice whose last save failed in the background: a folder has the name of the state's file."""
    with tiny_trainer("1x1", checkpoint) as trainer:
        trainer.step(*batch(0))
        Path(folder, "step-000000000001", "rank-00000-of-00001.state").mkdir(parents=True)
        trainer.save_state(folder)
        return [attempt(trainer.close), attempt(trainer.close)]


def test_closing_reports_that_the_last_save_failed(tiny_checkpoint: Path, tmp_path: Path) -> None:
    first, second = run_function(close_after_failed_save, tiny_checkpoint, tmp_path / "states", timeout=TIME_LIMIT)
    assert (first["raised"], first["errno"]) == (FileError.__name__, errno.EISDIR)
    assert "rename temporary file" in first["text"]
    assert second["raised"] is None


def train_with_saves(checkpoint: str, folder: str | None, partition: str, sub_batches: int) -> str:
    """Save after each step without waiting, if there is a folder."""
    with tiny_trainer(partition, checkpoint, sub_batches=sub_batches) as trainer:
        for step in range(STEPS):
            trainer.submit(*batch(step))
            if folder is not None:
                trainer.save_state(folder, batches=step + 1, seed=-3, data_id=2**64 - 1, keep=STEPS)
        if folder is not None:
            trainer.wait_saved()
        return bits_of(trainer)


def resume_each(states: list[str], partition: str) -> list[str]:
    """Go on from each state to the last step."""
    bits = []
    for path in states:
        with tiny_trainer(partition, None, resume=path) as trainer:
            for step in range(int(path[-12:]), STEPS):
                trainer.submit(*batch(step))
            bits.append(bits_of(trainer))
    return bits


def test_saving_changes_no_bits_and_every_state_leads_to_the_same_end(tiny_checkpoint: Path, tmp_path: Path) -> None:
    unsaved, saved = (
        run_function(train_with_saves, tiny_checkpoint, folder, "2x1", 2, timeout=TIME_LIMIT, environment=TWO_CORES)
        for folder in (None, str(tmp_path / "states"))
    )
    assert saved == unsaved
    lock, *folders = names_in(tmp_path / "states")
    assert lock == ".lock"
    assert folders == [f"step-{step:012}" for step in range(1, STEPS + 1)]
    states = [str(tmp_path / "states" / name) for name in folders]
    ends = run_function(resume_each, states, "1x1", timeout=TIME_LIMIT, environment=TWO_CORES)
    assert ends == [unsaved] * STEPS


def save_and_change_folder(checkpoint: str, folder: str) -> list[str]:
    """Save a state and be elsewhere before it is written, where other states are, of a folder of the same name."""
    os.chdir(folder)
    with tiny_trainer("1x1", checkpoint) as trainer:
        for step, name in enumerate(("states", "others", "states")):
            trainer.submit(*batch(step))
            trainer.save_state(name, keep=1)
        os.chdir("elsewhere")
        trainer.wait_saved()
    return names_in(Path("states"))


def test_a_save_stays_in_its_folder(tiny_checkpoint: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "states"
    run_function(train_with_saves, tiny_checkpoint, str(other.parent), "1x1", 1, timeout=TIME_LIMIT)
    other.parent.joinpath(".lock").unlink()
    other.mkdir()
    for state in other.parent.glob("step-*"):
        state.rename(other / state.name)
    expected = names_in(other)
    found = run_function(save_and_change_folder, tiny_checkpoint, str(tmp_path), timeout=TIME_LIMIT)
    assert found == expected
    assert names_in(tmp_path / "states") == [".lock", "step-000000000003"]
    assert names_in(tmp_path / "others") == [".lock", "step-000000000002"]


# ---- From the command line ----


def train(*options: object) -> Finished:
    sizes = ("--batch-size", TINY.batch_size, "--seq-len", TINY.seq_len)
    return run_cli("train", *sizes, *options, timeout=TIME_LIMIT, environment=TWO_CORES)


def test_a_run_that_was_ended_goes_on(tiny_checkpoint: Path, tiny_tokens: Path, tmp_path: Path) -> None:
    whole, parts, states = tmp_path / "whole.bin", tmp_path / "parts.bin", tmp_path / "states"
    tokens = ("--tokens", tiny_tokens)
    train("--checkpoint", tiny_checkpoint, *tokens, "--steps", 9, "--save", whole).check()
    saving = ("--save-every", 2, "--state-dir", states)
    train("--checkpoint", tiny_checkpoint, *tokens, "--steps", 5, *saving).check()
    assert names_in(states) == [".lock", "step-000000000002", "step-000000000004"]
    resumed = train("--resume", states, *tokens, "--steps", 9, "--partition", "2x1", "--save-every", 2, "--save", parts)
    resumed.check()
    assert [line.split(":")[0] for line in resumed.stdout.splitlines()[:-1]] == [
        f"step {step}/9" for step in range(5, 10)
    ]
    assert names_in(states) == [".lock", "step-000000000006", "step-000000000008"]
    assert parts.read_bytes() == whole.read_bytes()


@pytest.fixture
def states(tiny_checkpoint: Path, tiny_tokens: Path, tmp_path: Path) -> Path:
    """A folder with the state after step 2."""
    folder = tmp_path / "states"
    options = ("--steps", 2, "--save-every", 2, "--state-dir", folder)
    train("--checkpoint", tiny_checkpoint, "--tokens", tiny_tokens, *options).check()
    return folder


def test_resuming_with_other_data_is_refused(states: Path, tiny_tokens: Path, tmp_path: Path) -> None:
    other_tokens = tmp_path / "other.tokens.bin"
    write_tokens(other_tokens, generate_tokens(2, 0, 1, 400, TINY.model.vocab_size)[0].reshape(-1))
    same_name = tmp_path / "other" / tiny_tokens.name
    same_name.parent.mkdir()
    ids = read_tokens(tiny_tokens)
    ids[-1] ^= 1
    write_tokens(same_name, ids)
    for options, sentence in (
        (("--tokens", same_name), "was saved while training on other token files, expected the same"),
        (("--tokens", tiny_tokens, "--batch-size", 4), "batches of 2 x 8 tokens on all ranks together, expected 4 x 8"),
        (("--tokens", tiny_tokens, "--seq-len", 4), "batches of 2 x 8 tokens on all ranks together, expected 2 x 4"),
        (("--tokens", other_tokens), "was saved while training on other token files, expected the same"),
        (("--tokens", tiny_tokens, "--steps", 1), "2 steps have been done, expected at most --steps 1"),
    ):
        refused = train("--resume", states, *options).check(2)
        assert sentence in refused.stderr
        assert refused.stdout == ""
    assert names_in(states) == [".lock", "step-000000000002"]


def test_other_settings_of_adamw_are_said(states: Path, tiny_tokens: Path) -> None:
    """The run goes on; a schedule is compared by the rate that it gives the state's step."""
    state, options = states / "step-000000000002", ("--resume", states, "--tokens", tiny_tokens, "--steps", 4)
    changed = ("--learning-rate", 1e-3, "--beta1", 0.5, "--beta2", 0.5, "--eps", 0.1, "--weight-decay", 2)
    assert train(*options, *changed).check().stderr.splitlines() == [
        f"note: {state}: step 2 had {name} {found}, by these options it is {given}"
        for name, found, given in (
            ("learning rate", 0.0003, 0.001),
            ("beta1", 0.9, 0.5),
            ("beta2", 0.999, 0.5),
            ("eps", "1e-08", 0.1),
            ("weight decay", 0, 2),
        )
    ]
    warm_up = train(*options, "--warm-up-steps", 4).check().stderr
    assert warm_up == f"note: {state}: step 2 had learning rate 0.0003, by these options it is 0.00015\n"
    assert train(*options, "--learning-rate", 6e-4, "--warm-up-steps", 4).check().stderr == ""


def test_a_resumed_run_continues_its_schedule(tiny_checkpoint: Path, tiny_tokens: Path, tmp_path: Path) -> None:
    """It has the bits of the whole run, which are those of these learning rates and not of a constant one.

    The state is that at the end of an epoch.
    """
    tokens = tmp_path / "epoch.tokens.bin"
    write_tokens(tokens, read_tokens(tiny_tokens)[: 3 * TINY.batch_size * TINY.seq_len + 1])
    whole, parts, states = tmp_path / "whole.bin", tmp_path / "parts.bin", tmp_path / "states"
    schedule = ("--learning-rate", 1e-2, "--learning-rate-schedule", "cosine", "--warm-up-steps", 2, "--steps", 6)
    options = ("--tokens", tokens, *schedule, "--save-every", 3)
    train("--checkpoint", tiny_checkpoint, *options, "--state-dir", states, "--save", whole).check()
    third = states / "step-000000000003"
    shutil.rmtree(states / "step-000000000006")
    resumed = train("--resume", third, *options, "--save", parts).check()
    assert resumed.stderr == ""
    assert parts.read_bytes() == whole.read_bytes()
    assert names_in(states) == [".lock", "step-000000000003", "step-000000000006"]
    assert names_in(third) == ["rank-00000-of-00001.state"]
    sizes = TINY.batch_size, TINY.seq_len
    digest = run_function(train_by_schedule, tiny_checkpoint, tokens, sizes, timeout=TIME_LIMIT)
    assert digest == hashlib.sha256(whole.read_bytes()).hexdigest()


def train_by_schedule(checkpoint: str, tokens: str, sizes: tuple[int, int]) -> str:
    """Do the six steps with the learning rates of a cosine after two steps of warm-up; return the checkpoint's hash."""
    rates = [5e-3, 1e-2, *(5e-3 * (1 + math.cos(math.pi * part / 4)) for part in range(4))]
    loader = TokenLoader(tokens, *sizes)
    with tiny_trainer("1x1", checkpoint) as trainer, tempfile.NamedTemporaryFile() as saved:
        for rate in rates:
            trainer.submit(*loader.next(), learning_rate=rate)
        trainer.save_checkpoint(saved.name)
        return hashlib.sha256(Path(saved.name).read_bytes()).hexdigest()


def test_a_state_is_no_folder_of_states(states: Path, tiny_checkpoint: Path, tiny_tokens: Path) -> None:
    """What is saved in it would be found by no later --resume. Beside a newer state, it isn't continued from."""
    second, tokens = states / "step-000000000002", ("--tokens", tiny_tokens)
    refused = train("--checkpoint", tiny_checkpoint, *tokens, "--save-every", 2, "--state-dir", second).check(2)
    sentence = f"Error: {second}: is a training state, expected the folder that holds states\n"
    assert refused.stderr == sentence
    train("--resume", second, *tokens, "--steps", 4, "--save-every", 2).check()
    refused = train("--resume", second, *tokens, "--steps", 4, "--save-every", 2).check(2)
    assert f"Error: {states}: holds the state after step 4, newer than step 2" in refused.stderr
    assert names_in(states) == [".lock", second.name, "step-000000000004"]
    assert names_in(second) == ["rank-00000-of-00001.state"]


def test_a_run_that_was_killed_after_its_last_step_is_finished(
    states: Path, tiny_checkpoint: Path, tiny_tokens: Path, tmp_path: Path
) -> None:
    """Its model is written, with the bits of a run that wasn't killed, and the validation is made."""
    expected, saved = tmp_path / "expected.bin", tmp_path / "trained.bin"
    train("--checkpoint", tiny_checkpoint, "--tokens", tiny_tokens, "--steps", 2, "--save", expected).check()
    files = ("--tokens", tiny_tokens, "--val-tokens", tiny_tokens, "--val-batches", 1)
    resumed = ("--resume", states, *files, "--steps", 2, "--save-every", 2, "--save", saved)
    first, before, after, last = train(*resumed).check().stdout.splitlines()
    assert first == "all 2 steps have been done"
    assert before.removeprefix("validation loss before") == after.removeprefix("validation loss after")
    assert last == f"saved {saved}"
    assert saved.read_bytes() == expected.read_bytes()
    result = json.loads(train(*resumed, "--json").check().stdout)
    assert (result["losses"], result["tokens_per_ms"], result["saved"]) == ([], None, str(saved))


def test_a_run_claims_its_folder_before_its_first_save(
    tiny_checkpoint: Path, tiny_tokens: Path, tmp_path: Path
) -> None:
    """Otherwise a second run would leave newer states, which a later --resume would take for the first run's.

    When the first run was killed, the folder is free.
    """
    states, tokens = tmp_path / "states", ("--tokens", tiny_tokens)
    sizes = ("--batch-size", TINY.batch_size, "--seq-len", TINY.seq_len)
    saving = ("--save-every", 10**6, "--state-dir", states)
    first = cli_command("train", "--checkpoint", tiny_checkpoint, *tokens, *sizes, "--steps", 10**9, *saving)
    with started(first, timeout=TIME_LIMIT, environment=TWO_CORES) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith(b"step 1/"):
            pass
        refused = train("--checkpoint", tiny_checkpoint, *tokens, "--steps", 1, "--save-every", 1, *saving[2:]).check(4)
        assert f"Error: {states}: another run is saving into this folder (process {process.pid} on " in refused.stderr
        assert refused.stdout == ""
        process.kill_group()
        process.wait()
    assert names_in(states) == [".lock"]
    train("--checkpoint", tiny_checkpoint, *tokens, "--steps", 1, "--save-every", 1, *saving[2:]).check()
    assert names_in(states) == [".lock", "step-000000000001"]


@pytest.mark.parametrize("saving", [(), ("--save-every", 100), ("--save-every", 3)])
def test_a_run_that_saves_has_a_state_at_its_end(
    tiny_checkpoint: Path, tiny_tokens: Path, tmp_path: Path, saving: tuple[object, ...]
) -> None:
    """With a folder and no interval, and with one that is longer than the run: that of the last step."""
    options = ("--tokens", tiny_tokens, "--steps", 3, "--state-dir", tmp_path / "states")
    train("--checkpoint", tiny_checkpoint, *options, *saving).check()
    assert names_in(tmp_path / "states") == [".lock", "step-000000000003"]


def test_a_loss_that_is_not_finite_ends_the_run(states: Path, tiny_tokens: Path) -> None:
    """The update of step 3 makes parameters whose loss is NaN: their state is named so, and the one before stays."""
    third, options = states / "not-finite-step-000000000003", ("--tokens", tiny_tokens, "--save-every", 1)
    huge = ("--learning-rate", 1e30, "--keep-states", 1, "--steps", 9)
    ended = train("--resume", states, *options, *huge).check(4)
    assert [line.split(",")[0] for line in ended.stdout.splitlines()][1:] == ["step 4/9: loss nan"]
    assert ended.stderr.splitlines()[1:] == [
        f"note: {third}: is the state that leads to this loss",
        "Error: step 4, loss: found nan, expected a finite number",
    ]
    assert names_in(states) == [".lock", third.name, "step-000000000002"]
    going_on = json.loads(train("--resume", third, *options, *huge, "--keep-going", "--json").check().stdout)
    assert going_on["losses"] == [None] * 6
    assert names_in(states) == [".lock", third.name, "step-000000000002"]
    third.rename(states / "step-000000000003")  # as if the run had been killed before it knew the loss of step 4
    train("--resume", states, *options, *huge).check(4)
    assert names_in(states) == [".lock", third.name, "step-000000000002"]
    train("--resume", states, *options, "--steps", 3).check()
    assert names_in(states) == [".lock", third.name, "step-000000000002", "step-000000000003"]


def test_a_validation_loss_that_is_not_finite(tiny_checkpoint: Path, tiny_tokens: Path, tmp_path: Path) -> None:
    """Before training the model is damaged; after it, the state of the last step leads there."""
    model, states = tmp_path / "infinite.bin", tmp_path / "states"
    checkpoint = read_checkpoint(tiny_checkpoint)
    checkpoint.parameters["lnfw"][:] = 1e20
    write_checkpoint(model, checkpoint)
    options = ("--tokens", tiny_tokens, "--val-tokens", tiny_tokens, "--val-batches", 1, "--steps", 1)
    ended = train("--checkpoint", model, *options).check(4)
    assert ended.stdout == "validation loss before: inf\n"
    assert ended.stderr == "Error: validation before, loss: found inf, expected a finite number\n"
    huge = ("--learning-rate", 1e30, "--state-dir", states, "--save", tmp_path / "trained.bin")
    ended = train("--checkpoint", tiny_checkpoint, *options, *huge).check(4)
    assert ended.stderr.splitlines()[-1] == "Error: validation after, loss: found nan, expected a finite number"
    assert names_in(states) == [".lock", "not-finite-step-000000000001"]
    assert not (tmp_path / "trained.bin").exists()


def test_usage(states: Path, tiny_checkpoint: Path, tiny_tokens: Path) -> None:
    tokens = ("--tokens", tiny_tokens)
    for options, sentence in (
        (
            ("--checkpoint", tiny_checkpoint, "--save-every", 1),
            "--save-every: expected --state-dir or --resume with it",
        ),
        (("--checkpoint", tiny_checkpoint, "--resume", states), "expected either --checkpoint or --resume"),
        ((), "expected either --checkpoint or --resume"),
    ):
        refused = train(*tokens, *options).check(2)
        assert sentence in refused.stderr
        assert refused.stderr.startswith("Usage: ")
