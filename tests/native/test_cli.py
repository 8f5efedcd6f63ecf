"""The command line: what it prints, writes and returns; bad usage is answered with one sentence, not with a traceback.

Every command is a child process. Parity on many configurations is in test_parity.py.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from starpullm.commands.reporting import command_report
from starpullm.data.loader import TokenLoader
from starpullm.data.text import byte_encoding
from starpullm.files.checkpoint import read_checkpoint
from starpullm.files.model import ModelConfig, num_parameters, parameter_shapes
from starpullm.files.tokens import read_tokens, write_tokens
from starpullm.golden.records import shipped_record, tensor_digest
from starpullm.report import PageError, read_document
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer
from starpullm.training.generate import generate

from .children import TWO_CORES, Finished, cli_command, finish, names_in, run_cli, run_function, started
from .conftest import SmallDisk

TINY = shipped_record("tiny")
ODD = shipped_record("odd").path
SIZES = ("--batch-size", 2, "--seq-len", 8)


def assert_refused(run: Finished, *parts: str, returncode: int = 2) -> None:
    """There is one sentence on standard error, after the usage if the options were wrong, and nothing else."""
    run.check(returncode)
    *usage, sentence = run.stderr.splitlines()
    assert sentence.startswith("Error: "), run
    assert not usage or usage[0].startswith("Usage: "), run
    assert [part for part in parts if part not in sentence] == [], run
    assert "Traceback" not in run.stdout + run.stderr
    assert run.stdout == "", run


# ---- doctor ----


def test_doctor() -> None:
    run = run_cli("doctor", environment=TWO_CORES).check()
    lines = dict(line.split(maxsplit=1) for line in run.stdout.splitlines())
    assert re.match(r"\d+\.\d+\.\d+, /.", lines["starpullm"])
    assert re.match(r"1\.4\.\d+ in /.", lines["StarPU"])
    assert "lws" in lines["schedulers"].split(", ")
    assert lines["topology"] == "2 cores, 2 processing units, 1 NUMA nodes (HWLOC_SYNTHETIC)"
    assert lines["partitions"] == "1x2, 2x1"
    assert run.stderr == ""


def test_doctor_json() -> None:
    run = run_cli("doctor", "--json", environment=TWO_CORES).check()
    machine = json.loads(run.stdout)
    assert re.fullmatch(r"\d+\.\d+\.\d+", machine["version"])
    assert Path(machine["library"]).is_file()
    assert machine["compiler_flags"].split().count("-ffp-contract=off") == 1
    assert machine["starpu_version"] == machine["starpu_built_against"]
    assert "eager" in machine["schedulers"]
    assert (machine["cores"], machine["processing_units"], machine["numa_nodes"]) == (2, 2, 1)
    assert machine["synthetic_topology"] is True
    assert machine["partitions"] == ["1x2", "2x1"]
    assert machine["float_environment"] == ""
    assert sorted(machine["libm_fingerprint"]) == ["coshf", "expf", "logf", "powf", "tanhf"]
    assert isinstance(machine["libm_known"], bool)
    assert {"compiler", "build_type", "starpu_prefix", "processor", "simd_level", "mpi"} <= machine.keys()
    assert any("deadlocks with parallel workers" in finding["sentence"] for finding in machine["findings"])
    assert any("synthetic" in finding["sentence"] for finding in machine["findings"])
    assert run.stderr == ""


def test_doctor_without_a_library(tmp_path: Path) -> None:
    path = tmp_path / "[no] library.so"
    assert_refused(
        run_cli("doctor", environment={"STARPULLM_LIB": str(path)}), str(path), "STARPULLM_LIB", returncode=4
    )


def test_caches_of_another_machine() -> None:
    """The blocks of matmuls follow from them, and no bit does."""
    caches = {"STARPULLM_CACHES": "48K,1M"}
    lines = run_cli("doctor", environment=caches).check().stdout.splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines if line.startswith("caches")] == [
        "L1 48 KiB, L2 1024 KiB a hardware thread"
    ]
    smallest = {**TWO_CORES, "STARPULLM_CACHES": "1,1"}
    run = run_cli("parity", ODD, "--partition", "1x2", environment=smallest).check()
    assert " 0 differ" in run.stdout


@pytest.mark.parametrize("caches", ["x", "32K", "32K,", "32K,1M,8M", "-1,1", "32K, 1M", "0,1M", "32G,1M"])
def test_unusable_caches_are_refused(caches: str) -> None:
    run = run_cli("parity", ODD, environment={"STARPULLM_CACHES": caches})
    assert_refused(run, f'STARPULLM_CACHES: found "{caches}", expected')


def test_a_missing_simd_level_is_refused() -> None:
    run = run_cli("parity", ODD, environment={"STARPULLM_SIMD": "avx1024"})
    assert_refused(run, 'STARPULLM_SIMD: found "avx1024", expected one of ref, ')


# ---- train ----


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


def test_train_hyperparameters_arrive(tiny_checkpoint: Path, tiny_tokens: Path) -> None:
    """Each one changes the second step's loss."""
    files = ("--checkpoint", tiny_checkpoint, "--tokens", tiny_tokens)

    def second_loss(*options: object) -> float:
        run = run_cli("train", *files, *SIZES, "--steps", 3, "--json", *options).check()
        return float(json.loads(run.stdout)["losses"][2])

    usual = second_loss()
    assert second_loss("--learning-rate", 3e-4, "--beta1", 0.9, "--beta2", 0.999, "--eps", 1e-8) == usual
    for option, value in (
        ("--learning-rate", 1e-3),
        ("--beta1", 0.5),
        ("--beta2", 0.5),
        ("--eps", 0.1),
        ("--weight-decay", 10),
    ):
        assert second_loss(option, value) != usual, option


BAD_TRAINING: dict[str, tuple[tuple[object, ...], tuple[str, ...]]] = {
    "no such checkpoint": (("--checkpoint", "missing.bin"), ("missing.bin", "No such file")),
    "directory as checkpoint": (("--checkpoint", "/"), ("/", "directory")),
    "name too long": (("--checkpoint", "x" * 300), ("x" * 300, "too long")),
    "name that isn't UTF-8": (("--checkpoint", os.fsdecode(b"\xff.bin")), (".bin", "No such file")),
    "tokens as checkpoint": (("--checkpoint", "TOKENS"), ("byte 0", "magic", "20240326", "20240520")),
    "no such tokens": (("--tokens", "missing*.bin"), ("missing*.bin",)),
    "checkpoint as tokens": (("--tokens", "CHECKPOINT"), ("byte 0", "magic", "20240520", "20240326")),
    "no such validation tokens": (("--val-tokens", "missing.bin"), ("missing.bin",)),
    "tokens of another vocabulary": (("--tokens", "FOREIGN"), ("foreign", "byte 1030", "[0, 61)", "61")),
    "too few tokens": (("--batch-size", 50), ("401", "400")),
    "sequence too long": (("--seq-len", 17), ("seq_len", "17", "1 to 16")),
    "no sequence": (("--seq-len", 0), ("seq_len", "0")),
    "negative batch": (("--batch-size", -1), ("batch_size", "-1")),
    "batch beyond 64 bits": (("--batch-size", 2**64), (str(2**64),)),
    "batch that is no number": (("--batch-size", "two"), ("--batch-size", "two")),
    "no steps": (("--steps", 0), ("--steps", "0")),
    "sub-batches that don't divide": (("--sub-batches", 3), ("sub_batches", "3", "divisor", "2")),
    "no sub-batches": (("--sub-batches", 0), ("sub_batches", "0")),
    "malformed partition": (("--partition", "2"), ("partition", '"2"', "WxT")),
    "threads": (("--partition", "1x3"), ("partition 1x3", "3 cores", "found 2")),
    "partition too large": (("--partition", "3x1"), ("partition 3x1", "3 cores", "found 2")),
    "scheduler": (("--scheduler", "nope"), ("scheduler", '"nope"', "lws")),
    "scheduler that isn't UTF-8": (("--scheduler", os.fsdecode(b"\xff")), ("scheduler", "lws")),
    "reduction": (("--reduction", "mean"), ("--reduction", "mean", "ordered")),
    "learning rate": (("--learning-rate", "nan"), ("learning_rate", "nan", "finite")),
    "beta1": (("--beta1", 1), ("beta1", "found 1")),
    "beta2": (("--beta2", -1), ("beta2", "found -1")),
    "eps": (("--eps", "inf"), ("eps", "inf", "finite")),
    "weight decay": (("--weight-decay", -1), ("weight_decay", "found -1")),
    "unknown option": (("--speed", 1), ("--speed",)),
    "save in a missing folder": (("--save", "missing/model.bin"), ("missing/model.bin", "No such file")),
    "save over a folder": (("--save", "."), (".", "directory")),
    "save where no file can be made": (("--save", "/proc/model.bin"), ("/proc/model.bin", "can't be written")),
    "save to a link to nowhere": (("--save", "link.bin"), ("link.bin", "can't be written", "No such file")),
    "save to a device": (("--save", "/dev/null"), ("/dev/null", "can't be written", "regular file")),
    "trace to a FIFO": (("--trace", "pipe"), ("pipe", "can't be written", "regular file")),
    "save and trace in one file": (("--save", "one", "--trace", "sub/../one"), ("--trace", "sub/../one", "--save")),
    "tokens from a FIFO": (("--tokens", "pipe"), ("pipe", "is a FIFO", "regular file")),
    "checkpoint from a FIFO": (("--checkpoint", "pipe"), ("pipe", "is a FIFO", "regular file")),
    "schedule": (("--learning-rate-schedule", "wsd"), ("--learning-rate-schedule", "wsd", "cosine")),
    "warm-up that doesn't end": (("--warm-up-steps", 3), ("warm-up steps", "found 3", "0 to 2")),
    "negative warm-up": (("--warm-up-steps", -1), ("--warm-up-steps", "-1")),
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
    assert_refused(run, *parts)
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
    assert_refused(run, f"{saved}: can't be written: Permission denied")
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


@pytest.mark.parametrize("command", [("trace",), ("parity",), ("convert", "FIFO", "out"), ("generate", "--checkpoint")])
def test_a_fifo_as_input_is_refused(tmp_path: Path, command: tuple[str, ...]) -> None:
    """Opening it would wait for a writer."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    arguments = [str(pipe) if part == "FIFO" else part for part in command]
    if "FIFO" not in command:
        arguments.append(str(pipe))
    run = run_cli(*arguments, timeout=30, cwd=tmp_path)
    assert_refused(run, f"{pipe}: is a FIFO, expected a regular file")


def test_missing_options() -> None:
    assert_refused(run_cli("train", "--tokens", "x"), "--checkpoint")
    assert_refused(run_cli("train", "--checkpoint", "x"), "--tokens")
    assert_refused(run_cli("generate"), "--checkpoint")
    assert_refused(run_cli("fly"), "fly")


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
    """Ctrl-C ends it at once with a status of its own; the file of --save keeps its content."""
    saved = tmp_path / "model.bin"
    saved.write_bytes(b"old")
    files = ("--checkpoint", tiny_checkpoint, "--tokens", tiny_tokens, "--save", saved)
    # Background jobs of a shell ignore Ctrl-C, and child processes inherit that.
    command = ["env", "--default-signal=INT", *cli_command("train", *files, *SIZES, "--steps", 10**9, *placement)]
    with started(command, timeout=30, environment=TWO_CORES) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"step 1/")
        process.send_signal(signal.SIGINT)
        run = finish(process).check(128 + signal.SIGINT)
    assert run.stderr.splitlines() == ["Interrupted."]
    assert saved.read_bytes() == b"old"
    assert names_in(tmp_path) == ["model.bin"]


# ---- generate ----


def sample_again(checkpoint: str, prompt: list[int], num_tokens: int, seed: int) -> list[list[int]]:
    """Return the tokens of llm.c's sampling, written out here, and those of training.generate."""
    mask = 2**64 - 1
    end_of_text, state = 256, seed
    sequence = [end_of_text, *prompt]
    seq_len = len(prompt) + num_tokens
    with Runtime() as runtime, Trainer(runtime, checkpoint, batch_size=1, seq_len=seq_len) as trainer:
        while len(sequence) < 1 + seq_len:
            padded = sequence + [end_of_text] * (seq_len - len(sequence))
            probabilities = trainer.probabilities([padded], 0, len(sequence) - 1)
            state ^= state >> 12
            state ^= (state << 25) & mask
            state ^= state >> 27
            coin = np.float32(((state * 0x2545F4914F6CDD1D & mask) >> 32) >> 8) / np.float32(16777216)
            running, chosen = np.float32(0), len(probabilities) - 1
            for index, probability in enumerate(probabilities):
                running = np.float32(running + probability)
                if coin < running:
                    chosen = index
                    break
            sequence.append(chosen)
        yielded = list(generate(trainer, prompt, end_of_text, num_tokens, seed))
    return [sequence[1 + len(prompt) :], yielded]


@pytest.fixture(scope="module")
def sampled_text(byte_checkpoint: Path) -> Callable[..., str]:
    def sample(*options: object) -> str:
        run = run_cli("generate", "--checkpoint", byte_checkpoint, *options).check()
        assert run.stderr == ""
        return run.stdout

    return sample


@pytest.mark.parametrize(("prompt", "seed"), [("", 1337), ("Shall I", 7)])
def test_generate(byte_checkpoint: Path, sampled_text: Callable[..., str], prompt: str, seed: int) -> None:
    encoding = byte_encoding()
    ids = encoding.encode(prompt).tolist()
    expected, yielded = run_function(sample_again, byte_checkpoint, ids, 20, seed)
    assert yielded == expected
    options = ("--prompt", prompt, "--num-tokens", 20)
    text = sampled_text(*options, "--seed", seed)
    assert text == prompt + encoding.decode(expected) + "\n"
    assert sampled_text(*options, "--seed", seed, "--partition", "1x1", "--scheduler", "eager") == text
    assert sampled_text(*options, "--seed", seed + 1) != text


def test_generate_fills_the_longest_sequence(byte_checkpoint: Path, sampled_text: Callable[..., str]) -> None:
    """maxT is 32: 2 tokens of prompt and 30 to sample fit, 31 don't."""
    sampled_text("--prompt", "ab", "--num-tokens", 30)
    run = run_cli("generate", "--checkpoint", byte_checkpoint, "--prompt", "ab", "--num-tokens", 31)
    assert_refused(run, "2 tokens of prompt", "31 to sample", "32")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--prompt", "x" * 33), ("33 tokens of prompt", "32")),
        (("--num-tokens", 0), ("--num-tokens", "0")),
        (("--seed", 0), ("--seed", "0")),
        (("--seed", 2**64), (str(2**64),)),
        (("--checkpoint", "missing.bin"), ("missing.bin", "No such file")),
        (("--partition", "0x1"), ("partition", '"0x1"', "WxT")),
        (("--scheduler", "nope"), ("scheduler", '"nope"')),
    ],
)
def test_bad_generation(byte_checkpoint: Path, options: tuple[object, ...], parts: tuple[str, ...]) -> None:
    run = run_cli("generate", "--checkpoint", byte_checkpoint, "--num-tokens", 4, *options)
    assert_refused(run, *parts)


def test_generate_with_a_vocabulary_that_no_text_has(tiny_checkpoint: Path, tmp_path: Path) -> None:
    run = run_cli("generate", "--checkpoint", tiny_checkpoint, environment={"TIKTOKEN_CACHE_DIR": str(tmp_path)})
    assert_refused(run)


# ---- checkpoint, tokenize ----

NEW_MODEL = ("--layers", 2, "--heads", 2, "--channels", 48, "--vocab", 300, "--max-seq-len", 64)
NEW_CONFIG = ModelConfig(max_seq_len=64, vocab_size=300, num_layers=2, num_heads=2, channels=48, padded_vocab_size=384)


def test_checkpoint_new(tmp_path: Path) -> None:
    """GPT-2's initialisation: normal weights of known width, biases 0, layernorm weights 1, padding 0."""
    path = tmp_path / "new.bin"
    run = run_cli("checkpoint", "new", *NEW_MODEL, path).check()
    assert run.stdout == f"{path}: {num_parameters(NEW_CONFIG)} parameters\n"
    model = read_checkpoint(path)
    assert model.config == NEW_CONFIG
    assert not model.parameters["wte"][300:].any()
    for name, array in model.parameters.items():
        drawn = array[:300] if name == "wte" else array
        if name in ("ln1w", "ln2w", "lnfw"):
            assert (drawn == 1).all(), name
        elif name.endswith("b"):
            assert not drawn.any(), name
        else:
            std = 0.02 / math.sqrt(2 * 2) if name in ("attprojw", "fcprojw") else 0.02
            # Four standard errors of a mean and of a standard deviation; the draw is the same in every run.
            assert abs(drawn.mean()) < 4 * std / math.sqrt(drawn.size), name
            assert abs(drawn.std() / std - 1) < 4 / math.sqrt(2 * drawn.size), name


def test_checkpoint_seeds(tmp_path: Path) -> None:
    seeds = {"usual": (), "42": ("--seed", 42), "43": ("--seed", 43)}
    for name, seed in seeds.items():
        run_cli("checkpoint", "new", *NEW_MODEL, *seed, tmp_path / name).check()
    usual, same, other = ((tmp_path / name).read_bytes() for name in seeds)
    assert usual == same != other


@pytest.mark.parametrize(
    ("options", "parts", "returncode"),
    [
        (("--layers", 0), ("num_layers", "found 0"), 2),
        (("--heads", 5), ("channels", "num_heads = 5", "found 48"), 2),
        (("--channels", -48), ("channels", "found -48"), 2),
        (("--padded-vocab", 299), ("padded_vocab_size", "vocab_size = 300", "found 299"), 2),
        (("--max-seq-len", 2**31), ("max_seq_len", str(2**31)), 2),
        (("--channels", 10**9, "--heads", 1), ("channels", "64 bits"), 2),
        (("--channels", "many"), ("--channels", "many"), 2),
        (("--seed", -1), ("--seed", "-1"), 2),
        # A file can hold it, but no disk.
        (("--channels", 10**8, "--heads", 1), ("bytes to be written", "are free"), 4),
    ],
)
def test_bad_model_sizes(tmp_path: Path, options: tuple[object, ...], parts: tuple[str, ...], returncode: int) -> None:
    # The limit of 64 GB of addresses lets the largest model fail on every machine.
    prefix = ("sh", "-c", 'ulimit -v 67108864; exec "$@"', "sh") if "memory" in parts else ()
    run = run_cli("checkpoint", "new", *NEW_MODEL, *options, tmp_path / "new.bin", prefix=prefix)
    assert_refused(run, *parts, returncode=returncode)
    assert names_in(tmp_path) == []


def test_bad_model_places(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "new.bin"
    assert_refused(run_cli("checkpoint", "new", *NEW_MODEL, missing), str(missing), "No such file")
    assert_refused(run_cli("checkpoint", "new", *NEW_MODEL, tmp_path), str(tmp_path), "directory")
    assert names_in(tmp_path) == []


def test_checkpoint_show(tiny_checkpoint: Path) -> None:
    run = run_cli("checkpoint", "show", tiny_checkpoint).check()
    lines = dict(line.split(": ") for line in run.stdout.splitlines())
    assert lines["num_layers"] == "2"
    assert lines["padded_vocab_size"] == "64"
    assert lines["num_parameters"] == str(num_parameters(TINY.model))
    assert lines["qkvw"] == "2 x 48 x 16"
    run = run_cli("checkpoint", "show", "--json", tiny_checkpoint).check()
    shown = json.loads(run.stdout)
    shapes = {name: tuple(shape) for name, shape in shown.pop("tensors").items()}
    assert shapes == parameter_shapes(TINY.model)
    assert shown == {**vars(TINY.model), "num_parameters": num_parameters(TINY.model)}


def test_bad_checkpoints_to_show(tiny_checkpoint: Path, tiny_tokens: Path, tmp_path: Path) -> None:
    cut = tmp_path / "[bold]cut.bin"
    cut.write_bytes(tiny_checkpoint.read_bytes()[:-1])
    size = tiny_checkpoint.stat().st_size
    assert_refused(run_cli("checkpoint", "show", cut), str(cut), f"expected {size} bytes", "lnfb")
    assert_refused(run_cli("checkpoint", "show", tiny_tokens), "byte 0", "20240326", "20240520")
    assert_refused(run_cli("checkpoint", "show", tmp_path / "none"), "none", "No such file")


TEXT = "Shall I compare thee to a summer's day?\nThou art more lovely and more temperate — ✓\n" * 20


def test_tokenize_then_train(byte_checkpoint: Path, tmp_path: Path) -> None:
    text, tokens = tmp_path / "text.txt", tmp_path / "text.tokens"
    text.write_text(TEXT, encoding="utf-8")
    # GPT-2's vocabulary must not be found, even if this machine has it.
    environment = {"TIKTOKEN_CACHE_DIR": str(tmp_path / "empty")}
    run = run_cli("tokenize", text, tokens, environment=environment).check()
    size = len(TEXT.encode())
    assert run.stdout == f"{tokens}: {size} tokens, bytes, vocabulary 257\n"
    assert read_tokens(tokens).size == size
    assert bytes(read_tokens(tokens).astype(np.uint8)) == TEXT.encode()
    options = ("--batch-size", 4, "--seq-len", 32, "--steps", 10, "--learning-rate", 0.01, "--json")
    run = run_cli("train", "--checkpoint", byte_checkpoint, "--tokens", tokens, *options).check()
    losses = json.loads(run.stdout)["losses"]
    assert losses[0] == pytest.approx(math.log(257), rel=0.05)
    assert losses[-1] < losses[0]


def test_bad_texts(tmp_path: Path) -> None:
    latin, out = tmp_path / "latin.txt", tmp_path / "out.bin"
    latin.write_bytes(b"na\xefve")
    assert_refused(run_cli("tokenize", latin, out), "latin.txt", "byte 2", "UTF-8")
    assert_refused(run_cli("tokenize", tmp_path / "none.txt", out), "none.txt", "No such file")
    assert_refused(run_cli("tokenize", tmp_path, out), str(tmp_path), "directory")
    assert_refused(
        run_cli("tokenize", latin, out, "--tokenizer", latin), "tiktoken" if not _has_tiktoken() else "magic"
    )
    assert names_in(tmp_path) == ["latin.txt"]


def _has_tiktoken() -> bool:
    import importlib.util

    return importlib.util.find_spec("tiktoken") is not None


# ---- parity ----


def test_parity(tmp_path: Path) -> None:
    """The report has a recording of each place, and says what else there is to compare."""
    run = run_cli(
        "parity",
        TINY.path,
        "--sub-batches",
        "all",
        "--partition",
        "1x1",
        "--partition",
        "2x1",
        "--scheduler",
        "eager",
        "--report",
        tmp_path / "out",
        environment=TWO_CORES,
    ).check()
    equal = "passed: 570 tensors compared; 3 steps against golden record"
    assert run.stdout.splitlines() == [
        *(f"parity of tiny-{s}-ordered on {p} eager: {equal}" for p in ("1x1", "2x1") for s in (1, 2)),
        "parity: 2280 tensors over 12 steps, 0 differ",
    ]
    assert run.stderr == ""
    report = read_document(tmp_path / "out" / "report.json")
    assert (report["state"], report["exit_status"], len(report["tests"])) == ("ended", 0, 4)
    assert [of["configuration"] for of in report["recordings"]] == ["1x1 eager", "2x1 eager"]
    assert "partition 1x2" in [entry["what"] for entry in report["not_checked"]]


def test_a_page_that_cannot_be_made_costs_no_result(tmp_path: Path) -> None:
    """The command shows its results first; then one sentence says what was wrong."""
    shown = []

    def run_command() -> None:
        with command_report(tmp_path / "out", "starpullm parity") as report:
            report.document["recordings"].append({"tasks": {}})
            report.renew()
            report.end(0)
            shown.append("results")

    with pytest.raises(PageError, match=r"out/index.html: can't be made of report.json: KeyError: 'worker'$"):
        run_command()
    assert shown == ["results"]
    assert json.loads((tmp_path / "out" / "report.json").read_text())["state"] == "ended"


def test_parity_last_line() -> None:
    run = run_cli("parity", TINY.path).check()
    assert run.stdout.splitlines()[-1] == "parity: 570 tensors over 3 steps, 0 differ"


def test_parity_json() -> None:
    run = run_cli("parity", TINY.path, "--json").check()
    [result] = json.loads(run.stdout)
    assert result["facts"] == {
        "record": "tiny",
        "reference": "golden record",
        "partition": "1x1",
        "scheduler": "lws",
        "ranks": 1,
        "sub_batches": 1,
        "reduction": "ordered",
        "matmul": "strict",
        "steps": 3,
        "first": "",
    }
    names = ("check", "outcome", "compared", "unit", "measured", "limit", "findings")
    assert [result[name] for name in names] == ["parity", "passed", 570, "tensors", 0, 0, []]
    assert run.stderr == ""


def test_parity_says_which_records_are_left_out() -> None:
    """Those of a batch that the sub-batches don't divide; the last line counts the others."""
    run = run_cli("parity", "--sub-batches", 12).check()
    assert run.stdout.splitlines()[-1] == "parity: 4240 tensors over 8 steps, 0 differ"
    names = [line.split()[2] for line in run.stderr.splitlines()]
    assert names == ["tiny", "odd", "small", "single", "long", "wide"]
    assert run.stderr.startswith(
        "note: record tiny is left out: sub_batches: found 12, expected a divisor of the batch size 2\n"
    )


def test_parity_finds_shipped_records() -> None:
    run = run_cli("parity", "tiny.json").check()
    assert run.stdout.splitlines()[-1] == "parity: 570 tensors over 3 steps, 0 differ"
    assert_refused(run_cli("parity", "tinny"), "tinny: no such file", "shipped record: tiny, odd, small")


def changed_record(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of tiny's record with something changed."""
    content = json.loads(TINY.path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path


OTHER_DIGEST = "0" * 32


def change_digests(content: dict[str, Any], *tensors: tuple[int, str, str]) -> None:
    for step, group, tensor in tensors:
        assert tensor in content["steps"][step][group]
        content["steps"][step][group][tensor] = OTHER_DIGEST


def test_parity_with_one_difference(tmp_path: Path) -> None:
    record = changed_record(tmp_path / "one.json", lambda content: change_digests(content, (1, "grads", "qkvw[1]")))
    run = run_cli("parity", record).check(1)
    line, *details, last = run.stdout.splitlines()
    assert "(1 in 570 tensors): step 1, grads/qkvw[1]; " in line
    assert details == [
        f"  expected digest: {OTHER_DIGEST}",
        f"  found digest: {TINY.steps[1].digests['grads']['qkvw[1]']}",
        "  expected values: the record has a digest only, and a run on 1x1 with the ref kernels has the digest that "
        "was found",
        "  written last by: matmul_backward_weight (step 1, sub-batch 0, layer 1) on worker 0 of rank 0",
    ]
    assert last == "parity: 570 tensors over 3 steps, 1 differ"


def test_parity_names_the_element_of_the_record(tmp_path: Path) -> None:
    """The record of tiny has the values of its first and last step."""
    name = "attprojw[1]"

    def change(content: dict[str, Any]) -> None:
        with np.load(TINY.path.with_suffix(".npz")) as file:
            arrays = dict(file)
        values = arrays["2/params/attprojw"][1]
        values[3, 5] = np.nextafter(values[3, 5], np.float32(2))
        values[15, 15] = -values[15, 15]
        np.savez(tmp_path / "element.npz", **arrays)
        content["steps"][2]["params"][name] = tensor_digest(values)

    record = changed_record(tmp_path / "element.json", change)
    [result] = json.loads(run_cli("parity", record, "--json").check(1).stdout)
    [finding] = result["findings"]
    rows = finding["rows"]
    values = TINY.raw_tensor(2, "params", name)
    assert values is not None
    assert (finding["sentence"], rows["expected values"]) == (f"step 2, params/{name}", "the record's")
    assert (rows["first element"], result["facts"]["ulps_of_first"]) == ("53, [3, 5]", 1)
    assert rows["differ"].startswith("2 of ")
    assert rows["found"].startswith(f"0x{values[3, 5].view(np.uint32):08x} ({values[3, 5]!s})")
    assert rows["written last by"].startswith("adamw_update (step 2, layer 1) on ")


def test_parity_with_other_bits() -> None:
    """A sum in another order has other bits. The expected values come from a run in the record's order."""
    record = ODD
    options = ("--sub-batches", "3", "--reduction", "tree", "--partition", "2x1")
    run = run_cli("parity", record, *options, environment=TWO_CORES).check(1)
    lines = run.stdout.splitlines()
    assert "(885 in 1,080 tensors): step 0, grads/lnfw; " in lines[0]
    assert lines[1:3] == ["  differ: 28 of 40 elements (40,) (70 %)", "  first element: 0, [0]"]
    assert re.fullmatch(r"  expected: 0x3a21a02c \(0\.000616\d+\)", lines[3])
    assert re.fullmatch(r"  found: 0x3a21a029 \(0\.000616\d+\), 3 ULP off", lines[4])
    assert lines[5].startswith("  elements by ULPs off: 1: 11, 2 to 3: 9, 4 to 7: 4, ")
    assert lines[6] == "  expected values: from a run on 1x1 with the ref kernels, which has the record's digest"
    assert re.fullmatch(r"  written last by: gradient_add \(step 0, sub-batch 0\) on worker [01] of rank 0", lines[7])
    assert lines[8] == "  step 0, grads/lnfb"
    assert lines[-2].endswith("more, see --json")


def test_parity_names_the_first_in_order_of_execution(tmp_path: Path) -> None:
    """That is not the order of the file: forward, then backward from the last block, then the update."""
    order = [
        (1, "activations", "preatt[0]"),
        (1, "activations", "atty[0]"),
        (1, "activations", "ln1[1]"),
        (1, "activation_grads", "fch[1]"),
        (1, "grads", "fcw[1]"),
        (1, "activation_grads", "fch[0]"),
        (1, "grads", "wte"),
        (1, "params", "wte"),
        (2, "activations", "encoded"),
    ]
    record = changed_record(tmp_path / "many.json", lambda content: change_digests(content, *reversed(order)))
    run = run_cli("parity", record, "--json").check(1)
    [result] = json.loads(run.stdout)
    assert result["outcome"] == "failed"
    assert result["compared"] == 570
    found = [finding["sentence"] for finding in result["findings"]]
    assert found == [f"step {step}, {group}/{tensor}" for step, group, tensor in order]
    rows = result["findings"][0]["rows"]
    assert rows["expected digest"] == OTHER_DIGEST
    assert rows["found digest"] == TINY.steps[1].digests["activations"]["preatt[0]"]


def test_parity_of_the_mean_loss(tmp_path: Path) -> None:
    def change(content: dict[str, Any]) -> None:
        content["steps"][0].update(mean_loss=4.0, mean_loss_bits="40800000")

    run = run_cli("parity", changed_record(tmp_path / "loss.json", change)).check(1)
    assert "(1 in 570 tensors): step 0, loss/mean_loss; " in run.stdout
    found = TINY.steps[0]
    assert "  expected: 0x40800000 (4.0)\n" in run.stdout
    assert f"  found: 0x{found.mean_loss_bits} ({np.float32(found.mean_loss)!s})" in run.stdout
    assert "written last by: mean_loss (step 0, sub-batch 0) on worker 0 of rank 0" in run.stdout


def change_libm(content: dict[str, Any]) -> None:
    content["libm_fingerprint"] = {**TINY.libm_fingerprint, "expf": "0" * 64, "powf": "1" * 64}


def test_parity_on_another_libm(tmp_path: Path) -> None:
    """It is never reported as equal, even if another record is."""
    record = changed_record(tmp_path / "libm.json", change_libm)
    run = run_cli("parity", record).check(3)
    line, last = run.stdout.splitlines()
    assert line.endswith("not comparable: this libm has another expf, powf")
    assert last == "parity: not comparable on this machine"
    run = run_cli("parity", record, TINY.path).check(3)
    assert run.stdout.splitlines()[-1] == "parity: not comparable on this machine"
    [result] = json.loads(run_cli("parity", record, "--json").check(3).stdout)
    assert result["outcome"] == "not comparable"
    assert (result["compared"], result["findings"]) == (0, [])


def test_parity_counts_differences_beside_another_libm(tmp_path: Path) -> None:
    libm = changed_record(tmp_path / "libm.json", change_libm)
    one = changed_record(tmp_path / "one.json", lambda content: change_digests(content, (0, "m", "wte")))
    run = run_cli("parity", libm, one).check(1)
    assert run.stdout.splitlines()[-1] == "parity: 570 tensors over 3 steps, 1 differ"


def test_parity_of_broken_records(tmp_path: Path) -> None:
    broken = tmp_path / "[x] broken.json"
    broken.write_text('{"config": ')
    assert_refused(run_cli("parity", broken), str(broken), "JSON")
    assert_refused(run_cli("parity", tmp_path / "none.json"), "none.json", "No such file")
    assert_refused(run_cli("parity", tmp_path), str(tmp_path), "directory")

    def hash_of(key: str) -> Path:
        return changed_record(tmp_path / f"{key}.json", lambda content: content.update({key: "0" * 64}))

    for key, found in (("tokens_sha256", TINY.tokens_sha256), ("checkpoint_sha256", TINY.checkpoint_sha256)):
        assert_refused(run_cli("parity", hash_of(key)), f"{key}.json", f"key {key}", found, "0" * 64)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--scheduler", "nope"), ("scheduler", '"nope"', "lws")),
        (("--sub-batches", "3"), ("sub_batches", "3", "divisor", "2")),
        (("--sub-batches", "0"), ('"all"', '"0"')),
        (("--sub-batches", "some"), ('"all"', '"some"')),
        (("--partition", "two"), ("partition", '"two"', "WxT")),
        (("--partition", "2x2"), ("partition 2x2", "4 cores", "found 2")),
        (("--partition", "3x1"), ("partition 3x1", "found 2")),
        (("--reduction", "sum"), ("--reduction", "sum", "ordered")),
    ],
)
def test_bad_parity_options(options: tuple[str, str], parts: tuple[str, ...]) -> None:
    assert_refused(run_cli("parity", TINY.path, *options, environment=TWO_CORES), *parts)
