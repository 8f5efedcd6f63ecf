"""Bad input from Python: each case is refused with its sentence, and the refusal changes nothing.

Tokens, options, partitions, names, a full disk. What the C library refuses by itself is in limits/. The runs are in
child processes, all cases of one kind in one of them.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pytest

from starpullm.errors import InvalidArgumentError, OutOfMemoryError, StarpullmError, TokenRangeError
from starpullm.files.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from starpullm.golden.records import shipped_record
from starpullm.predict.plan import make_plan
from starpullm.runtime import Partition, Runtime
from starpullm.trainer import Trainer

from .children import TWO_CORES, Reply, assert_refused, attempt, names_in, run_function, run_python
from .tiny import TINY, B, T, Tokens, V, batch, bits_of, tiny_trainer


@dataclass(frozen=True)
class Refusal:
    """The exception that is expected, and parts of its sentence."""

    kind: type[StarpullmError]
    parts: tuple[str, ...]


def open_and_close(runtime: Runtime, checkpoint: str, **options: Any) -> None:
    Trainer(runtime, checkpoint, **{"batch_size": B, "seq_len": T, **options}).close()


# ---- NaN ----


def train_from(checkpoint: str) -> list[bool]:
    with tiny_trainer("2x1", checkpoint, sub_batches=2) as trainer:
        losses = [trainer.step(*batch(step)) for step in range(2)]
        after = [trainer.tensor("params", name) for name in trainer.tensor_names("params")]
    return [*map(bool, np.isnan(losses)), bool(np.isnan(np.concatenate([array.ravel() for array in after])).any())]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers(tiny_checkpoint: Path, tmp_path: Path, value: float) -> None:
    """They are accepted, as by llm.c: the loss is NaN, and nothing crashes."""
    model = read_checkpoint(tiny_checkpoint)
    model.parameters["wte"][...] = value
    path = tmp_path / "nan.bin"
    write_checkpoint(path, Checkpoint(model.config, model.parameters))
    assert run_function(train_from, path, environment=TWO_CORES) == [True, True, True]


# ---- Tokens ----


def with_token(value: int) -> Callable[[Tokens], object]:
    """Return a function that puts a token at [1, 3]."""

    def apply(good: Tokens) -> object:
        changed = good.astype(np.uint64 if value >= 2**63 else np.int64)
        changed[1, 3] = value
        return changed

    return apply


# wte has rows for V to Vp - 1, but these are not tokens.
BAD_IDS = (V, TINY.model.padded_vocab_size - 1, 2**31, 2**32, -(2**40), -(2**63), 2**64 - 1)

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
    with tiny_trainer("1x1", checkpoint) as trainer:
        trainer.step(*batch(0))
        before = bits_of(trainer)
        good = batch(1)[0]
        replies = {
            f"{call}: {case}": attempt(TOKEN_CALLS[call], trainer, BAD_TOKENS[case][0](good), good)
            for call in TOKEN_CALLS
            for case in cases
        }
        after = bits_of(trainer)
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
    with tiny_trainer("1x1", checkpoint) as trainer:
        return {name: attempt(trainer.evaluate, form(inputs), form(targets)) for name, form in TOKEN_FORMS.items()}


def test_tokens_of_any_integer_type(tiny_checkpoint: Path) -> None:
    """Valid tokens of every integer type are accepted."""
    replies = run_function(losses_of_forms, tiny_checkpoint)
    assert {name: reply["text"] for name, reply in replies.items()} == dict.fromkeys(
        TOKEN_FORMS, repr(np.float32(TINY.steps[0].mean_loss))
    )


# ---- Options of a trainer ----

OPTIONS: dict[str, tuple[dict[str, Any], Refusal]] = {
    **{
        f"{option} {value}": ({option: value}, Refusal(InvalidArgumentError, (f"{option}: found {value}", expected)))
        for option, value, expected in (
            ("steps_in_flight", 2**31, "32 bits"),
            ("steps_in_flight", 2**32 + 1, "32 bits"),
            ("batch_size", 2**63, "64 bits"),
            ("batch_size", 2**64 + B, "64 bits"),
            ("batch_size", -(2**63) - 1, "64 bits"),
            ("seq_len", 2**64 + T, "64 bits"),
            ("sub_batches", 2**64 + 1, "64 bits"),
        )
    },
    **{
        f"{option} too large for binary32": ({option: 1e39}, Refusal(InvalidArgumentError, (f"{option}: found inf",)))
        for option in ("learning_rate", "eps", "weight_decay")
    },
    "a beta that rounds to 1": ({"betas": (0.9, 1 - 1e-12)}, Refusal(InvalidArgumentError, ("beta2: found 1",))),
    "three betas": ({"betas": (0.9, 0.9, 0.9)}, Refusal(InvalidArgumentError, ("betas: found 3 numbers, expected 2",))),
    "reduction": ({"reduction": "mean"}, Refusal(InvalidArgumentError, ("reduction", '"mean"', "ordered"))),
}
"""What Python refuses, or changes before C sees it."""


def try_options(checkpoint: str) -> dict[str, Reply]:
    """Try each option, then the good ones."""
    cases: dict[str, dict[str, Any]] = {**{name: options for name, (options, _) in OPTIONS.items()}, "good": {}}
    with Runtime() as runtime:
        return {
            name: attempt(partial(open_and_close, runtime, checkpoint, **options)) for name, options in cases.items()
        }


def test_bad_options(tiny_checkpoint: Path) -> None:
    replies = run_function(try_options, tiny_checkpoint)
    assert replies["good"]["raised"] is None
    for case, (_, expected) in OPTIONS.items():
        assert_refused(replies[case], expected.kind, *expected.parts)


def open_beyond_memory(checkpoint: str) -> list[Reply]:
    with Runtime() as runtime:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        mapped = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + 2**30, hard))
        refused = attempt(partial(open_and_close, runtime, checkpoint, batch_size=2**22, memory_limit=0))
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        return [refused, attempt(open_and_close, runtime, checkpoint)]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a process can't be bound to fewer cores than one")
def test_a_partition_for_more_cores_than_the_process_is_bound_to() -> None:
    """As mpirun binds each rank to one core."""
    code = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "from starpullm import Runtime; from starpullm.errors import InvalidArgumentError\n"
        "try: Runtime('1x2')\n"
        "except InvalidArgumentError as error: print(error)"
    )
    assert re.fullmatch(
        r"partition 1x2: needs 2 cores, found this process bound to 1 of the machine's \d+, expected no binding or "
        r"enough cores \(under Open MPI's mpirun: --bind-to none, or --map-by slot:PE=2\)\n",
        run_python(code).stdout,
    )


def test_a_batch_that_no_memory_holds(tiny_checkpoint: Path) -> None:
    """Its logits alone are 8 GiB; the process may map 1 GiB more. Afterwards a small one can be trained."""
    refused, good = run_function(open_beyond_memory, tiny_checkpoint)
    assert_refused(refused, OutOfMemoryError, "bytes could not be allocated")
    assert good["raised"] is None


LESS: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, "recompute, more sub_batches, reused weight_gradients, a runtime with offload, "),
    ({"recompute": "attention"}, "recompute, more sub_batches, reused weight_gradients, a runtime with offload, "),
    ({"recompute": "block"}, "more sub_batches, reused weight_gradients, a runtime with offload, "),
    ({"weight_gradients": "reused"}, "recompute, a runtime with offload, "),
    ({"recompute": "block", "weight_gradients": "reused"}, "a runtime with offload, "),
    ({"sub_batches": 4, "activation_sets": 1}, "recompute, a runtime with offload, "),
    ({"sub_batches": 4, "activation_sets": 1, "recompute": "block"}, "a runtime with offload, "),
)
"""Options, and what the refusal names: each option that takes less and isn't chosen yet."""


def open_with_limits(checkpoint: str) -> list[tuple[int, list[Reply]]]:
    """What a trainer says to the least limit, a byte less, and -1, with each of these options."""
    replies = []
    with Runtime() as runtime:
        for chosen, _ in LESS:
            options: dict[str, Any] = {"batch_size": 4, "seq_len": T, "sub_batches": 1, **chosen}
            plan = make_plan(shipped_record("tiny").model, ranks=1, reduction="ordered", **options)
            needed = int(plan.bytes_of_ranks().max())
            limits = (needed, needed - 1, -1)
            calls = [partial(open_and_close, runtime, checkpoint, **options, memory_limit=limit) for limit in limits]
            replies.append((needed, [attempt(call) for call in calls]))
    return replies


def test_a_run_that_the_memory_cannot_hold(tiny_checkpoint: Path) -> None:
    """It is refused before anything is allocated; the least limit is what the plan says, to the byte."""
    replies = run_function(open_with_limits, tiny_checkpoint)
    for (needed, (good, refused, negative)), (_, less) in zip(replies, LESS, strict=True):
        assert good["raised"] is None
        sentence = f"found {needed} bytes of buffers on rank 0, expected at most {needed - 1}: {less}"
        assert_refused(refused, OutOfMemoryError, f"{sentence}fewer or shorter sequences take less")
        assert_refused(negative, InvalidArgumentError, "memory_limit: found -1")


def test_the_limit_of_a_control_group(memory_group: Path | None) -> None:
    if memory_group is None:
        pytest.skip("no control group with a limit can be made")
    code = (
        "import os, sys; from pathlib import Path; from starpullm.memory import available_memory\n"
        "before = available_memory()\n"
        "Path(sys.argv[1], 'cgroup.procs').write_text(str(os.getpid()))\n"
        "print(before, available_memory())"
    )
    before, after = map(int, run_python(code, memory_group).stdout.split())
    assert 0 < after <= 400 * 2**20 < before


# ---- Runtimes ----

RUNTIMES: dict[str, tuple[str | Partition, str, Refusal]] = {
    **{
        f'malformed "{text!a}"': (text, "lws", Refusal(InvalidArgumentError, (f'"{text}"', "WxT")))
        for text in (
            *("", "2", "x", "1x", "x1", "0x1", "1x0", "-1x1", "+1x1", "1x1x1", "1X1", "1 x 1", " 1x1", "1x1 ", "01x1"),
            *("1.0x1", "9999999999x1", "1\uff11x1"),
        )
    },
    **{
        f"{workers}, {threads}": (Partition(workers, threads), "lws", Refusal(InvalidArgumentError, ("partition",)))
        for workers, threads in ((2**31, 1), (2**32 + 1, 1), (1, 2**32 + 1), (2**64 + 1, 1))
    },
    **{
        f"scheduler {name!a}": ("1x1", name, Refusal(InvalidArgumentError, ("scheduler", "expected", "lws")))
        for name in ("lws ", "lws\0", "lws\0nope", "\udc80")
    },
}


def try_runtimes() -> dict[str, Reply]:
    def try_one(partition: str | Partition, scheduler: str = "lws") -> None:
        Runtime(partition, scheduler).close()

    replies = {name: attempt(try_one, partition, scheduler) for name, (partition, scheduler, _) in RUNTIMES.items()}
    return {**replies, "good": attempt(try_one, "2x1")}


def test_bad_runtimes() -> None:
    replies = run_function(try_runtimes, environment=TWO_CORES)
    assert replies["good"]["raised"] is None
    for case, (_, _, expected) in RUNTIMES.items():
        assert_refused(replies[case], expected.kind, *expected.parts)


# ---- Programs that don't close, and interrupts ----


def leave_everything_open(checkpoint: str) -> str:
    trainer = Trainer(Runtime("2x1"), checkpoint, batch_size=B, seq_len=T, sub_batches=2)
    losses = [trainer.submit(*batch(step)) for step in range(4)]
    return repr(losses[0].result())


def test_a_program_that_closes_nothing_ends(tiny_checkpoint: Path) -> None:
    """The exit status is 0, although steps are still running."""
    loss = run_function(leave_everything_open, tiny_checkpoint, environment=TWO_CORES)
    assert loss == repr(np.float32(TINY.steps[0].mean_loss))


def interrupted(act: Callable[[], object], delays: Iterable[float]) -> dict[str, int]:
    """Interrupt an action after each of these delays (s), and count the exceptions (or none) with which it ended.

    Python ignores one in a destructor, and warns of a file that an interrupt leaves between ``open`` and ``with``.
    """

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    endings: Counter[str] = Counter()
    sys.unraisablehook = lambda ignored: endings.update([f"ignored {ignored.exc_type.__name__}"])
    for delay in delays:
        with suppress(KeyboardInterrupt):  # after the action
            try:
                signal.setitimer(signal.ITIMER_REAL, delay)
                act()
                endings["none"] += 1
            except BaseException as error:
                endings[type(error).__name__] += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
    return endings


def interrupt_submissions(checkpoint: str) -> dict[str, int]:
    inputs, targets = batch()
    with tiny_trainer("1x1", checkpoint) as trainer:

        def submit() -> None:
            for _ in range(100):
                trainer.submit(inputs, targets)

        endings = interrupted(submit, np.linspace(0.5e-3, 1.7e-3, 400))
        assert np.isfinite(trainer.step(inputs, targets))
    return endings


def interrupt_creations(checkpoint: str) -> dict[str, int]:
    def create() -> None:
        with Runtime() as runtime:
            for _ in range(50):
                with Trainer(runtime, checkpoint, batch_size=B, seq_len=T):
                    pass

    return interrupted(create, np.linspace(0.001, 0.06, 100))


@pytest.mark.parametrize(
    ("interrupt", "warned"), [(interrupt_submissions, ()), (interrupt_creations, ("ignored ResourceWarning",))]
)
def test_an_interrupt_arrives_as_one(
    tiny_checkpoint: Path, interrupt: Callable[[str], dict[str, int]], warned: tuple[str, ...]
) -> None:
    """An interrupt at any moment raises KeyboardInterrupt; what is open stays usable, or is closed by its block."""
    endings = run_function(interrupt, tiny_checkpoint)
    assert endings.keys() <= {"KeyboardInterrupt", "none", "ignored KeyboardInterrupt", *warned}
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
        ("layer 2^32", lambda t: t.tensor("params", "qkvw", 2**32), InvalidArgumentError, "layer", str(2**32)),
        ("layer of one", lambda t: t.tensor("params", "wte", 0), InvalidArgumentError, "wte", "layer 0", "once"),
        ("position -1", lambda t: t.probabilities(batch()[0], 0, -1), InvalidArgumentError, "position", "-1", "0 to 7"),
    )
}


def try_lookups(checkpoint: str) -> dict[str, Reply]:
    with tiny_trainer("1x1", checkpoint) as trainer:
        trainer.step(*batch())
        return {name: attempt(call, trainer) for name, (call, _) in LOOKUPS.items()}


def test_what_is_not_there(tiny_checkpoint: Path) -> None:
    replies = run_function(try_lookups, tiny_checkpoint)
    for case, (_, expected) in LOOKUPS.items():
        assert_refused(replies[case], expected.kind, *expected.parts)


# ---- Saving ----


def save_to(checkpoint: str, path: str) -> Reply:
    with tiny_trainer("1x1", checkpoint) as trainer:
        return attempt(trainer.save_checkpoint, path)


def test_saving_to_a_path_with_a_nul(tiny_checkpoint: Path, tmp_path: Path) -> None:
    reply = run_function(save_to, tiny_checkpoint, f"{tmp_path}/file\0.bin")
    assert_refused(reply, InvalidArgumentError, "NUL", ".bin")
    assert names_in(tmp_path) == []
