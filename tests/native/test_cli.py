"""The command line: what it prints, writes and returns; bad usage is answered with one sentence, not with a traceback.

Every command is a child process. `train` and `parity` have files of their own.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from starpullm.binding.library import find_library
from starpullm.data.text import byte_encoding
from starpullm.files.checkpoint import read_checkpoint, write_checkpoint
from starpullm.files.model import ModelConfig, num_parameters, parameter_shapes
from starpullm.files.tokens import read_tokens
from starpullm.golden.records import shipped_record
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer
from starpullm.training.generate import generate

from .children import TWO_CORES, assert_command_refused, names_in, run_cli, run_function

TINY = shipped_record("tiny")
ODD = shipped_record("odd").path


@pytest.mark.parametrize("command", [("trace",), ("parity",), ("convert", "FIFO", "out"), ("generate", "--checkpoint")])
def test_a_fifo_as_input_is_refused(tmp_path: Path, command: tuple[str, ...]) -> None:
    """Opening it would wait for a writer."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    arguments = [str(pipe) if part == "FIFO" else part for part in command]
    if "FIFO" not in command:
        arguments.append(str(pipe))
    run = run_cli(*arguments, timeout=30, cwd=tmp_path)
    assert_command_refused(run, f"{pipe}: is a FIFO, expected a regular file")


def test_missing_options() -> None:
    assert_command_refused(run_cli("train", "--tokens", "x"), "--checkpoint")
    assert_command_refused(run_cli("train", "--checkpoint", "x"), "--tokens")
    assert_command_refused(run_cli("generate"), "--checkpoint")
    assert_command_refused(run_cli("fly"), "fly")


# ---- doctor ----


def test_doctor() -> None:
    run = run_cli("doctor", environment=TWO_CORES).check()
    lines = dict(line.split(maxsplit=1) for line in run.stdout.splitlines())
    assert re.match(r"\d+\.\d+\.\d+, /.", lines["starpullm"])
    assert re.match(r"1\.4\.\d+, /.*/libstarpu-1.4.so", lines["StarPU"])
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
    assert {"compiler", "build_type", "starpu_prefix", "processor", "simd_level", "mpirun"} <= machine.keys()
    assert Path(machine["starpu_library"]).is_file()
    assert any("3e50feece and d8af13220" in finding["sentence"] for finding in machine["findings"])
    assert any("synthetic" in finding["sentence"] for finding in machine["findings"])
    assert run.stderr == ""


def test_doctor_shows_the_starpu_that_is_loaded(tmp_path: Path) -> None:
    built = Path(json.loads(run_cli("doctor", "--json").check().stdout)["starpu_library"])
    other = tmp_path / built.name.rpartition(".0.0")[0]  # its SONAME
    shutil.copy(built, other)
    run = run_cli("doctor", "--json", environment={"LD_LIBRARY_PATH": str(tmp_path)}).check()
    assert json.loads(run.stdout)["starpu_library"] == str(other)


def measure_a_handle() -> float:
    """Return the resident bytes that registering a vector takes in the StarPU that the library is linked with."""
    starpu = ctypes.CDLL(str(find_library()))
    handles = (ctypes.c_void_p * 10_000)()
    assert starpu.starpu_init(None) == 0

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * mmap.PAGESIZE

    before = resident()
    for i in range(len(handles)):
        starpu.starpu_vector_data_register(ctypes.byref(handles, 8 * i), -1, 0, 4, ctypes.c_size_t(4))
    return (resident() - before) / len(handles)


@pytest.mark.parametrize("variable", ["STARPULLM_SIMD", "STARPULLM_L2_CACHE"])
def test_doctor_says_what_runs_refuse(variable: str) -> None:
    lines = run_cli("doctor", environment={variable: "avx9"}).check().stdout.splitlines()
    assert [line.partition(", expected ")[0] for line in lines if line.startswith("problem: no training starts")] == [
        f'problem: no training starts: {variable}: found "avx9"'
    ]


def test_doctor_knows_what_a_handle_takes() -> None:
    """What it says of this StarPU's handles is what they take, and a note says so if that is much."""
    machine = json.loads(run_cli("doctor", "--json").check().stdout)
    measured = run_function(measure_a_handle, environment={"STARPU_NCPU": "1", "STARPU_SILENT": "1"})
    assert 0.9 * measured < machine["starpu_handle_bytes"] < 1.1 * measured
    notes = [finding["sentence"] for finding in machine["findings"] if "each data handle" in finding["sentence"]]
    assert bool(notes) == (measured > 8192), notes
    assert all("--enable-maxnodes=8 --enable-maxcpus=256" in note for note in notes)


def test_doctor_without_a_library(tmp_path: Path) -> None:
    path = tmp_path / "[no] library.so"
    assert_command_refused(
        run_cli("doctor", environment={"STARPULLM_LIB": str(path)}), str(path), "STARPULLM_LIB", returncode=4
    )


def test_cache_of_another_machine() -> None:
    """The blocks of matmuls follow from it, and no bit does."""
    lines = run_cli("doctor", environment={"STARPULLM_L2_CACHE": "1M"}).check().stdout.splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines if line.startswith("cache")] == [
        "L2 1024 KiB a hardware thread"
    ]
    smallest = {**TWO_CORES, "STARPULLM_L2_CACHE": "1"}
    run = run_cli("parity", ODD, "--partition", "1x2", environment=smallest).check()
    assert " 0 differ" in run.stdout


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


def test_generate(byte_checkpoint: Path, sampled_text: Callable[..., str]) -> None:
    encoding, prompt, seed = byte_encoding(), "Shall I", 7
    ids = encoding.encode(prompt).tolist()
    expected, yielded = run_function(sample_again, byte_checkpoint, ids, 20, seed)
    assert yielded == expected
    options = ("--prompt", prompt, "--num-tokens", 20)
    text = sampled_text(*options, "--seed", seed)
    assert text == prompt + encoding.decode(expected) + "\n"
    assert sampled_text(*options, "--seed", seed, "--partition", "1x1", "--scheduler", "eager") == text
    assert sampled_text(*options, "--seed", seed + 1) != text
    assert sampled_text("--prompt", "a\r\x1b[1m\r\n", "--num-tokens", 2).startswith("a\r\x1b[1m\r\n")


def test_generate_from_a_model_with_nan(byte_checkpoint: Path, tmp_path: Path) -> None:
    model = read_checkpoint(byte_checkpoint)
    model.parameters["lnfb"][3] = math.nan
    write_checkpoint(tmp_path / "nan.bin", model)
    run = run_cli("generate", "--checkpoint", tmp_path / "nan.bin", "--num-tokens", 4)
    sentence = "probabilities of the token after position 0: found nan, expected a finite number"
    assert_command_refused(run, sentence, returncode=4)


def test_generate_fills_the_longest_sequence(byte_checkpoint: Path, sampled_text: Callable[..., str]) -> None:
    """maxT is 32: 2 tokens of prompt and 30 to sample fit, 31 don't."""
    sampled_text("--prompt", "ab", "--num-tokens", 30)
    run = run_cli("generate", "--checkpoint", byte_checkpoint, "--prompt", "ab", "--num-tokens", 31)
    assert_command_refused(run, "2 tokens of prompt", "31 to sample", "32")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--prompt", "x" * 33), ("33 tokens of prompt", "32")),
        (("--num-tokens", 0), ("--num-tokens", "0")),
        (("--seed", 2**64), (str(2**64),)),
        (("--checkpoint", "missing.bin"), ("missing.bin", "No such file")),
        (("--partition", "0x1"), ("partition", '"0x1"', "WxT")),
    ],
)
def test_bad_generation(byte_checkpoint: Path, options: tuple[object, ...], parts: tuple[str, ...]) -> None:
    run = run_cli("generate", "--checkpoint", byte_checkpoint, "--num-tokens", 4, *options)
    assert_command_refused(run, *parts)


def test_generate_with_a_vocabulary_that_no_text_has(tiny_checkpoint: Path) -> None:
    run = run_cli("generate", "--checkpoint", tiny_checkpoint)
    assert_command_refused(run, "61 tokens", "257 (bytes), or a tokenizer's file")


# ---- checkpoint, tokenize ----

NEW_MODEL = ("--layers", 2, "--heads", 2, "--channels", 48, "--vocab", 300, "--max-seq-len", 64)
NEW_CONFIG = ModelConfig(max_seq_len=64, vocab_size=300, num_layers=2, num_heads=2, channels=48, padded_vocab_size=384)


def test_checkpoint_new(tmp_path: Path) -> None:
    """tests/unit/test_generator.py has what is drawn."""
    path = tmp_path / "new.bin"
    run = run_cli("checkpoint", "new", *NEW_MODEL, path).check()
    assert run.stdout == f"{path}: {num_parameters(NEW_CONFIG)} parameters\n"
    assert read_checkpoint(path).config == NEW_CONFIG


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
        (("--max-seq-len", 2**31), ("max_seq_len", str(2**31)), 2),
        (("--channels", "many"), ("--channels", "many"), 2),
        (("--seed", -1), ("--seed", "-1"), 2),
        # A file can hold it, but no disk.
        (("--channels", 10**8, "--heads", 1), ("bytes to be written", "are free"), 4),
    ],
)
def test_bad_model_sizes(tmp_path: Path, options: tuple[object, ...], parts: tuple[str, ...], returncode: int) -> None:
    run = run_cli("checkpoint", "new", *NEW_MODEL, *options, tmp_path / "new.bin")
    assert_command_refused(run, *parts, returncode=returncode)
    assert names_in(tmp_path) == []


def test_bad_model_places(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "new.bin"
    assert_command_refused(run_cli("checkpoint", "new", *NEW_MODEL, missing), str(missing), "No such file")
    assert_command_refused(run_cli("checkpoint", "new", *NEW_MODEL, tmp_path), str(tmp_path), "directory")
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
    assert_command_refused(run_cli("checkpoint", "show", cut), str(cut), f"expected {size} bytes", "lnfb")
    assert_command_refused(
        run_cli("checkpoint", "show", tiny_tokens), "expected a model checkpoint, found a token file"
    )
    assert_command_refused(run_cli("checkpoint", "show", tmp_path / "none"), "none", "No such file")


TEXT = "Shall I compare thee to a summer's day?\nThou art more lovely and more temperate — ✓\n" * 20


def test_tokenize_then_train(byte_checkpoint: Path, tmp_path: Path) -> None:
    text, tokens = tmp_path / "text.txt", tmp_path / "text.tokens"
    text.write_text(TEXT, encoding="utf-8")
    run = run_cli("tokenize", text, tokens).check()
    size = len(TEXT.encode())
    assert run.stdout == f"{tokens}: {size} tokens, bytes, vocabulary 257\n"
    assert read_tokens(tokens).size == size
    assert bytes(read_tokens(tokens).astype(np.uint8)) == TEXT.encode()
    options = ("--batch-size", 4, "--seq-len", 32, "--steps", 10, "--learning-rate", 0.01, "--json")
    run = run_cli("train", "--checkpoint", byte_checkpoint, "--tokens", tokens, *options).check()
    losses = json.loads(run.stdout)["losses"]
    assert losses[0] == pytest.approx(math.log(257), rel=0.05)
    assert losses[-1] < losses[0]


def test_tokenize_keeps_bytes(tmp_path: Path) -> None:
    """Also carriage returns; each of several texts begins with the end-of-text token, one by request."""
    windows, mac, out = tmp_path / "windows.txt", tmp_path / "mac.txt", tmp_path / "out.bin"
    windows.write_bytes(b"\xef\xbb\xbfa\r\nb\r\n")
    mac.write_bytes("c\rd\0\x1b[1m\f\x85\u2028".encode())
    alone = [list(text.read_bytes()) for text in (windows, mac)]
    for options, ids in (
        ((windows,), alone[0]),
        (("--end-of-text", mac), [256, *alone[1]]),
        ((windows, mac), [256, *alone[0], 256, *alone[1]]),
    ):
        run = run_cli("tokenize", *options, out).check()
        assert run.stdout == f"{out}: {len(ids)} tokens, bytes, vocabulary 257\n"
        assert read_tokens(out).tolist() == ids
    piped = run_cli("tokenize", "/dev/stdin", out, prefix=("sh", "-c", 'printf "a\\r\\n" | "$@"', "sh"))
    assert piped.check().stdout == f"{out}: 3 tokens, bytes, vocabulary 257\n"
    assert read_tokens(out).tolist() == [97, 13, 10]


def test_bad_texts(tmp_path: Path) -> None:
    latin, out = tmp_path / "latin.txt", tmp_path / "out.bin"
    latin.write_bytes(b"na\xefve")
    assert_command_refused(run_cli("tokenize", latin, out), "latin.txt", "byte 2", "UTF-8")
    assert_command_refused(run_cli("tokenize", tmp_path / "none.txt", out), "none.txt", "No such file")
    assert_command_refused(run_cli("tokenize", tmp_path, out), f"{tmp_path}: expected text, found a folder")
    pointer = tmp_path / "pointer.txt"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert_command_refused(run_cli("tokenize", pointer, out), f"{pointer}: expected text, found a Git LFS pointer")
    pointer.unlink()
    text = tmp_path / "text.txt"
    text.write_text("a")
    assert_command_refused(run_cli("tokenize", text, latin, text), f"{text}: found text, expected a new file")
    assert text.read_text() == "a"
    text.unlink()
    assert_command_refused(
        run_cli("tokenize", latin, out, "--tokenizer", latin), "tiktoken" if not _has_tiktoken() else "magic"
    )
    assert names_in(tmp_path) == ["latin.txt"]


def _has_tiktoken() -> bool:
    import importlib.util

    return importlib.util.find_spec("tiktoken") is not None
