"""What the library says or does, compared with what it should: one statement after the other, each of which counts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from starpullm.binding.resource import Resource
from starpullm.checks.bits import compare_bits
from starpullm.checks.result import MAX_LISTED, CheckResult, listed, passed_if
from starpullm.errors import FileError, StarpullmError

ACCEPTED = "accepted"


@dataclass(frozen=True, slots=True)
class Statement:
    """What was tried or asked for, and what should have come of it, which is not what was found."""

    what: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.what}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True, kw_only=True)
class StatementsResult(CheckResult):
    """How many statements hold; ``compared`` counts all of them, ``measured`` those in ``wrong``."""

    unit: str = "statements"
    wrong: tuple[Statement, ...]

    def detail_lines(self) -> Iterator[str]:
        """Yield the statements that don't hold."""
        yield from listed(self.wrong[:MAX_LISTED], len(self.wrong))


class Statements:
    """Statements that have been looked at.

    Parameters
    ----------
    name
        What the result is called.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._compared = 0
        self._wrong: list[Statement] = []

    def equal(self, what: str, expected: object, found: object) -> None:
        """State that two values are equal and of one type."""
        self._compared += 1
        if type(expected) is not type(found) or expected != found:
            self._wrong.append(Statement(what, repr(expected), repr(found)))

    def same_bits(self, what: str, expected: NDArray[np.float32], found: NDArray[np.float32]) -> None:
        """State that two tensors have the same bits."""
        self._compared += 1
        difference = compare_bits(expected, found)
        if difference is not None:
            self._wrong.append(Statement(what, "equal bits", "; ".join(difference.lines())))

    def refused(
        self,
        what: str,
        kind: type[StarpullmError],
        sentence: str,
        call: Callable[[], object],
        errno: int | None = None,
    ) -> None:
        """State that a call raises an error of this kind with this whole sentence, and with this error number.

        An asterisk in the sentence stands for one word that is different each time, such as a temporary file's name.
        """
        found = ending_of(call)
        expected = text_of(kind, sentence, errno)
        self._compared += 1
        if re.fullmatch(re.escape(expected).replace(r"\*", r"\S+"), found) is None:
            self._wrong.append(Statement(what, expected, found))

    def allowed(self, what: str, call: Callable[[], object]) -> None:
        """State that a call raises nothing; what it opens is closed."""
        self.equal(what, ACCEPTED, ending_of(call))

    def result(self) -> StatementsResult:
        """Return how many statements hold.

        Raises
        ------
        InvalidArgumentError
            If there was none.
        """
        number = len(self._wrong)
        first = f"; {self._wrong[0]}" if self._wrong else ""
        return StatementsResult(
            name=self._name,
            outcome=passed_if(not number),
            finding=f"{self._compared} statements, {number} wrong{first}",
            compared=self._compared,
            measured=number,
            wrong=tuple(self._wrong),
        )


def ending_of(call: Callable[[], object]) -> str:
    """Return how a call ended, in words."""
    try:
        result = call()
    except StarpullmError as error:
        return text_of(type(error), str(error), error.errno if isinstance(error, FileError) else None)
    if isinstance(result, Resource):
        result.close()
    return ACCEPTED


def text_of(kind: type[StarpullmError], sentence: str, errno: int | None = None) -> str:
    """Return an error in words."""
    return f"{kind.__name__}: {sentence}" + (f" (error number {errno})" if errno is not None else "")
