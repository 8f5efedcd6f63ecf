"""The reader of JSON that all files share."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from starpullm.errors import FormatError
from starpullm.files.header import INT32_MAX, StrPath, reading, refusal
from starpullm.files.kinds import JSON


def read_json(path: StrPath) -> Any:
    """Return the JSON value in a file."""
    with reading(path, JSON) as (file, where):
        return parse_json(file.read(), where)


def parse_json(text: bytes, where: Path | str, start: int = 0) -> Any:
    """Return a JSON value; ``start`` is the position of its text in the file that ``where`` names."""
    try:
        return json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise refusal(where, start, "JSON", str(error)) from error


class JsonNode:
    """A value in a JSON file and its key, which error messages name."""

    def __init__(self, path: Path | str, key: str, value: object) -> None:
        self._path = path
        self._key = key
        self.value = value

    def refusal(self, expected: str) -> FormatError:
        """Return the error of a value that is something else."""
        found = json.dumps(self.value)
        shown = found if len(found) <= 60 else f"{found[:57]}..."
        key = f", key {self._key}" if self._key else ""
        return FormatError(f"{self._path}{key}: expected {expected}, found {shown}")

    def mapping(self) -> dict[str, Any]:
        """Return an object."""
        if not isinstance(self.value, dict):
            raise self.refusal("an object")
        return self.value

    def child(self, key: str) -> JsonNode:
        """Return a value of an object."""
        mapping = self.mapping()
        path = f"{self._key}.{key}" if self._key else key
        if key not in mapping:
            raise FormatError(f"{self._path}, key {path}: expected a value, found none")
        return JsonNode(self._path, path, mapping[key])

    def items(self) -> list[JsonNode]:
        """Return the values of a list."""
        if not isinstance(self.value, list):
            raise self.refusal("a list")
        return [JsonNode(self._path, f"{self._key}[{index}]", value) for index, value in enumerate(self.value)]

    def text(self) -> str:
        """Return a text."""
        if not isinstance(self.value, str):
            raise self.refusal("a text")
        return self.value

    def integer(self, minimum: int = 0, maximum: int = INT32_MAX) -> int:
        """Return an integer."""
        if type(self.value) is not int or not minimum <= self.value <= maximum:
            raise self.refusal(f"an integer from {minimum} to {maximum}")
        return self.value

    def number(self) -> float:
        """Return a number."""
        value = self.value
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= sys.float_info.max:  # NaN
            raise self.refusal("a number that fits into binary64")
        return float(value)

    def hex(self, digits: int) -> str:
        """Return so many hex digits."""
        if not isinstance(self.value, str) or not re.fullmatch(f"[0-9a-f]{{{digits}}}", self.value):
            raise self.refusal(f"{digits} lower-case hex digits")
        return self.value
