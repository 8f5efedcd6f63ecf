"""What one types again and again, from a file: ``starpullm.toml``, or ``[tool.starpullm]`` in ``pyproject.toml``.

The command line comes first, then the environment, then the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from starpullm.errors import FormatError
from starpullm.files.header import reading
from starpullm.golden.records import SHIPPED_RECORDS
from starpullm.runtime import Partition

OWN_FILE: Final = "starpullm.toml"
PROJECT_FILE: Final = "pyproject.toml"
TABLE: Final = "tool.starpullm"
KEYS: Final = {
    "library": "a text",
    "llmc-library": "a text",
    "records": "a list of texts",
    "partitions": "a list of texts",
}
"""The keys, and what kind of value each has."""


@dataclass(frozen=True)
class Settings:
    """The values of a file, whose paths are absolute; without a file there are none."""

    file: Path | None = None
    library: str | None = None
    llmc_library: str | None = None
    records: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()

    def default_map(self, group: click.Group) -> dict[str, dict[str, Any]]:
        """Return click's default map: for each command, what its options and arguments are if they aren't given.

        Commands that take several partitions get all of them, the others the first.
        """
        values = {
            "llmc_lib": self.llmc_library,
            "record_files": self.records,
            "partitions": self.partitions,
            "partition": self.partitions[0] if self.partitions else None,
        }
        given = {name: value for name, value in values.items() if value}
        return {
            name: {option.name: given[option.name] for option in command.params if option.name in given}
            for name, command in group.commands.items()
        }


def find_settings(start: Path) -> Settings:
    """Read the first file with settings in a folder or those above it; in one folder starpullm.toml comes first.

    Raises
    ------
    FormatError
        If a file isn't TOML, or has an unknown key or a wrong value.
    FileError
        If a file can't be read.
    """
    for folder in (start, *start.parents):
        own, project = folder / OWN_FILE, folder / PROJECT_FILE
        if own.is_file():
            return _settings(own, _read(own))
        if project.is_file():
            tool = _read(project).get("tool", {})
            if isinstance(tool, dict) and "starpullm" in tool:
                return _settings(project, tool["starpullm"], TABLE)
    return Settings()


def _read(path: Path) -> dict[str, Any]:
    with reading(path) as (file, where):
        try:
            return tomllib.load(file)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise FormatError(f"{where}: expected TOML, found: {error}") from error


def _settings(file: Path, table: Any, name: str = "") -> Settings:
    """Check a table of settings, whose name in the file is given; errors name the line of a key."""
    of_table = name.split(".") if name else []

    def refusal(words: str, *key: str) -> FormatError:
        keys = [*of_table, *key]
        return FormatError(f"{file}, line {_line_of(file, keys)}, {'.'.join(keys)}: {words}")

    if not isinstance(table, dict):
        raise refusal(f"expected a table, found {table!r:.40}")
    for key, value in table.items():
        if key not in KEYS:
            raise refusal(f"expected {', '.join(KEYS)}, found an unknown key", key)
        values = value if KEYS[key] == "a list of texts" else [value]
        if not isinstance(values, list) or not all(isinstance(item, str) and item for item in values):
            raise refusal(f"expected {KEYS[key]}, found {value!r:.40}", key)
    for text in table.get("partitions", ()):
        try:
            Partition.parse(text)
        except ValueError as error:
            raise refusal(str(error), "partitions") from error
    paths = {key: str(file.parent / table[key]) if key in table else None for key in ("library", "llmc-library")}
    return Settings(
        file,
        library=paths["library"],
        llmc_library=paths["llmc-library"],
        records=tuple(_records(file, table.get("records", ()))),
        partitions=tuple(table.get("partitions", ())),
    )


def _line_of(file: Path, keys: Sequence[str]) -> int:
    """Return the line on which a key of a valid file begins, counted from 1.

    tomllib keeps no lines. The line is the one after the longest beginning of the file that is valid and lacks the key.
    """
    lines = file.read_text("utf-8").split("\n")
    without = 0
    for count in range(len(lines) + 1):
        try:
            value: Any = tomllib.loads("\n".join(lines[:count]))
        except tomllib.TOMLDecodeError:
            continue  # within a value of several lines
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            break
        without = count
    return without + 1


def _records(file: Path, names: list[str]) -> Iterator[str]:
    """Yield names of shipped records as they are, and paths of others."""
    for name in names:
        yield name if name in SHIPPED_RECORDS else str(file.parent / name)
