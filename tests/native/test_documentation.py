"""The marked commands of the pages run as they stand, page by page, and so do the examples of the help texts.

The commands of a page run one after the other in a folder of their own, which has the files that a reader would have.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib import resources
from pathlib import Path

import click
import pytest

from starpullm.commands import main
from starpullm.data.generator import initial_checkpoint
from starpullm.data.text import byte_encoding
from starpullm.files.conversion import to_hugging_face
from starpullm.files.model import ModelConfig
from starpullm.files.tokens import write_tokens

from .children import TWO_CORES, Finished, only_ranks_on_their_cores, run_cli, run_command

ROOT = Path(__file__).parents[2]
MARK = f"<!-- run by {Path(__file__).relative_to(ROOT)} -->"
PAGES = ("reference.md", "results.md", "start.md", "suite.md")
MODEL = ModelConfig(
    max_seq_len=128,
    vocab_size=byte_encoding().vocab_size,
    num_layers=2,
    num_heads=2,
    channels=16,
    padded_vocab_size=384,
)
ENOUGH_CORES = len(os.sched_getaffinity(0)) > 1
"""Commands over ranks then run on the real topology: mpirun's binding is a part of what is shown."""

NOT_RUN = {
    "bench": "takes minutes; test_bench.py and test_against.py measure smaller models",
    "demo": "takes half a minute; test_demo.py runs a shorter one",
    "fuzz": "takes minutes; tests/fuzz runs fewer programs",
    "predict --model gpt2-124m --partition 12x3": "takes a quarter of a minute; test_predict.py has fewer threads",
    "predict --model small": "takes half a minute; test_predict.py validates the smallest model",
    "probe": "the programs are the reader's; tests/probe runs others",
    "scenario": "takes minutes; test_scenarios.py runs fewer sequences",
    "checkpoint new --config gpt2": "writes up to 500 MB; test_commands.py makes smaller ones",
}
"""The examples of help texts that aren't run: how they begin, and why."""


def commands(page: str) -> Iterator[str]:
    """Yield the marked commands of a page, with continued lines joined."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    for block in re.findall(rf"{re.escape(MARK)}\n```\n(.*?)```", text, re.DOTALL):
        yield from block.replace("\\\n", " ").splitlines()


def run(line: str, directory: Path) -> Finished:
    """Run a command line in a shell, as a reader does; without one, which is quicker, if it asks nothing of a shell."""
    if re.fullmatch(r"starpullm [^$|<>&;]*", line):
        return run_cli(*shlex.split(line, comments=True)[1:], cwd=directory, environment=TWO_CORES).check()
    over_ranks = line.startswith("mpirun")
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        **({} if over_ranks and ENOUGH_CORES else {**TWO_CORES, "OMPI_MCA_rmaps_base_oversubscribe": "1"}),
    }
    with only_ranks_on_their_cores() if over_ranks else nullcontext():
        return run_command(["bash", "-c", line], cwd=directory, environment=environment).check()


@pytest.fixture
def folder(tmp_path: Path, llmc_stand_in: Callable[..., Path]) -> Path:
    """Return a folder with a text, a model, token files, llm.c's library and a model in Hugging Face's layout."""
    text = (resources.files("starpullm.training") / "sonnets.txt").read_bytes()
    (tmp_path / "text.txt").write_bytes(text)
    tokens = byte_encoding().encode(text.decode())
    for number, part in enumerate((tokens[:5000], tokens[5000:10000])):
        write_tokens(tmp_path / f"train_{number}.bin", part)
    initial_checkpoint(tmp_path / "model.bin", MODEL, 1)
    to_hugging_face(tmp_path / "model.bin", tmp_path / "gpt2-folder")
    shutil.copy(llmc_stand_in(), tmp_path / "libllmc.so")
    return tmp_path


EXPECTED = {
    "starpullm parity": r"(parity: \d+ tensors over \d+ steps, 0 differ|mine: \d+ parameters, tokens of 3 steps)\n\Z",
    "mpirun -n 2 starpullm parity": r"parity: \d+ tensors over \d+ steps, 0 differ\n\Z",
    "starpullm train": r"\A(?s:.*)step (\d+)/\1: loss ",
    "mpirun -n 2 --bind-to none starpullm train": r"step 20/20: loss ",
    "starpullm tokenize": r"\Atrain\.bin: \d+ tokens, bytes, vocabulary 257\n",
    "starpullm generate": r"\AShall I",
    "starpullm checkpoint show": r"^num_parameters: \d+$",
    "starpullm convert": r"\A\S+: \d+ parameters\n",
}
"""What a command prints, by how it begins."""


def check(line: str, done: Finished) -> None:
    for start, pattern in EXPECTED.items():
        if line.startswith(start):
            assert re.search(pattern, done.stdout, re.MULTILINE), done


@pytest.mark.parametrize("page", PAGES)
def test_page(folder: Path, page: str) -> None:
    lines = list(commands(page))
    assert lines
    for line in lines:
        check(line, run(line, folder))


CONTEXT = click.Context(main)
COMMANDS = {name: command for name in main.list_commands(CONTEXT) if (command := main.get_command(CONTEXT, name))}


def test_that_pages_are_found() -> None:
    """No page with marks is left out, and each command runs on some page."""
    marked = [page.name for page in sorted((ROOT / "docs").glob("*.md")) if MARK in page.read_text("utf-8")]
    assert marked == list(PAGES)
    shown = {line.partition("starpullm ")[2].split()[0] for page in PAGES for line in commands(page)}
    assert shown == {name for name in COMMANDS if name not in ("bench", "demo", "fuzz", "predict", "probe", "scenario")}


def examples(command: click.Command) -> Iterator[str]:
    """Yield the command lines below the help text of a command and of those below it."""
    if isinstance(command, click.Group):
        for below in command.commands.values():
            yield from examples(below)
    yield from (line.strip() for line in (command.epilog or "").splitlines()[2:])


SHOWN = {line.partition(" #")[0].rstrip() for page in PAGES for line in commands(page) if line.startswith("mpirun")}
"""Those of them that take longest; they need no second run."""
EXAMPLES = {name: [*examples(command)] for name, command in COMMANDS.items()}
PREPARED = {
    "checkpoint": ["mv model.bin trained.bin"],
    "convert": ["cp model.bin trained.bin"],
    "generate": ["cp model.bin trained.bin"],
    "tokenize": ["mv text.txt sonnets.txt"],
    "train": ["starpullm train --checkpoint model.bin --tokens 'train_*.bin' --save-every 10 --state-dir states"],
}
"""What is done before the examples of a command, for files that they read."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_help_texts(folder: Path, name: str) -> None:
    """They run, unless a page shows the same line or the table above says why not."""
    assert EXAMPLES[name]
    lines = [line for line in EXAMPLES[name] if line not in SHOWN and not why_not_run(line)]
    for line in [*PREPARED.get(name, []), *lines] if lines else []:
        check(line, run(line, folder))


def why_not_run(line: str) -> str | None:
    return next((reason for start, reason in NOT_RUN.items() if line.startswith(f"starpullm {start}")), None)


def test_every_reason_belongs_to_an_example() -> None:
    lines = [line for lines in EXAMPLES.values() for line in lines]
    assert all(any(line.startswith(f"starpullm {start}") for line in lines) for start in NOT_RUN)
