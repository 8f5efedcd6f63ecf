"""Where commands print: into pipes that nobody reads, and on a terminal with a progress bar."""

from __future__ import annotations

import os
import re
import shlex
import signal
from pathlib import Path

import pytest

from .children import TWO_CORES, Finished, cli_command, run_cli, run_command


def run_in_a_shell(line: str) -> Finished:
    """Run a command line in which ``starpullm`` is this installation's."""
    program = shlex.join(cli_command())
    return run_command(["bash", "-c", f'starpullm() {{ {program} "$@"; }}; {line}'], environment=TWO_CORES)


@pytest.mark.parametrize(
    "options",
    ["--help", "doctor --json", "checkpoint show MODEL", "parity tiny odd"],
)
def test_a_closed_pipe_is_no_difference(tiny_checkpoint: Path, options: str) -> None:
    """Nobody reads what a command prints: it ends as by SIGPIPE, without a word; 1 would mean that bits differ."""
    options = options.replace("MODEL", str(tiny_checkpoint))
    run = run_in_a_shell(f"starpullm {options} | true; exit ${{PIPESTATUS[0]}}")
    assert run.check(128 + signal.SIGPIPE).stderr == ""


def test_the_first_line_of_a_long_output() -> None:
    run = run_in_a_shell("starpullm parity tiny odd small | head -1; exit ${PIPESTATUS[0]}").check(128 + signal.SIGPIPE)
    assert (
        run.stdout
        == "parity of tiny-1-ordered on 1x1 lws: passed: 570 tensors compared; 3 steps against golden record\n"
    )
    assert run.stderr == ""


PRINTING = ("--help", "doctor --json", "checkpoint show MODEL", "parity tiny", "nonsense")


@pytest.mark.parametrize("options", PRINTING)
def test_output_that_can_not_be_written(tiny_checkpoint: Path, options: str) -> None:
    """A full disk is one sentence; where errors can't be written, the exit status is as elsewhere."""
    command = f"starpullm {options.replace('MODEL', str(tiny_checkpoint))}"
    status = 2 if options == "nonsense" else 0
    run_in_a_shell(f"{command} 2> /dev/full").check(status)
    if status == 0:
        full = run_in_a_shell(f"{command} > /dev/full").check(4)
        assert full.stderr == "Error: standard output: can't be written: No space left on device\n"


def test_output_that_is_closed(tiny_checkpoint: Path) -> None:
    """It isn't opened again by the next file."""
    closed = run_in_a_shell(f"starpullm checkpoint show {tiny_checkpoint} >&-").check(4)
    assert closed.stderr == "Error: standard output: is closed, expected it open: > /dev/null drops what is printed\n"
    script = f"starpullm checkpoint show {tiny_checkpoint} <&- 2>&- | grep -c heads"
    assert run_in_a_shell(script).check().stdout == "1\n"


@pytest.mark.parametrize("columns", ["0", "1", "-1", "²", "none"])
def test_a_width_that_no_terminal_has(columns: str) -> None:
    run = run_cli("predict", "--model", "tiny", "--gflops", 1, environment={"COLUMNS": columns, "LINES": columns})
    assert run.check().stdout.startswith("tiny, B = ")


@pytest.mark.parametrize(("encoding", "dots"), [("latin-1", "?"), ("ascii", "…")])
def test_what_the_locale_can_not_encode_is_replaced(byte_checkpoint: Path, encoding: str, dots: str) -> None:
    """Where a locale has nothing but ASCII, click writes UTF-8."""
    environment = {"PYTHONIOENCODING": encoding}
    assert "Usage: " in run_cli("parity", "--help", environment=environment).check().stdout
    generated = ("generate", "--checkpoint", byte_checkpoint, "--num-tokens", 4, "--prompt", "… says")
    assert run_cli(*generated, environment=environment).check().stdout.startswith(f"{dots} says")


def lines_on_a_terminal(*arguments: object) -> list[str]:
    """Return what a command writes to a terminal, in pieces between line feeds and carriage returns."""
    command = ["script", "--quiet", "--return", "--command", shlex.join(cli_command(*arguments)), os.devnull]
    run = run_command(command, environment={**TWO_CORES, "TERM": "xterm"}).check()
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", run.stdout))


def test_results_stand_above_the_progress_bar(tiny_checkpoint: Path, tiny_tokens: Path) -> None:
    """Each has a line of its own; the bar is drawn again below it."""
    lines = lines_on_a_terminal("parity", "tiny", "odd")
    assert any(line.startswith("parity ━") for line in lines)
    assert [line for line in lines if " 0 differ" in line or " passed: " in line] == [
        "parity of tiny-1-ordered on 1x1 lws: passed: 570 tensors compared; 3 steps against golden record",
        "parity of odd-1-ordered on 1x1 lws: passed: 1,080 tensors compared; 4 steps against golden record",
        "parity: 1650 tensors over 7 steps, 0 differ",
    ]
    files = ("--checkpoint", tiny_checkpoint, "--tokens", tiny_tokens)
    lines = lines_on_a_terminal("train", *files, "--batch-size", 2, "--seq-len", 8, "--steps", 3)
    assert any(line.startswith("training ━") for line in lines)
    steps = [line for line in lines if "loss" in line]
    assert len(steps) == 3
    assert all(re.fullmatch(r"step \d/3: loss \d\.\d{6}, \d+\.\d{3} tokens/ms, \d+ s left", line) for line in steps)
