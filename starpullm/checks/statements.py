"""What the library says or does, compared with what it should: one statement after the other, each of which counts."""

from __future__ import annotations

from starpullm.checks.result import Finding


class Statements:
    """Statements that have been looked at; those that don't hold are ``wrong``."""

    def __init__(self) -> None:
        self.compared = 0
        self.wrong: list[Finding] = []

    def equal(self, what: str, expected: object, found: object) -> None:
        """State that two values are equal and of one type."""
        self.compared += 1
        if type(expected) is not type(found) or expected != found:
            self.wrong.append(Finding(f"{what}: expected {expected!r}, found {found!r}"))
