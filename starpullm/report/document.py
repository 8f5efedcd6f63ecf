"""The JSON file of a report: how it is made and written. docs/formats.md describes its content."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from starpullm.errors import FormatError
from starpullm.files.atomic import atomic_write

VERSION = 7

JSON_NAME = "report.json"
"""Of the file in a report's folder."""

Document: TypeAlias = dict[str, Any]
"""The content of a report's JSON file."""

_Entry = TypeVar("_Entry")
_Key = TypeVar("_Key", bound=Hashable)


def new_document(command: str, arguments: Sequence[str], *, ranks: int = 1, seed: int | None = None) -> Document:
    """Return the document of a run that has just begun; ``command`` is for example ``starpullm parity``."""
    now = time.time()
    return {
        "version": VERSION,
        "command": command,
        "arguments": list(arguments),
        "state": "running",
        "exit_status": None,
        "failed": False,
        "stopped": None,
        "time": now,
        "written": now,
        "host": socket.gethostname(),
        "environment": None,
        "ranks": ranks,
        "seed": seed,
        "selection": {},
        "running": [],
        "tests": [],
        "not_checked": [],
        "notes": [],
        "isolation": None,
        "recordings": [],
    }


def grouped(entries: Iterable[_Entry], key: Callable[[_Entry], _Key]) -> dict[_Key, list[_Entry]]:
    """Return the entries by key, in the order in which they come."""
    groups: dict[_Key, list[_Entry]] = {}
    for entry in entries:
        groups.setdefault(key(entry), []).append(entry)
    return groups


def counted(tests: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how many tests have each outcome, and how else they have ended, as ``2 failed (1 ended by SIGSEGV)``."""
    texts = []
    for outcome in ("passed", "failed", "skipped", "unfinished"):
        endings = Counter(test["ending"] for test in tests if test["outcome"] == outcome)
        details = ", ".join(f"{count} {ending}" for ending, count in endings.items() if ending != outcome)
        if endings:
            texts.append(f"{endings.total()} {outcome}" + (f" ({details})" if details else ""))
    return texts


KINDS = ("passed", "undecided", "failed")
"""Of runs of checks, the worst last."""


def ending_of(result: Mapping[str, Any], test: Mapping[str, Any]) -> tuple[str, str]:
    """Return how a check's run has ended: one of `KINDS`, *passed* only if its test has passed too, and in words."""
    is_own = test["outcome"] == "passed" or result["outcome"] not in ("passed", "no result")
    words = str(result["outcome"] if is_own else test["ending"])
    kind = "failed" if "failed" in (words, test["outcome"]) else "undecided"
    return "passed" if words == "passed" else kind, words


def write_document(document: Document, path: Path) -> None:
    """Write the file, which appears under its name only when it is complete."""
    document["written"] = time.time()
    # Without indentation Python's encoder is many times as fast.
    indent = None if document["state"] == "running" else 1
    try:
        text = json.dumps(document, indent=indent, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"{path}: can't be written: {error}") from error
    with atomic_write(path) as file:
        file.write(text.encode() + b"\n")
