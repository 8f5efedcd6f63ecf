"""``starpullm train``: what it prints, writes and returns, and what it refuses before the first step."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from starpullm.data.loader import TokenLoader
from starpullm.files.checkpoint import read_checkpoint
from starpullm.files.tokens import write_tokens
from starpullm.resume import training_state
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer

from .children import TWO_CORES, assert_command_refused, cli_command, finish, names_in, run_cli, run_function, started
from .conftest import SmallDisk
from .readers.training_state import read_training_state

SIZES = ("--batch-size", 2, "--seq-len", 8)


def train_directly(checkpoint: str, pattern: str, steps: int) -> dict[str, Any]:
    """Do with the package what `train` should do; return losses, and the final parameters as hex."""
    tokens = TokenLoader(pattern, 2, 8)
    with Runtime() as runtime, Trainer(runtime, checkpoint, batch_size=2, seq_len=8) as trainer:
        losses = [float(trainer.step(*tokens.next())) for _ in range(steps)]
        parameters = {name: trainer.tensor("params", name).tobytes().hex() for name in trainer.tensor_names("params")}
        tokens.reset()
        evaluated = [float(trainer.evaluate(*tokens.next())) for _ in range(2)]
    return {"losses": losses, "parameters": parameters, "evaluated": evaluated}


def parameters_of(path: Path) -> dict[str, str]:
    return {name: array.tobytes().hex() for name, array in read_checkpoint(path).parameters.items()}


def test_train(tiny_checkpoint: Path, tiny_tokens: Path, tmp_path: Path) -> None:
    saved = tmp_path / "trained.bin"
    files = ("--checkpoint", tiny_checkpoint, "--tokens", tiny_tokens)
    run = run_cli("train", *files, *SIZES, "--steps", 3, "--save", saved).check()
    direct = run_function(train_directly, tiny_checkpoint, tiny_tokens, 3)
    *steps, last = run.stdout.splitlines()
    for number, (line, loss) in enumerate(zip(steps, direct["losses"], strict=True), start=1):
        assert re.fullmatch(rf"step {number}/3: loss {loss:.6f}, \d+\.\d{{3}} tokens/ms, \d+ s left", line), run
    assert last == f"saved {saved}"
    assert run.stderr == ""
    assert parameters_of(saved) == direct["parameters"]
    assert names_in(tmp_path) == ["trained.bin"]


def test_train_json_on_another_partition(tiny_checkpoint: Path, tiny_tokens: Path, tmp_path: Path) -> None:
    """The same bits; a pattern; validation before and after."""
    saved = tmp_path / "trained.bin"
    files = ("--checkpoint", tiny_checkpoint, "--tokens", f"{tiny_tokens.parent}/*.bin", "--save", saved)
    validation = ("--val-tokens", tiny_tokens, "--val-batches", 2)
    placement = ("--partition", "2x1", "--sub-batches", 2, "--scheduler", "eager", "--reduction", "ordered")
    run = run_cli(
        "train", *files, *validation, *SIZES, *placement, "--steps", 3, "--json", environment=TWO_CORES
    ).check()
    result = json.loads(run.stdout)
    direct = run_function(train_directly, tiny_checkpoint, tiny_tokens, 3)
    assert result.keys() == {"losses", "tokens_per_ms", "matmul", "validation_losses", "saved", "trace"}
    assert result["trace"] is None
    assert result["losses"] == direct["losses"]
    assert result["tokens_per_ms"] > 0
    before, after = result["validation_losses"]
    assert before > after == sum(direct["evaluated"]) / 2
    assert result["saved"] == str(saved)
    assert run.stderr == ""
    assert parameters_of(saved) == direct["parameters"]


def test_train_with_fewer_activation_sets_than_workers(tiny_checkpoint: Path, tiny_tokens: Path) -> None:
    placement = ("--partition", "2x1", "--sub-batches", 2, "--weight-gradient-tiles", 3)
    options = ("--checkpoint", tiny_checkpoint, "--tokens", tiny_tokens, "--seq-len", 8, "--steps", 2, *placement)
    few, all_of_them = (run_cli("train", *options, *sets).check().stdout for sets in (("--activation-sets", 1), ()))
    said = "1 of 2 workers have a sub-batch: more activation sets keep them busy"
    assert said in few
    assert said not in all_of_them
    assert re.findall(r"loss [\d.]+", few) == re.findall(r"loss [\d.]+", all_of_them) != []


def test_train_prints_validation(tiny_checkpoint: Path, tiny_tokens: Path) -> None:
    files = ("--checkpoint", tiny_checkpoint, "--tokens", tiny_tokens, "--val-tokens", tiny_tokens)
    run = run_cli("train", *files, *SIZES, "--steps", 1, "--val-batches", 1).check()
    first, step, last = run.stdout.splitlines()
    before = re.fullmatch(r"validation loss before: (\d+\.\d{6})", first)
    after = re.fullmatch(r"validation loss after: (\d+\.\d{6})", last)
    assert before
    assert after
    # The same batch is validated on and trained on.
    assert step.startswith(f"step 1/1: loss {before[1]}, ")
    assert float(after[1]) < float(before[1])


def test_train_hyperparameters_arrive(tiny_checkpoint: Path, tiny_tokens: Path, tmp_path: Path) -> None:
    """A state has what the trainer was told, each by its name."""
    files = ("--checkpoint", tiny_checkpoint, "--tokens", tiny_tokens, "--save-every", 1, "--state-dir", tmp_path)
    given = {"learning-rate": 0.5, "beta1": 0.25, "beta2": 0.75, "eps": 0.125, "weight-decay": 2.0}
    for options in (given, {"learning-rate": 3e-4, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight-decay": 0.0}):
        told = [word for name, value in options.items() for word in (f"--{name}", value) if options is given]
        run_cli("train", *files, *SIZES, "--steps", 1, *told).check()
        state = read_training_state(tmp_path)
        found = (state.learning_rate, state.beta1, state.beta2, state.eps, state.weight_decay)
        assert found == pytest.approx(tuple(options.values()))
        shutil.rmtree(tmp_path / "step-000000000001")


BAD_TRAINING: dict[str, tuple[tuple[object, ...], tuple[str, ...]]] = {
    "no such checkpoint": (("--checkpoint", "missing.bin"), ("missing.bin", "No such file")),
    "no such tokens": (("--tokens", "missing*.bin"), ("missing*.bin",)),
    "checkpoint as tokens": (("--tokens", "CHECKPOINT"), ("expected a token file, found a model checkpoint",)),
    "folder as tokens": (("--tokens", "sub"), ("sub: expected a token file, found a folder",)),
    "folder as checkpoint": (("--checkpoint", "."), (".: expected a model checkpoint, found a folder",)),
    "tokens of another vocabulary": (("--tokens", "FOREIGN"), ("foreign", "byte 1030", "[0, 61)", "61")),
    "too few tokens": (("--batch-size", 50), ("401", "400")),
    "scheduler": (("--scheduler", "nope"), ("scheduler", '"nope"', "lws")),
    "learning rate": (("--learning-rate", "nan"), ("learning_rate", "nan", "finite")),
    "save in a missing folder": (("--save", "missing/model.bin"), ("missing/model.bin", "No such file")),
    "states in a file": (
        ("--state-dir", "foreign.bin"),
        ("foreign.bin: expected a folder of training states, found a token file",),
    ),
    "save over a folder": (("--save", "."), (".", "directory")),
    "save where no file can be made": (("--save", "/proc/model.bin"), ("/proc/model.bin", "can't be written")),
    "save to a link to nowhere": (("--save", "link.bin"), ("link.bin", "can't be written", "No such file")),
    "trace to a FIFO": (("--trace", "pipe"), ("pipe", "can't be written", "regular file")),
    "save and trace in one file": (("--save", "one", "--trace", "sub/../one"), ("--trace", "sub/../one", "--save")),
    "tokens from a FIFO": (("--tokens", "pipe"), ("pipe", "is a FIFO", "regular file")),
    "warm-up that doesn't end": (("--warm-up-steps", 3), ("warm-up steps", "found 3", "0 to 2")),
    "log to a FIFO": (("--log", "pipe"), ("pipe", "can't be written", "regular file")),
    "log over a token file": (("--log", "foreign.bin"), ("foreign.bin: expected text in JSON", "found a token file")),
    "log and save in one file": (("--log", "one", "--save", "one"), ("--log: found one, the file of --save",)),
    "save under a file": (("--save", "TOKENS/model.bin"), ("model.bin", "Not a directory")),
}


@pytest.mark.parametrize("case", BAD_TRAINING)
def test_bad_training(tiny_checkpoint: Path, tiny_tokens: Path, tmp_path: Path, case: str) -> None:
    """It is refused before the first step, and no file is left behind."""
    options, parts = BAD_TRAINING[case]
    foreign = tmp_path / "foreign.bin"
    write_tokens(foreign, [1, 2, 3, 61] * 100)
    (tmp_path / "link.bin").symlink_to("nowhere")
    (tmp_path / "sub").mkdir()
    os.mkfifo(tmp_path / "pipe")
    places = {"CHECKPOINT": str(tiny_checkpoint), "TOKENS": str(tiny_tokens), "FOREIGN": str(foreign)}

    def placed(option: object) -> str:
        text = str(option)
        for name, place in places.items():
            text = text.replace(name, place)
        return text

    files = ("--checkpoint", tiny_checkpoint, "--tokens", tiny_tokens)
    run = run_cli("train", *files, *SIZES, "--steps", 2, *map(placed, options), cwd=tmp_path, environment=TWO_CORES)
    assert_command_refused(run, *parts)
    assert names_in(tmp_path) == ["foreign.bin", "link.bin", "pipe", "sub"]


def test_train_to_a_file_that_may_not_be_written(tiny_checkpoint: Path, tiny_tokens: Path, tmp_path: Path) -> None:
    """It is refused before the first step, as the writer would refuse it after the last."""
    saved = tmp_path / "model.bin"
    saved.write_bytes(b"old")
    saved.chmod(0o444)
    files = ("--checkpoint", tiny_checkpoint, "--tokens", tiny_tokens, "--save", saved)
    # For root the permission bits count only without this capability.
    without = ("setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override") if os.geteuid() == 0 else ()
    run = run_cli("train", *files, *SIZES, "--steps", 1, prefix=without)
    assert_command_refused(run, f"{saved}: can't be written: Permission denied")
    assert saved.read_bytes() == b"old"


def test_train_on_a_file_that_is_truncated(tiny_checkpoint: Path, tiny_tokens: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.bin"
    tokens.write_bytes(tiny_tokens.read_bytes())
    command = cli_command("train", "--checkpoint", tiny_checkpoint, "--tokens", tokens, *SIZES, "--steps", 10**9)
    with started(command, timeout=30) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"step 1/")
        os.truncate(tokens, 1024)
        run = finish(process).check(2)
    (sentence,) = run.stderr.splitlines()
    expected = f"Error: {tokens}, byte {{}}: expected 400 tokens as when the file was opened, found the end of the file"
    assert re.fullmatch(re.escape(expected).replace(r"\{\}", r"\d+"), sentence), run


def logged(path: Path) -> list[dict[str, Any]]:
    """The lines of a log without the speed, which must be there."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert all(line.pop("tokens_per_ms") > 0 for line in lines if "loss" in line)
    return lines


def test_log(tiny_checkpoint: Path, tiny_tokens: Path, tmp_path: Path) -> None:
    """A run that was killed after its state leaves no gap, and what is trained again appears once."""
    whole, parts, states = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl", tmp_path / "states"
    schedule = ("--learning-rate-schedule", "cosine", "--warm-up-steps", 2, "--steps", 5)
    options = (*SIZES, "--tokens", tiny_tokens, "--val-tokens", tiny_tokens, "--val-batches", 1, *schedule)
    printed = run_cli("train", "--checkpoint", tiny_checkpoint, *options, "--log", whole, "--json").check().stdout
    result, lines = json.loads(printed), logged(whole)
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4, 5, 5]
    assert [line["loss"] for line in lines[1:-1]] == result["losses"]
    assert [lines[place]["validation_loss"] for place in (0, -1)] == result["validation_losses"]
    assert [f"{line['learning_rate']:.3g}" for line in lines[1:3]] == ["0.00015", "0.0003"]
    saving = ("--save-every", 2, "--state-dir", states, "--log", parts)
    run_cli("train", "--checkpoint", tiny_checkpoint, *options, *saving).check()
    shutil.rmtree(states / "step-000000000004")
    with parts.open("ab") as log:
        log.write(b'{"step": 6, "lo')
    run_cli("train", "--resume", states, *options, *saving).check()
    found = logged(parts)
    assert found.pop(3).keys() == {"step", "validation_loss"}  # before the resumed run
    assert found == lines
    run_cli("train", "--checkpoint", tiny_checkpoint, *options, "--log", parts).check()
    assert logged(parts) == lines


def test_log_of_a_killed_run(tiny_checkpoint: Path, tiny_tokens: Path, tmp_path: Path) -> None:
    """Each line is in the file when the step is printed."""
    log, states = tmp_path / "run.jsonl", tmp_path / "states"
    saving = ("--save-every", 1, "--state-dir", states, "--log", log, "--tokens", tiny_tokens, *SIZES)
    command = cli_command("train", "--checkpoint", tiny_checkpoint, *saving, "--steps", 10**9)
    with started(command, timeout=30) as process:
        assert process.stdout is not None
        for _ in range(5):
            line = process.stdout.readline()
            step = int(line.split(b"/")[0].removeprefix(b"step "))
            assert logged(log)[step - 1]["step"] == step
        process.kill_group()
        process.wait()
    last = int(max(names_in(states))[-12:]) + 2
    run_cli("train", "--resume", states, *saving, "--steps", last).check()
    assert [line["step"] for line in logged(log)] == list(range(1, last + 1))


def test_log_on_a_full_disk(tiny_checkpoint: Path, tiny_tokens: Path, small_disk: SmallDisk) -> None:
    log = small_disk.folder / "run.jsonl"
    fill = 'cat /dev/zero >"$0/filler" 2>&-; printf "" >"$0/run.jsonl"; exec "$@"'
    prefix = (*small_disk.prefix, "sh", "-c", fill, str(small_disk.folder))
    files = ("--checkpoint", tiny_checkpoint, "--tokens", tiny_tokens, "--log", log)
    run = run_cli("train", *files, *SIZES, "--steps", 3, prefix=prefix).check(4)
    assert run.stderr == f"Error: {log}: can't be written: No space left on device\n"
    assert run.stdout == ""


@pytest.mark.parametrize("as_json", [False, True])
def test_train_saves_on_a_full_disk(
    tiny_checkpoint: Path, tiny_tokens: Path, small_disk: SmallDisk, as_json: bool
) -> None:
    """The exit status is 4, because the input is right; no result is printed."""
    fill = 'head -c 240000 /dev/zero >"$1/filler" && shift && "$@"; status=$?; ls -A "$0" >&2; exit $status'
    prefix = (*small_disk.prefix, "sh", "-c", fill, str(small_disk.folder), str(small_disk.folder))
    files = ("--checkpoint", tiny_checkpoint, "--tokens", tiny_tokens, "--save", small_disk.folder / "model.bin")
    options = ["--json"] if as_json else []
    run = run_cli("train", *files, *SIZES, "--steps", 1, *options, prefix=prefix).check(4)
    sentence, *names = run.stderr.splitlines()
    assert sentence.startswith("Error: ")
    assert "model.bin" in sentence
    assert "No space left on device" in sentence
    assert names == ["filler"]
    assert "saved" not in run.stdout


@pytest.mark.parametrize("placement", [(), ("--partition", "2x1", "--sub-batches", 2)])
def test_interrupted_training(
    tiny_checkpoint: Path, tiny_tokens: Path, tmp_path: Path, placement: tuple[object, ...]
) -> None:
    """Ctrl-C ends it at once with a status of its own; the file of --save keeps its content.

    It names the newest state, and the command that goes on from it.
    """
    saved, states = tmp_path / "model.bin", tmp_path / "my states"
    saved.write_bytes(b"old")
    files = (f"--checkpoint={tiny_checkpoint}", "--tokens", tiny_tokens, "--save", saved)
    saving = ("--save-every", 1, "--state-dir", states)
    arguments = ("train", *files, *SIZES, "--steps", 10**9, *saving, *placement)
    # Background jobs of a shell ignore Ctrl-C, and child processes inherit that.
    with started(
        ["env", "--default-signal=INT", *cli_command(*arguments)], timeout=30, environment=TWO_CORES
    ) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith(b"step 4/"):  # a state is saved after the next step's loss
            assert process.poll() is None, finish(process)
        process.send_signal(signal.SIGINT)
        run = finish(process).check(128 + signal.SIGINT)
    [line] = run.stderr.splitlines()
    newest = training_state(states)
    assert line.startswith("Interrupted (last finished step ")
    said, _, command = line.removesuffix(").").partition(", to go on: starpullm ")
    assert said.endswith(f"; the newest state is {newest.path}, of step {newest.step}")
    assert saved.read_bytes() == b"old"
    assert names_in(tmp_path) == ["model.bin", "my states"]
    words = [str(newest.step + 1) if word == str(10**9) else word for word in shlex.split(command)]
    assert run_cli(*words, environment=TWO_CORES).check().stdout.startswith(f"step {newest.step + 1}/")
