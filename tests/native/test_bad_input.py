"""Bad input: each case is refused with its sentence, and the refusal changes nothing.

Files, tokens, options, partitions, calls after close, full disks, wrong libraries. The runs are in child processes, all
cases of one kind in one of them.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import resource
import signal
import struct
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pytest
from numpy.typing import NDArray

from starpullm.binding import header
from starpullm.binding.library import find_library
from starpullm.checks.observer import Observer
from starpullm.data.generator import generate_tokens
from starpullm.errors import (
    FileError,
    FormatError,
    InvalidArgumentError,
    LibraryNotFoundError,
    OutOfMemoryError,
    StarpullmError,
    StateError,
    TokenRangeError,
)
from starpullm.files.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from starpullm.files.header import HEADER_BYTES
from starpullm.files.model import parameter_shapes
from starpullm.golden.records import activation_shapes, shipped_record
from starpullm.runtime import Partition, Runtime, schedulers
from starpullm.trainer import Trainer

from .children import TWO_CORES, Reply, attempt, names_in, run_function
from .conftest import SmallDisk

TINY = shipped_record("tiny")
B, T, V = TINY.batch_size, TINY.seq_len, TINY.model.vocab_size
MAX_T = TINY.model.max_seq_len

Tokens = NDArray[np.int32]


@dataclass(frozen=True)
class Refusal:
    """The exception that is expected, and parts of its sentence."""

    kind: type[StarpullmError]
    parts: tuple[str, ...]


def assert_refused(reply: Reply, kind: type[StarpullmError], *parts: str) -> None:
    assert reply["raised"] == kind.__name__, reply
    assert [part for part in parts if part not in reply["text"]] == [], reply
    assert "\n" not in reply["text"]


def batch(step: int = 0) -> tuple[Tokens, Tokens]:
    return generate_tokens(TINY.seed, step, B, T, V)


@contextmanager
def tiny_trainer(checkpoint: str, partition: str = "1x1", **options: Any) -> Iterator[Trainer]:
    sizes = {"batch_size": B, "seq_len": T}
    with Runtime(partition) as runtime, Trainer(runtime, checkpoint, **{**sizes, **options}) as trainer:
        yield trainer


def open_and_close(runtime: Runtime, checkpoint: str, **options: Any) -> None:
    Trainer(runtime, checkpoint, **{"batch_size": B, "seq_len": T, **options}).close()


def state_of(trainer: Trainer) -> str:
    """Return one hash of all bits of the parameters, m and v."""
    digest = hashlib.sha256()
    for group in ("params", "m", "v"):
        for name in trainer.tensor_names(group):
            digest.update(trainer.tensor(group, name).tobytes())
    return digest.hexdigest()


# ---- Checkpoint files ----

HEADER_FIELDS = ("magic", "version", *vars(TINY.model))
MODEL_BYTES = HEADER_BYTES + 4 * sum(int(np.prod(shape)) for shape in parameter_shapes(TINY.model).values())


@dataclass(frozen=True)
class Damage:
    """How a good checkpoint is damaged, and parts of the sentence that has to report it."""

    apply: Callable[[bytes], bytes]
    parts: tuple[str, ...]


def boundaries() -> Iterator[tuple[str, int]]:
    """Name and position of the end of every field of the header, of the header, and of every tensor."""
    for index, name in enumerate(HEADER_FIELDS):
        yield f"end of {name}", 4 * (index + 1)
    yield "end of header", HEADER_BYTES
    end = HEADER_BYTES
    for name, shape in parameter_shapes(TINY.model).items():
        end += 4 * int(np.prod(shape))
        yield f"end of {name}", end


def cut_to(size: int) -> Callable[[bytes], bytes]:
    return lambda content: (content + bytes(size))[:size]


def wrong_sizes() -> Iterator[tuple[str, Damage]]:
    yield "empty", Damage(cut_to(0), ("0 bytes", str(HEADER_BYTES), "missing"))
    for name, end in boundaries():
        for size in (end - 1, end, end + 1):
            if size != MODEL_BYTES:
                expected = HEADER_BYTES if size < HEADER_BYTES else MODEL_BYTES
                problem = "missing" if size < MODEL_BYTES else "too long"
                yield f"{name} {size - end:+d}", Damage(cut_to(size), (f"{size} bytes", str(expected), problem))
    for extra in (4, HEADER_BYTES, MODEL_BYTES):
        size = MODEL_BYTES + extra
        yield f"{extra} bytes more", Damage(cut_to(size), (f"{size} bytes", str(MODEL_BYTES), f"too long by {extra}"))


def with_header(**fields: int) -> Callable[[bytes], bytes]:
    def apply(content: bytes) -> bytes:
        changed = bytearray(content)
        for name, value in fields.items():
            struct.pack_into("<i", changed, 4 * HEADER_FIELDS.index(name), value)
        return bytes(changed)

    return apply


def header_only(**fields: int) -> Callable[[bytes], bytes]:
    return lambda content: with_header(**fields)(content)[:HEADER_BYTES]


# The size of this model is 1024 bytes modulo 2^64: after a wrapped sum, the header alone would look complete.
WRAPPING = {
    "channels": 2**30,
    "num_heads": 1,
    "num_layers": 1,
    "padded_vocab_size": 2**31 - 1,
    "max_seq_len": 2**31 - 14,
}
LARGEST = dict.fromkeys(("max_seq_len", "vocab_size", "num_layers", "channels", "padded_vocab_size"), 2**31 - 1)


def wrong_headers() -> Iterator[tuple[str, Damage]]:
    magic = ("byte 0", "20240326")
    yield "magic 0", Damage(with_header(magic=0), (*magic, "is 0"))
    yield "magic of a token file", Damage(with_header(magic=20240520), (*magic, "20240520", "token file"))
    yield "magic of other byte order", Damage(lambda content: content[3::-1] + content[4:], magic)
    yield "bfloat16", Damage(with_header(version=5), ("byte 4", "5", "bfloat16", "expected 3"))
    for version in (-1, 0, 2, 4):
        yield f"version {version}", Damage(with_header(version=version), ("byte 4", f"is {version}", "expected 3"))
    for name in HEADER_FIELDS[2:]:
        for value in (0, -1, -(2**31)):
            yield f"{name} {value}", Damage(with_header(**{name: value}), (name, f"is {value}", "at least 1"))
    yield "heads", Damage(with_header(num_heads=3), ("channels", "16", "multiple of num_heads (3)"))
    yield "more heads than channels", Damage(with_header(num_heads=32), ("channels", "16", "num_heads (32)"))
    yield "Vp < V", Damage(with_header(padded_vocab_size=60), ("padded_vocab_size", "60", "vocab_size (61)"))
    yield "V > Vp", Damage(with_header(vocab_size=65), ("padded_vocab_size", "64", "vocab_size (65)"))
    yield "another L", Damage(with_header(num_layers=3), (f"{MODEL_BYTES} bytes", "num_layers 3", "missing"))
    yield "another maxT", Damage(with_header(max_seq_len=15), ("max_seq_len 15", "too long by 64"))
    # 48 · 2^58 bytes and a little more: this fits into unsigned 64 bits only.
    yield "more than 2^63 bytes", Damage(with_header(channels=2**29, num_layers=1), ("too large", "channels 536870912"))
    yield "all largest", Damage(with_header(num_heads=1, **LARGEST), ("too large", "2147483647"))
    yield "wraps to the file's size", Damage(header_only(**WRAPPING), ("too large", "channels 1073741824"))


DAMAGES = dict(itertools.chain(wrong_sizes(), wrong_headers()))


def try_checkpoints(paths: list[str], good: str) -> list[Reply]:
    """Open each file, then the good one."""

    with Runtime() as runtime:
        return [attempt(open_and_close, runtime, path) for path in [*paths, good]]


@pytest.fixture(scope="module")
def damaged(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Reply]]:
    directory = tmp_path_factory.mktemp("damaged")
    content = tiny_checkpoint.read_bytes()
    paths = []
    for number, damage in enumerate(DAMAGES.values()):
        paths.append(directory / f"model{number}.bin")
        paths[-1].write_bytes(damage.apply(content))
    *replies, good = run_function(try_checkpoints, paths, tiny_checkpoint)
    assert good["raised"] is None
    return dict(zip(DAMAGES, zip(paths, replies, strict=True), strict=True))


@pytest.mark.parametrize("case", DAMAGES)
def test_damaged_checkpoint(damaged: dict[str, tuple[Path, Reply]], case: str) -> None:
    path, reply = damaged[case]
    assert_refused(reply, FormatError, str(path), *DAMAGES[case].parts)


def test_no_checkpoint_at_all(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A missing file, a directory, a device, a FIFO without a writer, a name with a NUL."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    nul = f"{tiny_checkpoint}\0.bin"
    missing = tmp_path / "missing.bin"
    paths = [missing, tmp_path, "/dev/zero", fifo, nul]
    no_file, directory, device, pipe, cut, good = run_function(try_checkpoints, paths, tiny_checkpoint)
    assert_refused(no_file, FileError, str(missing), "No such file")
    assert no_file["errno"] == errno.ENOENT
    assert_refused(directory, FormatError, str(tmp_path), "directory", "expected a regular file")
    assert_refused(device, FormatError, "/dev/zero", "device", "expected a regular file")
    assert_refused(pipe, FormatError, str(fifo), "FIFO", "expected a regular file")
    assert_refused(cut, InvalidArgumentError, "NUL", ".bin")
    assert good["raised"] is None


# ---- NaN ----


def train_from(checkpoint: str, partition: str, sub_batches: int) -> list[bool]:
    with tiny_trainer(checkpoint, partition, sub_batches=sub_batches) as trainer:
        losses = [trainer.step(*batch(step)) for step in range(2)]
        after = [trainer.tensor("params", name) for name in trainer.tensor_names("params")]
    return [*map(bool, np.isnan(losses)), bool(np.isnan(np.concatenate([array.ravel() for array in after])).any())]


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(("partition", "sub_batches"), [("1x1", 1), ("2x1", 2)])
def test_weights_that_are_no_numbers(
    tiny_checkpoint: Path, tmp_path: Path, value: float, partition: str, sub_batches: int
) -> None:
    """They are accepted, as by llm.c: the loss is NaN, and nothing crashes."""
    model = read_checkpoint(tiny_checkpoint)
    model.parameters["wte"][...] = value
    path = tmp_path / "nan.bin"
    write_checkpoint(path, Checkpoint(model.config, model.parameters))
    assert run_function(train_from, path, partition, sub_batches, environment=TWO_CORES) == [True, True, True]


# ---- Tokens ----


def with_token(value: int) -> Callable[[Tokens], object]:
    """Return a function that puts a token at [1, 3]."""

    def apply(good: Tokens) -> object:
        changed = good.astype(np.uint64 if value >= 2**63 else np.int64)
        changed[1, 3] = value
        return changed

    return apply


# wte has rows for V to Vp - 1, but these are not tokens.
BAD_IDS = (-1, V, TINY.model.padded_vocab_size - 1, -(2**31), 2**31, 2**32, 2**40, -(2**40), -(2**63), 2**64 - 1)

BAD_TOKENS: dict[str, tuple[Callable[[Tokens], object], Refusal]] = {
    **{
        f"id {value}": (with_token(value), Refusal(TokenRangeError, ("[1, 3]", str(value), f"0 to {V - 1}")))
        for value in BAD_IDS
    },
    **{
        name: (change, Refusal(InvalidArgumentError, (f"expected integers ({B}, {T})", found)))
        for name, change, found in (
            ("floats", lambda good: good.astype(np.float64), "float64"),
            ("booleans", lambda good: good > 30, "bool"),
            ("texts", lambda good: good.astype(str), "<U"),
            ("objects", lambda good: good.astype(object), "object"),
            ("beyond 64 bits", lambda good: [[2**70] * T] * B, "object"),
            ("nothing", lambda good: None, "object ()"),
            ("a number", lambda good: 1, "()"),
            ("one dimension", lambda good: good.ravel(), f"({B * T},)"),
            ("three dimensions", lambda good: good[None], f"(1, {B}, {T})"),
            ("transposed", lambda good: good.T, f"({T}, {B})"),
            ("a sequence too few", lambda good: good[1:], f"({B - 1}, {T})"),
            ("a token too many", lambda good: np.pad(good, ((0, 0), (0, 1))), f"({B}, {T + 1})"),
            ("empty", lambda good: good[:0], f"(0, {T})"),
            ("ragged", lambda good: [[1, 2], [3]], ""),
        )
    },
}

# Every call that takes tokens.
TOKEN_CALLS: dict[str, Callable[[Trainer, object, Tokens], object]] = {
    "submit inputs": lambda trainer, bad, good: trainer.submit(bad, good),  # type: ignore[arg-type]
    "submit targets": lambda trainer, bad, good: trainer.submit(good, bad),  # type: ignore[arg-type]
    "step inputs": lambda trainer, bad, good: trainer.step(bad, good),  # type: ignore[arg-type]
    "evaluate inputs": lambda trainer, bad, good: trainer.evaluate(bad, good),  # type: ignore[arg-type]
    "evaluate targets": lambda trainer, bad, good: trainer.evaluate(good, bad),  # type: ignore[arg-type]
    "probabilities inputs": lambda trainer, bad, good: trainer.probabilities(bad, 0, 0),  # type: ignore[arg-type]
}


class TokenRun(TypedDict):
    """A trainer's replies to bad tokens, its state before and after them, and the losses of the next steps."""

    replies: dict[str, Reply]
    before: str
    after: str
    losses: list[str]


def try_tokens(checkpoint: str, cases: list[str]) -> TokenRun:
    with tiny_trainer(checkpoint) as trainer:
        trainer.step(*batch(0))
        before = state_of(trainer)
        good = batch(1)[0]
        replies = {
            f"{call}: {case}": attempt(TOKEN_CALLS[call], trainer, BAD_TOKENS[case][0](good), good)
            for call in TOKEN_CALLS
            for case in cases
        }
        after = state_of(trainer)
        losses = [trainer.step(*batch(step)).tobytes().hex() for step in (1, 2)]
    return {"replies": replies, "before": before, "after": after, "losses": losses}


@pytest.fixture(scope="module")
def token_run(tiny_checkpoint: Path) -> TokenRun:
    return run_function(try_tokens, tiny_checkpoint, list(BAD_TOKENS))


@pytest.mark.parametrize("call", TOKEN_CALLS)
@pytest.mark.parametrize("case", BAD_TOKENS)
def test_bad_tokens(token_run: TokenRun, call: str, case: str) -> None:
    expected = BAD_TOKENS[case][1]
    assert_refused(token_run["replies"][f"{call}: {case}"], expected.kind, call.split()[1], *expected.parts)


def test_bad_tokens_change_nothing(token_run: TokenRun, tiny_checkpoint: Path) -> None:
    undisturbed = run_function(try_tokens, tiny_checkpoint, [])
    assert token_run["before"] == token_run["after"] == undisturbed["after"]
    assert token_run["losses"] == undisturbed["losses"]


TOKEN_FORMS: dict[str, Callable[[Tokens], object]] = {
    "int32": lambda good: good,
    "list": lambda good: good.tolist(),
    "uint8": lambda good: good.astype(np.uint8),
    "uint64": lambda good: good.astype(np.uint64),
    "other byte order": lambda good: good.astype(good.dtype.newbyteorder()),
    "strided": lambda good: np.repeat(good, 2, axis=1)[:, ::2],
    "column by column": np.asfortranarray,
}


def losses_of_forms(checkpoint: str) -> dict[str, Reply]:
    inputs, targets = batch()
    with tiny_trainer(checkpoint) as trainer:
        return {name: attempt(trainer.evaluate, form(inputs), form(targets)) for name, form in TOKEN_FORMS.items()}


def test_tokens_of_any_integer_type(tiny_checkpoint: Path) -> None:
    """Valid tokens of every integer type are accepted."""
    replies = run_function(losses_of_forms, tiny_checkpoint)
    assert {name: reply["text"] for name, reply in replies.items()} == dict.fromkeys(
        TOKEN_FORMS, repr(np.float32(TINY.steps[0].mean_loss))
    )


# ---- Options of a trainer ----

NUMBERS = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "negative": -1e-3, "too large for binary32": 1e39}

OPTIONS: dict[str, tuple[dict[str, Any], Refusal]] = {
    **{
        f"{option} {name}": ({option: value}, Refusal(InvalidArgumentError, (f"{option}: found", "finite")))
        for option in ("learning_rate", "eps", "weight_decay")
        for name, value in NUMBERS.items()
    },
    **{
        f"beta{index + 1} {name}": (
            {"betas": (value, 0.9) if index == 0 else (0.9, value)},
            Refusal(InvalidArgumentError, (f"beta{index + 1}: found", "below 1")),
        )
        for index in range(2)
        for name, value in {**NUMBERS, "1": 1.0, "rounds to 1": 1 - 1e-12}.items()
    },
    **{
        f"{option} {value}": ({option: value}, Refusal(InvalidArgumentError, (f"{option}: found {value}", *expected)))
        for option, value, *expected in (
            ("seq_len", MAX_T + 1, f"1 to {MAX_T}", "tiny.bin"),
            ("seq_len", 0, f"1 to {MAX_T}"),
            ("seq_len", -1, f"1 to {MAX_T}"),
            ("seq_len", 2**32 + T, f"1 to {MAX_T}"),
            ("batch_size", 0, "at least 1"),
            ("batch_size", -1, "at least 1"),
            ("sub_batches", 0, f"divisor of the batch size {B}"),
            ("sub_batches", -B, f"divisor of the batch size {B}"),
            ("sub_batches", B + 1, f"divisor of the batch size {B}"),
            ("sub_batches", 2 * B, f"divisor of the batch size {B}"),
            ("steps_in_flight", 0, "1 to"),
            ("steps_in_flight", -1, "1 to"),
            ("steps_in_flight", 2**31 - 1, "1 to"),
            ("steps_in_flight", 2**31, "32 bits"),
            ("steps_in_flight", 2**32 + 1, "32 bits"),
            ("batch_size", 2**63, "64 bits"),
            ("batch_size", 2**64 + B, "64 bits"),
            ("batch_size", -(2**63) - 1, "64 bits"),
            ("seq_len", 2**64 + T, "64 bits"),
            ("sub_batches", 2**64 + 1, "64 bits"),
        )
    },
    "batch whose bytes leave 64 bits": (
        {"batch_size": 2**60},
        Refusal(InvalidArgumentError, ("batch_size", str(2**60), "too large")),
    ),
    "batch of larger vectors than StarPU's": (
        {"batch_size": 2**45},
        Refusal(InvalidArgumentError, ("activations/encoded", str(2**45 * 128), "at most 4294967295")),
    ),
    "reduction": ({"reduction": "mean"}, Refusal(InvalidArgumentError, ("reduction", '"mean"', "ordered"))),
}


def try_options(checkpoint: str) -> dict[str, Reply]:
    """Try each option, then the good ones."""
    cases: dict[str, dict[str, Any]] = {**{name: options for name, (options, _) in OPTIONS.items()}, "good": {}}
    with Runtime() as runtime:
        return {
            name: attempt(partial(open_and_close, runtime, checkpoint, **options)) for name, options in cases.items()
        }


@pytest.fixture(scope="module")
def option_replies(tiny_checkpoint: Path) -> dict[str, Reply]:
    replies = run_function(try_options, tiny_checkpoint)
    assert replies["good"]["raised"] is None
    return replies


@pytest.mark.parametrize("case", OPTIONS)
def test_bad_options(option_replies: dict[str, Reply], case: str) -> None:
    expected = OPTIONS[case][1]
    assert_refused(option_replies[case], expected.kind, *expected.parts)


def try_sub_batches(checkpoint: str, number: int) -> Reply:
    with Runtime() as runtime:
        return attempt(partial(open_and_close, runtime, checkpoint, batch_size=number, sub_batches=number))


@pytest.mark.parametrize("number", [2**26, 2**31, 2**32 + 1])
def test_more_sub_batches_than_handles_can_be_counted(tiny_checkpoint: Path, number: int) -> None:
    """With 32-bit counters, the number of handles would wrap to a small one."""
    reply = run_function(try_sub_batches, tiny_checkpoint, number)
    assert reply["raised"] in (InvalidArgumentError.__name__, OutOfMemoryError.__name__), reply
    assert "handles" in reply["text"] or f"sub_batches: found {number}" in reply["text"]


def open_beyond_memory(checkpoint: str) -> list[Reply]:
    with Runtime() as runtime:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        mapped = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + 2**30, hard))
        refused = attempt(partial(open_and_close, runtime, checkpoint, batch_size=2**22))
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        return [refused, attempt(open_and_close, runtime, checkpoint)]


def test_a_batch_that_no_memory_holds(tiny_checkpoint: Path) -> None:
    """Its logits alone are 8 GiB; the process may map 1 GiB more. Afterwards a small one can be trained."""
    refused, good = run_function(open_beyond_memory, tiny_checkpoint)
    assert_refused(refused, OutOfMemoryError, "bytes could not be allocated")
    assert good["raised"] is None


# ---- Runtimes ----

RUNTIMES: dict[str, tuple[str | Partition, str, Refusal]] = {
    **{
        f'malformed "{text!a}"': (text, "lws", Refusal(InvalidArgumentError, (f'"{text}"', "WxT")))
        for text in (
            "",
            "2",
            "x",
            "1x",
            "x1",
            "0x1",
            "1x0",
            "-1x1",
            "+1x1",
            "1x1x1",
            "1X1",
            "1 x 1",
            " 1x1",
            "1x1 ",
            "01x1",
            "1.0x1",
            "9999999999x1",
            "1\uff11x1",
        )
    },
    **{
        f"{workers}, {threads}": (Partition(workers, threads), "lws", Refusal(InvalidArgumentError, ("partition",)))
        for workers, threads in ((0, 1), (1, 0), (-1, 1), (2**31, 1), (2**32 + 1, 1), (1, 2**32 + 1), (2**64 + 1, 1))
    },
    "more than the machine has": ("3x1", "lws", Refusal(InvalidArgumentError, ("3x1", "3 cores", "found 2"))),
    "more than StarPU can": ("999999999x1", "lws", Refusal(InvalidArgumentError, ("999999999x1", "at most"))),
    "threads": ("2x2", "lws", Refusal(InvalidArgumentError, ("2x2", "4 cores", "found 2"))),
    "one worker's threads": ("1x3", "lws", Refusal(InvalidArgumentError, ("1x3", "3 cores", "found 2"))),
    **{
        f"scheduler {name!a}": ("1x1", name, Refusal(InvalidArgumentError, ("scheduler", "expected", "lws")))
        for name in ("", "nope", "LWS", "lws ", "lws\0", "lws\0nope", "\udc80")
    },
}


def try_runtimes() -> dict[str, Reply]:
    def try_one(partition: str | Partition, scheduler: str = "lws") -> None:
        Runtime(partition, scheduler).close()

    replies = {name: attempt(try_one, partition, scheduler) for name, (partition, scheduler, _) in RUNTIMES.items()}
    return {**replies, "good": attempt(try_one, "2x1")}


@pytest.fixture(scope="module")
def runtime_replies() -> dict[str, Reply]:
    replies = run_function(try_runtimes, environment=TWO_CORES)
    assert replies["good"]["raised"] is None
    return replies


@pytest.mark.parametrize("case", RUNTIMES)
def test_bad_runtimes(runtime_replies: dict[str, Reply], case: str) -> None:
    expected = RUNTIMES[case][2]
    assert_refused(runtime_replies[case], expected.kind, *expected.parts)


def more_workers_than_cores() -> Reply:
    return attempt(Runtime, f"{(os.cpu_count() or 1) + 1}x1")


def test_partition_that_this_machine_has_not() -> None:
    reply = run_function(more_workers_than_cores)
    assert_refused(reply, InvalidArgumentError, "partition", "cores", "found")


def make_two_runtimes(checkpoint: str) -> list[Reply]:
    with Runtime() as first, Trainer(first, checkpoint, batch_size=B, seq_len=T) as trainer:
        return [attempt(lambda: Runtime("2x1")), attempt(lambda: trainer.step(*batch()))]


def test_second_runtime(tiny_checkpoint: Path) -> None:
    refused, loss = run_function(make_two_runtimes, tiny_checkpoint, environment=TWO_CORES)
    assert_refused(refused, StateError, "runtime", "running already", "close it")
    assert loss["text"] == repr(np.float32(TINY.steps[0].mean_loss))


def make_runtimes_in_turn(checkpoint: str) -> list[str]:
    losses = []
    for partition, scheduler in (("1x1", "lws"), ("2x1", "eager"), ("2x1", "ws"), ("1x1", "prio"), ("2x1", "lws")):
        attempt(lambda: Runtime("1x1", "nope"))
        with Runtime(partition, scheduler) as runtime, Trainer(runtime, checkpoint, batch_size=B, seq_len=T) as trainer:
            losses.append(repr(trainer.step(*batch())))
    return losses


def test_runtimes_one_after_the_other(tiny_checkpoint: Path) -> None:
    losses = run_function(make_runtimes_in_turn, tiny_checkpoint, environment=TWO_CORES)
    assert losses == [repr(np.float32(TINY.steps[0].mean_loss))] * 5


# ---- After close, and in which order to close ----

TRAINER_CALLS: dict[str, Callable[[Trainer, str], object]] = {
    "submit": lambda trainer, path: trainer.submit(*batch()),
    "step": lambda trainer, path: trainer.step(*batch()),
    "evaluate": lambda trainer, path: trainer.evaluate(*batch()),
    "probabilities": lambda trainer, path: trainer.probabilities(batch()[0], 0, 0),
    "wait": lambda trainer, path: trainer.wait(),
    "tensor": lambda trainer, path: trainer.tensor("params", "wte"),
    "save_checkpoint": lambda trainer, path: trainer.save_checkpoint(path),
    "save_state": lambda trainer, path: trainer.save_state(path),
    "wait_saved": lambda trainer, path: trainer.wait_saved(),
    "gather": lambda trainer, path: trainer.gather(),
    "trace": lambda trainer, path: trainer.trace(),
    "clear_trace": lambda trainer, path: trainer.clear_trace(),
    "findings": lambda trainer, path: Observer(trainer).findings(),
    "hold": lambda trainer, path: Observer(trainer).hold(),
    "release": lambda trainer, path: Observer(trainer).release(),
}

# These need only what the trainer keeps in Python.
ALWAYS_POSSIBLE = {"close", "closed", "tensor_names", "layers_of"}


def call_after_close(checkpoint: str, saved: str) -> dict[str, Reply]:
    with Runtime() as runtime:
        trainer = Trainer(runtime, checkpoint, batch_size=B, seq_len=T, trace=True)
        loss = trainer.submit(*batch())
        trainer.close()
        replies = {name: attempt(call, trainer, saved) for name, call in TRAINER_CALLS.items()}
        replies["close"] = attempt(trainer.close)
        replies["closed"] = attempt(lambda: trainer.closed)
        replies["tensor_names"] = attempt(lambda: trainer.tensor_names("params")[0])
        replies["layers_of"] = attempt(lambda: trainer.layers_of("params", "qkvw"))
    replies["closing the runtime again"] = attempt(runtime.close)
    replies["the runtime's closed"] = attempt(lambda: runtime.closed)
    replies["a trainer on it"] = attempt(lambda: Trainer(runtime, checkpoint, batch_size=B, seq_len=T))
    replies["the loss"] = attempt(lambda: loss.value)
    return replies


@pytest.fixture(scope="module")
def replies_after_close(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reply]:
    saved = tmp_path_factory.mktemp("closed") / "saved.bin"
    replies = run_function(call_after_close, tiny_checkpoint, saved)
    assert not saved.exists()
    return replies


def test_every_method_of_a_trainer_and_its_observer_is_tried() -> None:
    public = {name for of in (Trainer, Observer) for name in dir(of) if not name.startswith("_")}
    assert public == set(TRAINER_CALLS) | ALWAYS_POSSIBLE


@pytest.mark.parametrize("call", TRAINER_CALLS)
def test_trainer_after_close(replies_after_close: dict[str, Reply], call: str) -> None:
    assert_refused(replies_after_close[call], StateError, "trainer", "closed", "expected", "open")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("close", "None"),
        ("closed", "True"),
        ("tensor_names", "'wte'"),
        ("layers_of", "2"),
        ("closing the runtime again", "None"),
        ("the runtime's closed", "True"),
        ("the loss", repr(np.float32(TINY.steps[0].mean_loss))),
    ],
)
def test_still_possible_after_close(replies_after_close: dict[str, Reply], call: str, text: str) -> None:
    assert replies_after_close[call] == {"raised": None, "text": text, "errno": None}


def test_trainer_on_a_closed_runtime(replies_after_close: dict[str, Reply]) -> None:
    assert_refused(replies_after_close["a trainer on it"], StateError, "runtime", "closed", "expected", "open")


def close_runtime_first(checkpoint: str) -> list[Reply]:
    runtime = Runtime()
    first, second = (Trainer(runtime, checkpoint, batch_size=B, seq_len=T) for _ in range(2))
    replies = [attempt(runtime.close)]
    first.close()
    replies += [attempt(runtime.close), attempt(lambda: second.step(*batch()))]
    second.close()
    return [*replies, attempt(runtime.close), attempt(lambda: Runtime().close())]


def test_closing_a_runtime_with_open_trainers(tiny_checkpoint: Path) -> None:
    two, one, loss, none, another = run_function(close_runtime_first, tiny_checkpoint)
    assert_refused(two, StateError, "2", "open", "close them first")
    assert_refused(one, StateError, "1", "open", "close")
    assert loss["text"] == repr(np.float32(TINY.steps[0].mean_loss))
    assert none["raised"] is another["raised"] is None


def leave_everything_open(checkpoint: str) -> str:
    trainer = Trainer(Runtime("2x1"), checkpoint, batch_size=B, seq_len=T, sub_batches=2)
    losses = [trainer.submit(*batch(step)) for step in range(4)]
    return repr(losses[0].value)


def test_a_program_that_closes_nothing_ends(tiny_checkpoint: Path) -> None:
    """The exit status is 0, although steps are still running."""
    loss = run_function(leave_everything_open, tiny_checkpoint, environment=TWO_CORES)
    assert loss == repr(np.float32(TINY.steps[0].mean_loss))


def interrupt_submissions(checkpoint: str) -> dict[str, int]:
    """Interrupt submissions at many moments, and count the exceptions (or none) with which they ended."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    endings: Counter[str] = Counter()
    inputs, targets = batch()
    with tiny_trainer(checkpoint) as trainer:
        for number in range(400):
            try:
                signal.setitimer(signal.ITIMER_REAL, 5e-4 + 3e-6 * number)
                for _ in range(100):
                    trainer.submit(inputs, targets)
                endings["none"] += 1
            except BaseException as error:
                endings[type(error).__name__] += 1
        assert np.isfinite(trainer.step(inputs, targets))
    return endings


def test_an_interrupt_arrives_as_one(tiny_checkpoint: Path) -> None:
    """An interrupt at any moment of a call raises KeyboardInterrupt, and the trainer stays usable."""
    endings = run_function(interrupt_submissions, tiny_checkpoint)
    assert endings.keys() <= {"KeyboardInterrupt", "none"}
    assert endings["KeyboardInterrupt"] > 0


# ---- Names, layers, positions ----

LOOKUPS: dict[str, tuple[Callable[[Trainer], object], Refusal]] = {
    name: (call, Refusal(kind, tuple(parts)))
    for name, call, kind, *parts in (
        ("group", lambda t: t.tensor("weights", "wte"), InvalidArgumentError, "group", '"weights"', "params"),
        ("group of names", lambda t: t.tensor_names("weights"), InvalidArgumentError, "group", '"weights"', "params"),
        ("group of layers", lambda t: t.layers_of("", "wte"), InvalidArgumentError, "group", '""', "params"),
        ("tensor", lambda t: t.tensor("grads", "wtf"), InvalidArgumentError, "grads", '"wtf"', "wte"),
        ("tensor of another group", lambda t: t.tensor("m", "lnf"), InvalidArgumentError, "m", '"lnf"', "lnfw"),
        ("layers of a tensor", lambda t: t.layers_of("v", "wtf"), InvalidArgumentError, "v", '"wtf"', "wte"),
        ("layer 2 of 2", lambda t: t.tensor("params", "qkvw", 2), InvalidArgumentError, "qkvw", "layer 2", "0 to 1"),
        ("layer -1", lambda t: t.tensor("params", "qkvw", -1), InvalidArgumentError, "qkvw", "layer -1", "0 to 1"),
        ("layer 2^32", lambda t: t.tensor("params", "qkvw", 2**32), InvalidArgumentError, "layer", str(2**32)),
        ("layer of one", lambda t: t.tensor("params", "wte", 0), InvalidArgumentError, "wte", "layer 0", "once"),
        ("sequence", lambda t: t.probabilities(batch()[0], B, 0), InvalidArgumentError, "sequence", f"{B}", "0 to 1"),
        ("position", lambda t: t.probabilities(batch()[0], 0, T), InvalidArgumentError, "position", f"{T}", "0 to 7"),
        ("position -1", lambda t: t.probabilities(batch()[0], 0, -1), InvalidArgumentError, "position", "-1", "0 to 7"),
        ("shared activation", lambda t: t.tensor("activations", "preatt"), StateError, "preatt", "keep_activations"),
        (
            "shared gradient",
            lambda t: t.tensor("activation_grads", "qkv", 1),
            StateError,
            "activation_grads/qkv",
            "keep_activations",
        ),
        ("trace", lambda t: t.trace(), StateError, "trace"),
        ("clear_trace", lambda t: t.clear_trace(), StateError, "trace"),
    )
}


def try_lookups(checkpoint: str) -> dict[str, Reply]:
    with tiny_trainer(checkpoint) as trainer:
        trainer.step(*batch())
        return {name: attempt(call, trainer) for name, (call, _) in LOOKUPS.items()}


@pytest.fixture(scope="module")
def lookup_replies(tiny_checkpoint: Path) -> dict[str, Reply]:
    return run_function(try_lookups, tiny_checkpoint)


@pytest.mark.parametrize("case", LOOKUPS)
def test_what_is_not_there(lookup_replies: dict[str, Reply], case: str) -> None:
    expected = LOOKUPS[case][1]
    assert_refused(lookup_replies[case], expected.kind, *expected.parts)


# ---- Saving ----

OLD = b"the file that was there before"


def save_beyond_size_limit(checkpoint: str, path: str) -> list[Reply]:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with tiny_trainer(checkpoint) as trainer:
        trainer.step(*batch())
        resource.setrlimit(resource.RLIMIT_FSIZE, (MODEL_BYTES - 1, hard))
        refused = attempt(trainer.save_checkpoint, path)
        kept = attempt(lambda: Path(path).read_bytes() == OLD)
        names = attempt(names_in, Path(path).parent)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        return [refused, kept, names, attempt(trainer.save_checkpoint, path)]


def test_saving_beyond_the_file_size_limit(tiny_checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(OLD)
    refused, kept, names, saved = run_function(save_beyond_size_limit, tiny_checkpoint, path)
    assert_refused(refused, FileError, str(path), "write", "File too large")
    assert refused["errno"] == errno.EFBIG
    assert kept["text"] == "True"
    assert names["text"] == "['model.bin']"
    assert saved["raised"] is None
    assert names_in(tmp_path) == ["model.bin"]
    assert read_checkpoint(path).config == TINY.model


def save_on_full_disk(checkpoint: str, folder: str) -> list[Reply]:
    path, filler = Path(folder, "model.bin"), Path(folder, "filler")
    with tiny_trainer(checkpoint) as trainer:
        trainer.step(*batch())
        path.write_bytes(OLD)
        status = os.statvfs(folder)
        filler.write_bytes(bytes(status.f_bavail * status.f_frsize - MODEL_BYTES // 2))
        refused = attempt(trainer.save_checkpoint, path)
        kept = attempt(lambda: path.read_bytes() == OLD)
        names = attempt(names_in, Path(folder))
        filler.unlink()
        trainer.save_checkpoint(path)
        return [refused, kept, names, attempt(lambda: read_checkpoint(path).config == TINY.model)]


def test_saving_on_a_full_disk(tiny_checkpoint: Path, small_disk: SmallDisk) -> None:
    refused, kept, names, saved = run_function(
        save_on_full_disk, tiny_checkpoint, small_disk.folder, prefix=small_disk.prefix
    )
    assert_refused(refused, FileError, "model.bin", "write", "No space left")
    assert refused["errno"] == errno.ENOSPC
    assert kept["text"] == "True"
    assert names["text"] == "['filler', 'model.bin']"
    assert saved["text"] == "True"


def save_to(checkpoint: str, paths: list[str]) -> list[Reply]:
    with tiny_trainer(checkpoint) as trainer:
        return [attempt(trainer.save_checkpoint, path) for path in paths]


def test_saving_where_no_file_can_be(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder, file, good = tmp_path / "folder", tmp_path / "file", tmp_path / "good.bin"
    folder.mkdir()
    file.write_bytes(OLD)
    nul = f"{file}\0.bin"
    paths = [tmp_path / "missing" / "model.bin", folder, file / "model.bin", "/dev/null", "", nul, good]
    missing, over, under, device, empty, cut, saved = run_function(save_to, tiny_checkpoint, paths)
    assert_refused(missing, FileError, str(paths[0]), "No such file or directory")
    assert missing["errno"] == errno.ENOENT
    for reply, path, kind in ((over, str(folder), "a directory"), (device, "/dev/null", "a character device")):
        assert reply["raised"] in (FileError.__name__, FormatError.__name__)
        assert f"{path}: is {kind}, expected a regular file" in reply["text"]
    assert_refused(under, FileError, str(paths[2]), "Not a directory")
    assert_refused(empty, InvalidArgumentError, "file")
    assert_refused(cut, InvalidArgumentError, "NUL", ".bin")
    assert saved["raised"] is None
    assert file.read_bytes() == OLD
    assert names_in(tmp_path) == ["file", "folder", "good.bin"]
    assert names_in(folder) == []


# ---- The shared library ----


def use_library() -> Reply:
    return attempt(schedulers)


def reply_with_library(library: str | Path, cwd: Path | None = None) -> Reply:
    return run_function(use_library, environment={"STARPULLM_LIB": str(library)}, cwd=cwd)


def test_no_library(tmp_path: Path) -> None:
    path = tmp_path / "nothing.so"
    assert_refused(reply_with_library(path), LibraryNotFoundError, str(path), "no such file", "STARPULLM_LIB")


def test_directory_as_library(tmp_path: Path) -> None:
    assert_refused(reply_with_library(tmp_path), LibraryNotFoundError, str(tmp_path), "STARPULLM_LIB")


@pytest.mark.parametrize("content", [b"", b"some text\n", b"\x7fELF and no more"])
def test_other_file_as_library(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.so"
    path.write_bytes(content)
    assert_refused(reply_with_library(path), LibraryNotFoundError, str(path), "could not be opened")


def compiled(path: Path, functions: dict[str, int]) -> Path:
    """Compile a shared library with functions that return a constant."""
    source = path.with_suffix(".c")
    source.write_text("".join(f"int {name}(void) {{ return {value}; }}\n" for name, value in functions.items()))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True, timeout=60)
    return path


def test_library_without_our_functions(tmp_path: Path) -> None:
    path = compiled(tmp_path / "other.so", {"something_else": 1})
    assert_refused(reply_with_library(path), LibraryNotFoundError, str(path), "no function starpullm_", "expected")


def test_library_of_another_abi(tmp_path: Path) -> None:
    functions = {f"starpullm_{name}": 0 for name in header.functions()}
    path = compiled(tmp_path / "newer.so", {**functions, "starpullm_abi_version": 3})
    assert_refused(reply_with_library(path), LibraryNotFoundError, str(path), "ABI version is 3", "expected 2")


def test_library_in_the_current_directory(tmp_path: Path) -> None:
    """A relative name is a path; the linker doesn't search for it elsewhere."""
    (tmp_path / "mine.so").symlink_to(find_library().resolve())
    reply = reply_with_library("mine.so", cwd=tmp_path)
    assert reply["raised"] is None, reply


# ---- The tensor tables of the package and of the native library ----


def tensor_tables(checkpoint: str, batch_size: int, seq_len: int) -> dict[str, list[list[object]]]:
    options: dict[str, Any] = {"batch_size": batch_size, "seq_len": seq_len, "keep_activations": True}
    with Runtime() as runtime, Trainer(runtime, checkpoint, **options) as trainer:
        groups = ("params", "grads", "m", "v", "activations", "activation_grads")
        return {
            group: [
                [name, list(trainer.tensor(group, name).shape), trainer.layers_of(group, name)]
                for name in trainer.tensor_names(group)
            ]
            for group in groups
        }


def test_tensor_tables_agree(odd_checkpoint: Path) -> None:
    """Package and native library have the same names, order, shapes and layers of tensors."""
    odd = shipped_record("odd")
    tables = run_function(tensor_tables, odd_checkpoint, odd.batch_size, odd.seq_len)
    layered = {name.partition("[")[0] for group in odd.steps[0].digests.values() for name in group if "[" in name}
    parameters = parameter_shapes(odd.model)
    activations = activation_shapes(odd.model, odd.batch_size, odd.seq_len)
    for group, table in tables.items():
        shapes = activations if group.startswith("activation") else parameters
        expected = [
            [name, list(shape), odd.model.num_layers if name in layered else None] for name, shape in shapes.items()
        ]
        assert table == expected, group
