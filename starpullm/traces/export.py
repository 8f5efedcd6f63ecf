"""Writes a run to a file in the format of another tool, complete or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from starpullm.files.atomic import atomic_write
from starpullm.traces.dot import dot_lines
from starpullm.traces.paje import paje_lines
from starpullm.traces.perfetto import perfetto_lines
from starpullm.traces.run import TracedRun

_LINES: Mapping[str, Callable[[TracedRun], Iterator[str]]] = {
    "perfetto": perfetto_lines,
    "paje": paje_lines,
    "dot": dot_lines,
}
FORMATS = tuple(_LINES)


def export(run: TracedRun, name: str, path: Path) -> None:
    """Write a run in one of `FORMATS`."""
    with atomic_write(path) as file:
        for line in _LINES[name](run):
            file.write(line.encode())
