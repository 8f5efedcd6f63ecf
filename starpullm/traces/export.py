"""Writes a run in the format of another tool: one file, or a folder of files, complete or not at all."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from starpullm.errors import FileError
from starpullm.files.atomic import atomic_write, sync_directory
from starpullm.files.header import reason
from starpullm.traces.dot import dot_lines
from starpullm.traces.graphml import graphml_lines
from starpullm.traces.paje import paje_lines
from starpullm.traces.perfetto import perfetto_lines
from starpullm.traces.run import TracedRun
from starpullm.traces.starvz import write_starvz

_FILES: Mapping[str, Callable[[TracedRun], Iterator[str]]] = {
    "perfetto": perfetto_lines,
    "paje": paje_lines,
    "dot": dot_lines,
    "graphml": graphml_lines,
}
_FOLDERS: Mapping[str, Callable[[TracedRun, Path], None]] = {"csv": write_starvz}
FORMATS = (*_FILES, *_FOLDERS)


def export(run: TracedRun, name: str, path: Path) -> None:
    """Write a run in one of `FORMATS`: to a file, for ``csv`` into a folder that is new or empty.

    Raises
    ------
    FileError
        If the file or folder can't be written, or the folder has content. What existed before is unchanged.
    """
    if name in _FOLDERS:
        _write_folder(run, _FOLDERS[name], path)
        return
    with atomic_write(path) as file:
        for line in _FILES[name](run):
            file.write(line.encode())


def _write_folder(run: TracedRun, write: Callable[[TracedRun, Path], None], path: Path) -> None:
    target = path.resolve()
    temporary = target.with_name(f".starpullm-{secrets.token_hex(8)}.tmp")
    try:
        temporary.mkdir()
        write(run, temporary)
        temporary.replace(target)  # of folders, an empty one only
        sync_directory(target.parent)
    except OSError as error:
        raise FileError(
            f"{path}: can't be written: {reason(error)}; expected a folder that is new or empty", error.errno, str(path)
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
