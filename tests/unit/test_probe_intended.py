"""The file of what a program's authors intend."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from starpullm.errors import FileError, FormatError
from starpullm.probe.findings import Fault, ProgramFinding
from starpullm.probe.intended import Intended, read_intended, split_intended

ENTRY = '[[intended]]\nfinding = "undeclared read"\ncodelet = "{}"\nreason = "the border is constant"\n'


def test_findings_are_split(tmp_path: Path) -> None:
    path = tmp_path / "intended.toml"
    path.write_text(ENTRY.format("a") + ENTRY.format("b"))
    read, result = (
        ProgramFinding("reads", kind=Fault.UNDECLARED_READ, schedule="all", codelet="a"),
        ProgramFinding("differs", kind=Fault.OUTPUT_DIFFERS, schedule="1"),
    )
    others = [result, ProgramFinding("reads", kind=Fault.UNDECLARED_READ, schedule="all", codelet="c")]
    entries = read_intended(path)
    assert entries[0] == Intended("undeclared read", "a", "the border is constant")
    left, excused, unused = split_intended([read, *others], entries)
    assert left == others
    assert excused == ("undeclared read  reads: the border is constant",)
    assert unused == ("undeclared read, b: the border is constant",)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "found no entry, expected entries [[intended]] alone"),
        (b"intended = []", "found no entry, expected entries [[intended]] alone"),
        (b"x = 1\n[[intended]]", "found ['x'], expected entries [[intended]] alone"),
        (b"[[intended]]\n", "entry 1: found {}, expected finding, codelet, reason"),
        (b"intended = [3]", "entry 1: found 3, expected finding, codelet, reason"),
        (ENTRY.replace("constant", "").replace("the border is ", " ").encode(), "reason: found ' ', expected a text"),
        (ENTRY.replace("read", "thing").encode(), 'entry 1: found "undeclared thing", expected one of '),
        (
            ENTRY.replace("undeclared read", "differs").encode(),
            'entry 1: found "differs", expected one of ',
        ),
        (b"\xff", "expected TOML"),
        (b"\x1f\x8b\x08", "expected text in TOML, found a gzip file"),
        (b"intended = ", "expected TOML"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "intended.toml"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=re.escape(sentence)) as caught:
        read_intended(path)
    assert str(caught.value).startswith(str(path))


def test_a_file_that_cant_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="can't be read"):
        read_intended(tmp_path / "none.toml")
