"""What a program's authors know of its declarations and intend, with their reasons: a file in TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from starpullm.errors import FormatError
from starpullm.files.header import file_errors
from starpullm.files.kinds import expecting
from starpullm.probe.findings import Fault, ProgramFinding

_KINDS = {kind.value: kind for kind in Fault if kind.is_declaration}


class Intended(NamedTuple):
    """An entry of the file: findings of a kind about tasks of a codelet, and why they are right."""

    finding: str
    codelet: str
    reason: str

    def __str__(self) -> str:
        return f"{self.finding}, {self.codelet}: {self.reason}"


def read_intended(path: Path) -> list[Intended]:
    """Read the entries ``[[intended]]`` of a file."""
    with expecting("text in TOML", path), file_errors(path):
        text = path.read_bytes()
        try:
            document = tomllib.loads(text.decode())
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise FormatError(f"{path}: {error}, expected TOML") from None
    entries = document.pop("intended", None)
    if document or not isinstance(entries, list) or not entries:
        raise FormatError(f"{path}: found {sorted(document) or 'no entry'}, expected entries [[intended]] alone")
    return [_entry(f"{path}, entry {number}", entry) for number, entry in enumerate(entries, start=1)]


def _entry(where: str, entry: object) -> Intended:
    if not isinstance(entry, dict) or sorted(entry) != sorted(Intended._fields):
        raise FormatError(f"{where}: found {entry}, expected {', '.join(Intended._fields)}")
    for name, value in entry.items():
        if not isinstance(value, str) or not value.strip():
            raise FormatError(f"{where}, {name}: found {value!r}, expected a text")
    if entry["finding"] not in _KINDS:
        raise FormatError(f'{where}: found "{entry["finding"]}", expected one of {", ".join(_KINDS)}')
    return Intended(**entry)


def split_intended(
    findings: Iterable[ProgramFinding], entries: Iterable[Intended]
) -> tuple[list[ProgramFinding], tuple[str, ...], tuple[str, ...]]:
    """Return the findings that no entry is about, the others with their reasons, and the entries without any."""
    unused = dict.fromkeys(entries)
    known, left, excused = list(unused), [], []
    for finding in findings:
        key = finding.kind.value, finding.codelet
        entry = next((one for one in known if (one.finding, one.codelet) == key), None)
        if entry is None:
            left.append(finding)
        else:
            unused.pop(entry, None)
            excused.append(f"{finding}: {entry.reason}")
    return left, tuple(excused), tuple(map(str, unused))
