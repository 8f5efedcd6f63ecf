"""Statements about what the library refuses, with its whole sentence, and what it allows."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from starpullm.binding.resource import Resource
from starpullm.checks import statements
from starpullm.checks.check import Check
from starpullm.checks.result import Result
from starpullm.errors import FileError, StarpullmError

ACCEPTED = "accepted"


def judged(*, check: str, unit: str, fault: str, **verdict: Any) -> Result:
    """Return the verdict of a check that isn't one of the suite's; arguments as `Check.result`."""
    of: Check = type("Named", (Check,), {"name": check, "family": "own", "claim": "", "unit": unit, "fault": fault})()
    return of.result(**verdict)


class Statements(statements.Statements):
    """Statements with a verdict of this name."""

    def __init__(self, check: str = "statements") -> None:
        super().__init__()
        self._check = check

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
        self.compared += 1
        if re.fullmatch(re.escape(expected).replace(r"\*", r"\S+"), found) is None:
            self.add(what, expected, found)

    def allowed(self, what: str, call: Callable[[], object]) -> None:
        """State that a call raises nothing; what it opens is closed."""
        self.equal(what, ACCEPTED, ending_of(call))

    def result(self) -> Result:
        """Return the verdict; nothing stated is an error."""
        fault = "a statement doesn't hold"
        return judged(check=self._check, unit="statements", fault=fault, compared=self.compared, findings=self.wrong)


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
