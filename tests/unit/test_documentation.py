"""The pages: links lead somewhere, the options of all commands exist, and each block of commands says what runs it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import click
import pytest

from starpullm.commands import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
PUBLIC_HEADERS = ("starpullm.h", "starpullm_checks.h")

_LINK = re.compile(r"!?\[[^]]*\]\(([^)\s]+)\)")
_PROGRAMS = ("starpullm", "pytest", "mpirun", "ci/bootstrap.sh", "git", "cmake", "gcc", "python", "tox", "pip", "cd")


class Block(NamedTuple):
    """A block between ``` lines: its number of the first line, language, mark (the line above) and text."""

    line: int
    language: str
    mark: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The command lines, with continued lines joined and without variables in front and comments behind."""
        joined = self.text.replace("\\\n", " ").splitlines()
        plain = [re.sub(r"^(?:[A-Z_]+=\S* )+", "", line) for line in joined]
        return [line for line in plain if line.split(" ")[0] in _PROGRAMS]


def blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text("utf-8").splitlines()
    start = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
        else:
            yield Block(start + 1, lines[start][3:], lines[start - 1], "\n".join(lines[start + 1 : number]))
            start = None
    assert start is None, f"{page}: the block of line {(start or 0) + 1} has no end"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@every_page
def test_links(page: Path) -> None:
    """Links within the checkout lead to files and headings that are there; others aren't followed."""
    for link in _LINK.findall(re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)):
        if re.match(r"[a-z]+://", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@every_page
def test_every_block_of_commands_says_what_runs_it(page: Path) -> None:
    """`<!-- run by FILE -->`, where the file names the page or its folder, or `<!-- not run: REASON -->`."""
    for block in blocks(page):
        if not block.commands and block.language != "python":
            continue
        where = f"{page.name}, line {block.line}: {block.mark}"
        run = re.fullmatch(r"<!-- run by (\S+) -->", block.mark)
        if run is None:
            assert re.fullmatch(r"<!-- not run: \S.* -->", block.mark), where
            assert block.language != "python", where
            for path in re.findall(r"tests/[\w/.]+", block.mark):
                assert (ROOT / path.rstrip(".")).exists(), where
        else:
            assert page.name in (ROOT / run[1]).read_text("utf-8"), where


def test_the_curve_of_the_losses(tmp_path: Path) -> None:
    """The Python lines of results.md draw a log, also one with a loss that is NaN."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install '.[docs]'")
    [drawing] = [block.text for block in blocks(ROOT / "docs" / "results.md") if block.language == "python"]
    lines = [{"step": 0, "validation_loss": 4.1}, {"step": 1, "loss": 4.2}, {"step": 2, "loss": None}]
    (tmp_path / "losses.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    environment = {**os.environ, "MPLBACKEND": "agg", "MPLCONFIGDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", drawing], cwd=tmp_path, env=environment, timeout=60, check=True)
    assert (tmp_path / "losses.png").stat().st_size > 1000


def starpullm_commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for block in blocks(page):
            for line in block.commands:
                if (
                    "starpullm " in line
                    and "pytest" not in line
                    and not line.startswith(("git", "gcc", "cmake", "pip"))
                ):
                    command = line.partition("starpullm ")[2]
                    yield f"{page.name}:{block.line}", command


@pytest.mark.parametrize(("where", "text"), list(starpullm_commands()))
def test_options_of_commands(where: str, text: str) -> None:
    """The command line takes every command as it is written; nothing is run."""
    command: click.Command = main
    arguments = shlex.split(re.sub(r" > \S+", "", text), comments=True)
    context = click.Context(main, info_name="starpullm")
    while isinstance(command, click.Group):
        below = command.get_command(context, arguments[0])
        assert below is not None, where
        command, arguments = below, arguments[1:]
    command.make_context(text, arguments, parent=context)


def test_that_commands_are_found() -> None:
    """The tests above look at something."""
    found = list(starpullm_commands())
    assert len(found) > 20
    assert {text.split()[0] for _, text in found} >= {"train", "parity", "convert", "checkpoint", "bench"}
    with pytest.raises(click.UsageError):
        test_options_of_commands("", "parity --no-such-option")


def options(command: click.Command) -> Iterator[str]:
    """Yield the long options of a command and those below it."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below
            yield from options(below)
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield from (option for option in parameter.opts if option.startswith("--"))


def test_every_option_is_explained() -> None:
    """In the text of a page; the site has the help texts of all."""
    written = "".join(page.read_text("utf-8") for page in PAGES)
    found = set(options(main))
    assert len(found) > 50
    assert sorted(option for option in found if not re.search(rf"{option}(?![\w-])", written)) == []


def test_comments_of_headers() -> None:
    """Every build has MPI; a struct has its size first, or none."""
    headers = sorted((ROOT / "native").rglob("*.h"))
    assert [path.name for path in headers if "builds with MPI" in path.read_text("utf-8")] == []
    public = "".join((ROOT / "native" / "include" / name).read_text("utf-8") for name in PUBLIC_HEADERS)
    structs = re.findall(r"^struct (\w+) \{(.*?)^\}", public, re.DOTALL | re.MULTILINE)
    with_size = [name for name, members in structs if re.search(r"\bsize_t size;", members)]
    first = [name for name, members in structs if re.match(r"(\s|/\*.*?\*/)*size_t size;", members)]
    assert with_size == first
    assert 0 < len(with_size) < len(structs)
    assert "Callers set the member `size` of a struct that has one." in public
