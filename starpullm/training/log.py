"""The log of a run: one line of JSON for each loss, in the file as soon as the loss is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from starpullm.errors import FormatError
from starpullm.files.header import file_errors, reading
from starpullm.files.json_reader import JsonNode, parse_json
from starpullm.files.kinds import JSON

_START: Final = b'{"step": '
"""Of each line."""


@contextmanager
def loss_log(path: Path | None, last_step: int) -> Iterator[Callable[..., None]]:
    """Give a function that appends a line with its arguments to a file; without a path it does nothing.

    Of a log that is there, lines up to ``last_step`` stay, after which this run resumes; -1: none. `FormatError` is
    raised if the file is something else.
    """
    if path is None:
        yield lambda step, **values: None
        return
    kept = _kept_lines(path, last_step) if path.exists() else b""
    with file_errors(path, "written"):
        file = path.open("ab", buffering=0)

    def write(step: int, **values: object) -> None:
        line = json.dumps({"step": step, **values}).encode() + b"\n"
        if kept.endswith(line):  # the validation before this run is that after the run that it resumes
            return
        with file_errors(path, "written"):
            while line:
                line = line[file.write(line) :]

    with file:
        file.truncate(len(kept))
        yield write


def _kept_lines(path: Path, last_step: int) -> bytes:
    with reading(path, f"{JSON}, a line for each loss") as (file, where):
        content, end = file.read(), 0
        for line in content.splitlines(keepends=True):
            if not (line.startswith(_START) or _START.startswith(line)):
                raise FormatError(f"{where}, byte {end}: expected a loss of `train --log`, found {line[:40]!r}")
            if not line.endswith(b"\n"):  # the run was killed while it wrote
                break
            if JsonNode(where, f"byte {end}", parse_json(line, where, end)).child("step").integer() > last_step:
                break
            end += len(line)
        return content[:end]
