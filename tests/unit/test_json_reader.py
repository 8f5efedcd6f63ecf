"""Tests of the reader of JSON: values, and each refusal with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from starpullm.errors import FileError, FormatError
from starpullm.files.json_reader import MAX_DEPTH, parse_object, read_json


def nested(depth: int) -> bytes:
    """Lists and objects by turns; the innermost is empty."""
    opening = [b"[", b'{"a":'] * depth
    closing = [b"]", b"}"] * depth
    return b"".join(opening[: depth - 1]) + b"[]" + b"".join(reversed(closing[: depth - 1]))


@pytest.mark.parametrize(
    "value", [None, 3, "[{" * MAX_DEPTH, '\\"[' * MAX_DEPTH, [], {"a": [1.5, {"ü": -0.0}], "b": True}]
)
def test_values(value: object, tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    path.write_text(json.dumps(value))
    assert read_json(path) == value


def test_depth(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    path.write_bytes(nested(MAX_DEPTH))
    read_json(path)
    for depth in (MAX_DEPTH + 1, 500, 100_000):
        path.write_bytes(nested(depth))
        with pytest.raises(FormatError, match=r"value\.json, byte 0: expected JSON of at most 64 nested lists"):
            read_json(path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"", "byte 0: expected JSON, found Expecting value"),
        (b'{"\xc3\xbc": ', "byte 7: expected JSON, found Expecting value"),
        (b"\xff", "byte 0: expected JSON in UTF-8, found invalid start byte"),
        (b'{"a": 1, "b": 2, "a": 1}', "byte 0: expected JSON, found the key a twice"),
        (b"[NaN]", "byte 0: expected JSON, found the number NaN"),
        (b"-Infinity", "byte 0: expected JSON, found the number -Infinity"),
        (b"1e999", "byte 0: expected JSON, found the number 1e999"),
        (b"1" * 5000, "byte 0: expected JSON, found Exceeds the limit (4300 digits)"),
    ],
)
def test_refusals(text: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    path.write_bytes(text)
    with pytest.raises(FormatError) as caught:
        read_json(path)
    assert str(caught.value).startswith(f"{path}, {sentence}")


def test_object() -> None:
    assert parse_object(b'{"a": 1}', "it") == {"a": 1}
    with pytest.raises(FormatError, match=r"^it, byte 8: expected a JSON object, found list$"):
        parse_object(b"[]", "it", 8)


@pytest.mark.parametrize("name", ["none.json", "a\0b.json"])
def test_file_that_cannot_be_read(name: str, tmp_path: Path) -> None:
    """A name with a null character is a name of no file, as the name of a missing one."""
    with pytest.raises(FileError, match="can't be read: "):
        read_json(tmp_path / name)
