"""Settings from starpullm.toml and pyproject.toml: where they are found, what comes first, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from starpullm.commands import main
from starpullm.commands.settings import Settings, find_settings
from starpullm.errors import FormatError

VARIABLES = ("STARPULLM_LIB", "STARPULLM_LLMC_LIB", "STARPULLM_RECORDS", "STARPULLM_PARTITION")
OWN = """
library = "build/libstarpullm.so"
llmc-library = "/opt/libllmc.so"
records = ["tiny", "mine.json"]
partitions = ["2x1", "1x2"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a current directory two levels below an empty one, without variables."""
    below = tmp_path / "project" / "below"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that a command's own change is undone
        monkeypatch.delenv(name)
    return below


def parameters(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> dict[str, Any]:
    """Return what a command gets of its parameters."""
    seen: dict[str, Any] = {}
    monkeypatch.setattr(main.commands[name], "callback", lambda **values: seen.update(values))
    result = CliRunner().invoke(main, [name, *arguments])
    assert result.exit_code == 0, result.output
    return seen


def test_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_settings(folder) == Settings()
    assert parameters(monkeypatch, "parity")["partitions"] == ("1x1",)
    assert "STARPULLM_LIB" not in os.environ


def test_a_file_above(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths begin at the file's folder; names of shipped records stay names."""
    file = folder.parent / "starpullm.toml"
    file.write_text(OWN)
    assert find_settings(folder) == Settings(
        file,
        library=str(folder.parent / "build" / "libstarpullm.so"),
        llmc_library="/opt/libllmc.so",
        records=("tiny", str(folder.parent / "mine.json")),
        partitions=("2x1", "1x2"),
    )
    parity = parameters(monkeypatch, "parity")
    assert parity["partitions"] == ("2x1", "1x2")
    assert parity["record_files"] == ("tiny", str(folder.parent / "mine.json"))
    assert parity["llmc_lib"] == Path("/opt/libllmc.so")
    assert os.environ["STARPULLM_LIB"] == str(folder.parent / "build" / "libstarpullm.so")
    assert parameters(monkeypatch, "bench", "--model", "tiny")["partitions"] == ("2x1", "1x2")
    assert parameters(monkeypatch, "train", "--tokens", "x")["partition"] == "2x1"
    assert parameters(monkeypatch, "generate", "--checkpoint", "x")["partition"] == "2x1"


def test_the_command_line_comes_first_then_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "starpullm.toml").write_text(OWN)
    monkeypatch.setenv("STARPULLM_PARTITION", "3x1 1x3")
    monkeypatch.setenv("STARPULLM_RECORDS", "odd")
    monkeypatch.setenv("STARPULLM_LLMC_LIB", "env.so")
    monkeypatch.setenv("STARPULLM_LIB", "/env/lib.so")
    parity = parameters(monkeypatch, "parity")
    assert parity["partitions"] == ("3x1", "1x3")
    assert parity["record_files"] == ("odd",)
    assert parity["llmc_lib"] == Path("env.so")
    assert os.environ["STARPULLM_LIB"] == "/env/lib.so"
    given = parameters(monkeypatch, "parity", "small", "--partition", "1x1", "--llmc-lib", "given.so")
    assert given["partitions"] == ("1x1",)
    assert given["record_files"] == ("small",)
    assert given["llmc_lib"] == Path("given.so")
    CliRunner().invoke(main, ["--library", "given/lib.so", "convert", "--help"])
    assert os.environ["STARPULLM_LIB"] == "given/lib.so"


def test_which_file(folder: Path) -> None:
    """The nearest; starpullm.toml before pyproject.toml, and no pyproject.toml without the table."""
    (folder / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    above = folder.parent / "pyproject.toml"
    above.write_text("[tool.starpullm]\npartitions = ['1x4']\n[tool.ruff]\nx = 1\n")
    assert find_settings(folder) == Settings(above, partitions=("1x4",))
    own = folder.parent / "starpullm.toml"
    own.write_text("")
    assert find_settings(folder) == Settings(own)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        (
            "starpullm.toml",
            "partition = '2x1'",
            ", line 1, partition: expected library, llmc-library, records, partitions, found an unknown key",
        ),
        ("pyproject.toml", "[tool.starpullm.train]\nsteps = 3", ", line 1, tool.starpullm.train: expected library"),
        ("pyproject.toml", "[tool]\nstarpullm = 3", ", line 2, tool.starpullm: expected a table, found 3"),
        ("starpullm.toml", "partitions = '2x1'", ", line 1, partitions: expected a list of texts, found '2x1'"),
        ("starpullm.toml", "records = [1]", ", line 1, records: expected a list of texts, found [1]"),
        ("starpullm.toml", "library = ['x']", ", line 1, library: expected a text, found ['x']"),
        ("starpullm.toml", "library = ''", ", line 1, library: expected a text, found ''"),
        (
            "pyproject.toml",
            '[project]\nname = """\ntext"""\n[tool.starpullm]\n# a list\npartitions = [\n  "1x1",\n  "",\n]\nx = 1',
            ", line 6, tool.starpullm.partitions: expected a list of texts, found ['1x1', '']",
        ),
        ("starpullm.toml", "library = 'x'\n\nwrong = 1\nlast = 2", ", line 3, wrong: expected library"),
        (
            "starpullm.toml",
            "partitions = ['2']",
            ', line 1, partitions: partition: found "2", expected WxT, for example 2x1',
        ),
        ("starpullm.toml", "library = \n", ": expected TOML, found: Invalid value (at line 1, column 11)"),
    ],
)
def test_bad_files(folder: Path, name: str, text: str, sentence: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(FormatError) as caught:
        find_settings(folder)
    assert str(caught.value).startswith(f"{folder / name}{sentence}")
    result = CliRunner().invoke(main, ["plot", "weak", "x.json", "--output", "x.svg"])
    assert result.exit_code == 2
    assert result.output.replace("\n", "") == f"Error: {caught.value}".replace("\n", "")


def test_help_needs_no_good_file(folder: Path) -> None:
    (folder / "starpullm.toml").write_text("unknown = 1")
    assert CliRunner().invoke(main, ["--help"]).exit_code == 0
    assert CliRunner().invoke(main, ["--version"]).exit_code == 0


def test_every_key_reaches_a_command() -> None:
    """No key of the file is without an option; the option's name is the one that default_map uses."""
    settings = Settings(None, "lib", "llmc", ("tiny",), ("1x1",))
    reached = {name for values in settings.default_map(main).values() for name in values}
    assert reached == {"llmc_lib", "record_files", "partitions", "partition"}
    assert isinstance(main, click.Group)
