"""The JSON file of a report: what a new one contains, and how one is written and read. ``schema.json`` describes it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

from starpullm.errors import FileError, FormatError
from starpullm.files.atomic import atomic_write
from starpullm.files.header import reason

VERSION = 3

Document: TypeAlias = dict[str, Any]
"""The content of a report's JSON file."""


def new_document(command: str, arguments: Sequence[str], *, ranks: int = 1, seed: int | None = None) -> Document:
    """Return the document of a run that has just begun; ``command`` is for example ``starpullm parity``."""
    now = time.time()
    return {
        "version": VERSION,
        "command": command,
        "arguments": list(arguments),
        "state": "running",
        "exit_status": None,
        "stopped": None,
        "time": now,
        "written": now,
        "host": socket.gethostname(),
        "environment": None,
        "ranks": ranks,
        "seed": seed,
        "runs": [],
        "selection": {},
        "running": [],
        "tests": [],
        "not_checked": [],
        "notes": [],
        "isolation": None,
        "recordings": [],
        "throughput": [],
        "history": [],
        "mutation": None,
    }


def write_document(document: Document, path: Path) -> None:
    """Write the file, which appears under its name only when it is complete.

    Raises
    ------
    FileError
        If it can't be written.
    """
    document["written"] = time.time()
    # Without indentation Python's encoder is many times as fast.
    indent = None if document["state"] == "running" else 1
    with atomic_write(path) as file:
        file.write(json.dumps(document, indent=indent, allow_nan=False).encode() + b"\n")


def read_document(path: Path) -> Document:
    """Read the file and compare it with the schema.

    Raises
    ------
    FileError
        If it can't be read.
    FormatError
        If it isn't a report of this version.
    MissingDependencyError
        If fastjsonschema isn't installed.
    """
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise FileError(f"{path}: can't be read: {reason(error)}", error.errno, str(path)) from error
    except ValueError as error:
        raise FormatError(f"{path}: expected a report in JSON: {error}") from error
    version = document.get("version") if isinstance(document, dict) else None
    if version != VERSION:
        raise FormatError(f"{path}: found {_said(version)}, expected a report of version {VERSION}")
    checked: Document = document
    check_document(checked, str(path))
    return checked


def check_document(document: Document, name: str) -> None:
    """Raise a ``FormatError`` unless a document is as ``schema.json`` says; columns have equal lengths."""
    import fastjsonschema

    try:
        _validator()(document)
    except fastjsonschema.JsonSchemaValueException as error:
        raise FormatError(f"{name}: {error.message.replace('data.', '', 1)}") from error
    for recording in document["recordings"]:
        for part in ("tasks", "edges"):
            lengths = {column: len(values) for column, values in recording[part].items()}
            if len(set(lengths.values())) > 1:
                raise FormatError(
                    f"{name}: recordings, {part}: found columns of lengths {lengths}, expected equal ones"
                )
        _check_numbers(recording, name)


def _check_numbers(recording: dict[str, Any], name: str) -> None:
    """Raise a ``FormatError`` if a number of a task, an operation or a handle stands for nothing."""
    tasks, edges = recording["tasks"], recording["edges"]
    num_tasks = len(tasks["operation"])
    for what, numbers, count in (
        ("operation", tasks["operation"], len(recording["operations"])),
        ("before", edges["before"], num_tasks),
        ("after", edges["after"], num_tasks),
        ("handle", edges["handle"], len(recording["handles"])),
        ("kind", edges["kind"], 3),
        ("critical_path", recording["critical_path"], num_tasks),
    ):
        if numbers and not 0 <= min(numbers) <= max(numbers) < count:
            raise FormatError(f"{name}: recordings, {what}: found {max(numbers)}, expected numbers below {count}")


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 7) of the file."""
    found: dict[str, Any] = json.loads((resources.files("starpullm.report") / "schema.json").read_text("utf-8"))
    return found


@cache
def _validator() -> Any:
    import fastjsonschema

    return fastjsonschema.compile(schema())


def _said(version: object) -> str:
    return "a file without a version" if version is None else f"version {version}"
