"""A live llm.c as the reference, with a stand-in that has its functions and its model's layout, compiled here.

Needs the checkout and a compiler. llm.c itself is no part of the project: docs/suite.md
says how to run the same with it, and what came out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from starpullm.binding.kernels import Kernel
from starpullm.checks.references import GoldenReference
from starpullm.golden.records import shipped_record
from starpullm.resume import training_state
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer

from .children import TWO_CORES, Finished, run_cli, run_function

StandIn = Callable[..., Path]


def parity(library: Path, *options: object) -> Finished:
    """Compare tiny with it."""
    return run_cli("parity", shipped_record("tiny").path, "--llmc-library", library, *options, environment=TWO_CORES)


def test_every_tensor_of_every_step(llmc_stand_in: StandIn) -> None:
    """A command of docs/suite.md compares odd, too."""
    record = shipped_record("tiny")
    run = parity(llmc_stand_in(), "--partition", "2x1", "--sub-batches", record.batch_size).check()
    tensors = sum(len(group) for step in record.steps for group in step.digests.values())
    line, last = run.stdout.splitlines()
    assert line.startswith(f"parity of tiny-{record.batch_size}-ordered on 2x1 lws: passed: {tensors:,} tensors ")
    assert line.endswith(f"; {record.num_steps} steps against llm.c in {llmc_stand_in()}")
    assert last == f"parity: {tensors} tensors over {record.num_steps} steps, 0 differ"


def test_functions_of_the_platform(llmc_stand_in: StandIn) -> None:
    """Training takes them too, if they aren't the contract's; a runtime of the contract has other bits than these."""
    library = llmc_stand_in("PLATFORM")
    run = parity(library, "--partition", "2x1").check()
    line, last = run.stdout.splitlines()
    assert last == "parity: 570 tensors over 3 steps, 0 differ"
    differs = run_function(tanhf_differs)
    named = ", functions: the platform's libm" if differs else ""
    assert line.endswith(f"3 steps against llm.c in {library}{named}")
    [result] = json.loads(parity(library, "--json").check().stdout)
    assert result["facts"]["platform_functions"] is differs
    line, _ = parity(library, "--sub-batches", 2, "--activation-sets", 1).check().stdout.splitlines()
    assert line.endswith(", no activations" if differs else ", activations of the last 1 of 2 sub-batches")


def test_functions_that_are_neither(llmc_stand_in: StandIn) -> None:
    library = llmc_stand_in("OTHER_EXPF")
    run = parity(library).check(2)
    counts = r"of 512 elements of activations/att, (\d+) aren't those of the correctly rounded function and (\d+) not "
    sentence = (
        rf"Error: {library}: found expf \({counts}those of this machine's libm\), expected all functions correctly "
    )
    found = re.match(sentence, run.stderr)
    assert found, run
    assert all(int(count) > 100 for count in found.groups())


def test_functions_of_both_kinds(llmc_stand_in: StandIn) -> None:
    """Of tiny's exponentials none tells the two expf apart, so it has the contract's bits; one of odd's does."""
    if not run_function(tanhf_differs):
        pytest.skip("this libm's functions are correctly rounded")
    library = llmc_stand_in("PLATFORM_EXPF")
    parity(library).check()
    run = run_cli("parity", "odd", "--llmc-library", library).check(2)
    assert re.match(
        rf"Error: {library}: found expf \(of .*libm\) and tanhf \(of .*libm\), expected all ", run.stderr
    ), run


def strict_state(checkpoint: str, folder: str, *functions: bool) -> bool:
    """Save a state after a step with each kind of functions, and return whether the last one is strict."""
    tokens = np.zeros((2, 4), np.int32)
    for number, platform_functions in enumerate(functions):
        start: dict[str, Any] = {"resume": folder} if number else {"checkpoint": checkpoint}
        with (
            Runtime(platform_functions=platform_functions) as runtime,
            Trainer(runtime, batch_size=2, seq_len=4, **start) as trainer,
        ):
            trainer.step(tokens, tokens)
            trainer.save_state(folder)
    return training_state(folder).arithmetic == "strict"


@pytest.mark.parametrize(
    ("functions", "strict"), [((False,), True), ((True,), False), ((True, False), False), ((False, True), False)]
)
def test_states_say_whether_libm_computed_steps(
    tiny_checkpoint: Path, tmp_path: Path, functions: tuple[bool, ...], strict: bool
) -> None:
    assert run_function(strict_state, tiny_checkpoint, tmp_path / "states", *functions) is strict


def tanhf_differs() -> bool:
    """Return whether this libm's tanhf isn't correctly rounded, for use in a child."""
    inp = np.linspace(0, 4, 1000, dtype=np.float32)
    own, platform = np.empty_like(inp), np.empty_like(inp)
    for level, out in (("ref", own), ("platform", platform)):
        Kernel(level, "gelu_forward")({"out": out, "inp": inp, "count": inp.size})
    return bool((own != platform).any())


def test_other_bits_are_found_and_named(llmc_stand_in: StandIn, tiny_checkpoint: Path) -> None:
    """Two ULPs in one element of one gradient; what follows differs too; the golden record says who is off."""
    library = llmc_stand_in("OTHER_BITS")
    [result] = json.loads(parity(library, "--json").check(1).stdout)
    assert result["outcome"] == "failed"
    assert result["facts"]["reference"] == f"llm.c in {library}"
    sentences = [finding["where"] for finding in result["findings"]]
    assert sentences[:3] == [f"step 0, {group}/fcprojb[1]" for group in ("grads", "m", "v")]
    rows = result["findings"][0]["evidence"]
    assert (rows["first element"], result["facts"]["ulps_of_first"]) == ("14, [14]", 2)
    assert rows["differ"].startswith("1 of ")
    golden = GoldenReference(shipped_record("tiny"), tiny_checkpoint)
    ours = golden.expected_values(0, "grads", "fcprojb[1]").values
    assert ours is not None
    assert rows["found"].startswith(f"0x{ours[14].view(np.uint32):08x} ")
    assert rows["expected values"].startswith(f"llm.c in {library}; ")
    assert rows["expected values"].endswith(
        "of its tensors differ from the golden record's: was it built as docs/numerics.md says?"
    )


@pytest.mark.parametrize(
    ("defects", "parts"),
    [
        (("WITHOUT_UPDATE",), ("found no gpt2_update", "expected llm.c's functions")),
        (("OTHER_CONFIG",), ("isn't laid out like llm.c's: config.max_seq_len: found 61, expected 16",)),
        (("OTHER_SIZES",), ("param_sizes[1]: found 257, expected 256",)),
        (("LONGER",), ("memory behind the struct: found written to, expected untouched",)),
        (("OTHER_VALUES",), ("params.ln2b: found others, expected the checkpoint's values",)),
        (("OTHER_LOSS",), ("mean_loss: found 8.", "as the losses are")),
    ],
)
def test_other_layouts_are_refused(llmc_stand_in: StandIn, defects: tuple[str, ...], parts: tuple[str, ...]) -> None:
    library = llmc_stand_in(*defects)
    run = parity(library).check(2)
    assert run.stdout == ""
    assert run.stderr.startswith(f"Error: {library}: ")
    assert len(run.stderr.splitlines()) == 1
    for part in parts:
        assert part in run.stderr


def test_a_library_that_exits(llmc_stand_in: StandIn) -> None:
    """As llm.c does where something is wrong; what it wrote is shown."""
    library = llmc_stand_in("EXITS=3")
    run = parity(library).check(4)
    assert run.stderr.startswith(f"Error: llm.c in {library}: the process ended with exit status 3 (")
    assert "phase llm.c's backward" in run.stderr
    assert "stand-in: no more" in run.stderr
    run = parity(llmc_stand_in("EXITS=0")).check(4)
    assert "ended its process before the end of its run: completed after" in run.stderr


def test_a_library_that_crashes(llmc_stand_in: StandIn) -> None:
    library = llmc_stand_in("CRASHES")
    run = parity(library).check(4)
    assert run.stderr.startswith(f"Error: llm.c in {library}: the process was ended by SIGSEGV (")
    assert "phase llm.c's forward" in run.stderr


def test_what_is_no_library(tmp_path: Path) -> None:
    run = parity(tmp_path / "none.so").check(2)
    assert (
        run.stderr == f"Error: {tmp_path / 'none.so'}: no such file, expected a shared object with llm.c's functions\n"
    )
    text = tmp_path / "text.so"
    text.write_text("no library")
    assert parity(text).check(2).stderr.startswith(f"Error: {text}: could not be opened: ")
