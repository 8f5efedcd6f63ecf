"""Tests of the reader of JSON: values, and each refusal with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from starpullm.errors import FileError, FormatError
from starpullm.files.json_reader import JsonNode, parse_json, read_json


@pytest.mark.parametrize("value", [None, 3, '\\"[', [], {"a": [1.5, {"ü": -0.0}], "b": True}])
def test_values(value: object, tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    path.write_text(json.dumps(value))
    assert read_json(path) == value


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"{", "byte 0: expected JSON, found Expecting property name"),
        (b'{"a": ', "byte 0: expected JSON, found Expecting value: line 1 column 7"),
        (b"\xff", "byte 0: expected JSON, found 'utf-8' codec can't decode byte 0xff"),
        (b"[" * 100_000, "byte 0: expected JSON, found "),
        (b"1" * 5000, "byte 0: expected JSON, found Exceeds the limit (4300 digits)"),
    ],
)
def test_refusals(text: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    path.write_bytes(text)
    with pytest.raises(FormatError) as caught:
        read_json(path)
    assert str(caught.value).startswith(f"{path}, {sentence}")


@pytest.mark.parametrize("text", [b"NaN", b"-Infinity", b"1e999", b"1" * 400, b"true", b'"1"'])
def test_what_is_no_number(text: bytes) -> None:
    """Values that aren't finite are JSON for Python; nothing is computed with them."""
    with pytest.raises(FormatError, match=r"^it, key a: expected a number that fits into binary64, found "):
        JsonNode("it", "", parse_json(b'{"a": ' + text + b"}", "it")).child("a").number()


@pytest.mark.parametrize("name", ["none.json", "a\0b.json"])
def test_file_that_cannot_be_read(name: str, tmp_path: Path) -> None:
    """A name with a null character is a name of no file, as the name of a missing one."""
    with pytest.raises(FileError, match="can't be read: "):
        read_json(tmp_path / name)
