"""The reader of JSON that all files share.

It refuses repeated keys, numbers that aren't finite, and deep nesting, at which recursive functions would fail later.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NoReturn

from starpullm.errors import FormatError
from starpullm.files.header import INT32_MAX, StrPath, reading, refusal

MAX_DEPTH: Final = 64
"""How many lists and objects may be inside of each other."""


def read_json(path: StrPath) -> Any:
    """Return the JSON value in a file."""
    with reading(path) as (file, where):
        return parse_json(file.read(), where)


def parse_json(text: bytes, where: Path | str, start: int = 0) -> Any:
    """Return a JSON value; ``start`` is the position of its text in the file that ``where`` names."""
    try:
        value = json.loads(
            text.decode("utf-8"), object_pairs_hook=_distinct, parse_constant=_no_number, parse_float=_finite
        )
    except json.JSONDecodeError as error:
        position = start + len(error.doc[: error.pos].encode())
        raise refusal(where, position, "JSON", error.msg) from error
    except UnicodeDecodeError as error:
        raise refusal(where, start + error.start, "JSON in UTF-8", error.reason) from error
    except ValueError as error:
        raise refusal(where, start, "JSON", str(error)) from error
    except RecursionError as error:
        raise _too_deep(where, start) from error
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [part for container in level for part in _parts(container) if isinstance(part, dict | list)]
    if level:
        raise _too_deep(where, start)
    return value


def parse_object(text: bytes, where: Path | str, start: int = 0) -> dict[str, Any]:
    """Return a JSON object; arguments and errors as `parse_json`."""
    value = parse_json(text, where, start)
    if not isinstance(value, dict):
        raise refusal(where, start, "a JSON object", type(value).__name__)
    return value


def _distinct(items: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(items)
    if len(found) < len(items):
        keys = [name for name, _ in items]
        raise ValueError(f"the key {next(name for name in found if keys.count(name) > 1)} twice")
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"the number {name}")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(f"{text:.40}")


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _too_deep(where: Path | str, start: int) -> FormatError:
    return refusal(where, start, f"JSON of at most {MAX_DEPTH} nested lists and objects", "more")


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
        if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) > sys.float_info.max:
            raise self.refusal("a number that fits into binary64")
        return float(value)

    def hex(self, digits: int) -> str:
        """Return so many hex digits."""
        if not isinstance(self.value, str) or not re.fullmatch(f"[0-9a-f]{{{digits}}}", self.value):
            raise self.refusal(f"{digits} lower-case hex digits")
        return self.value
