"""Where commands print: into pipes that nobody reads, and on a terminal with a progress bar."""

from __future__ import annotations

import os
import re
import shlex
import signal
from pathlib import Path

import pytest

from .children import TWO_CORES, Finished, cli_command, run_command


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
