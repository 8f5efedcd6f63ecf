"""Why lines and branches don't run: explained.toml, by the lines' text, so that an explanation goes with its code."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .report import SOURCES, Covered

EXPLANATIONS: Final = Path(__file__).resolve().parent / "explained.toml"


@dataclass(frozen=True)
class Class:
    """Lines that don't run for the same reason.

    Parameters
    ----------
    name
        What the page calls it.
    why
        One sentence.
    reached
        The tests outside of the suite that run such lines; "" if there are none.
    """

    name: str
    why: str
    reached: str


TRY: Final = Class(
    "the return after a failure",
    "`TRY(…)` and the like return what another function has refused; where that arises, it is listed by itself.",
    "",
)
_WHOLE_FILE: Final = "whole file"
_PASSED_ON: Final = "== STARPULLM_OK"

COPIES: Final = Class(
    "copies of an inlined function",
    "Each call of an inlined vector function has branches of its own, many of which are decided by constants.",
    "",
)
_COPIES_IN: Final = f"{SOURCES}/kernels/simd/"
_MOST_OF_ONE_COPY: Final = 8

NEXT: Final = Class("the way to the next line", "The line that the branch leads to is listed itself.", "")


@dataclass(frozen=True)
class Block:
    """Lines of a file, from the first to the last number, that a class explains as far as they don't run."""

    file: str
    numbers: range
    of: Class


class Explanations:
    """The classes, and the lines of each file that belong to one."""

    def __init__(self) -> None:
        self.classes: list[Class] = []
        self._blocks: list[Block] = []
        self._of_line: dict[tuple[str, int], Class] = {}

    def add(self, block: Block) -> None:
        """Add a block.

        Raises
        ------
        ValueError
            If one of its lines is in another block.
        """
        for number in block.numbers:
            if (block.file, number) in self._of_line:
                raise ValueError(f"{block.file}:{number}: stands in two blocks, the second one of {block.of.name}")
            self._of_line[block.file, number] = block.of
        self._blocks.append(block)

    def of_line(self, file: str, number: int) -> Class | None:
        """Return why a line doesn't run."""
        return self._of_line.get((file, number))

    def of_branches(self, file: str, covered: Covered, number: int, text: str) -> Class | None:
        """Return why not all branches of a line that ran, with this text, were taken."""
        if stated := self.of_line(file, number):
            return stated
        branches = covered.by_number[number].branches
        missing = branches.missing
        if file.startswith(_COPIES_IN) and branches.total > _MOST_OF_ONE_COPY:
            return COPIES
        if missing <= text.count("TRY(") or (missing == 1 and _PASSED_ON in text):
            return TRY
        following = next((other for other in covered.by_number if other > number), None)
        leads_on = following is not None and not covered.by_number[following].ran
        return NEXT if missing == 1 and leads_on else None

    def unused(self, covered: Mapping[str, Covered]) -> list[str]:
        """Return the blocks all of whose lines ran with all of their branches."""
        return [
            f"{block.file}:{block.numbers.start}"
            for block in self._blocks
            if block.file in covered
            and not {*covered[block.file].missing, *covered[block.file].untaken}.intersection(block.numbers)
        ]


def read_explanations(checkout: Path, path: Path = EXPLANATIONS) -> Explanations:
    """Return what the file says of the sources in a checkout.

    Each block of lines in it must stand exactly once in its file; white space does not count. "whole file" in place of
    blocks explains every line of a file that doesn't run.

    Raises
    ------
    ValueError
        If a class lacks its sentence or has no lines, or if a block stands in its file never, more than once, or in
        two classes.
    """
    found = Explanations()
    for entry in tomllib.loads(path.read_text("utf-8"))["class"]:
        of_class = Class(entry["name"], entry["why"].strip(), entry.get("reached", "").strip())
        if not of_class.why or not entry.get("lines"):
            raise ValueError(f"{path}: class {of_class.name}: expected a sentence and lines")
        found.classes.append(of_class)
        _take(found, of_class, entry["lines"], checkout)
    return found


def _take(found: Explanations, of_class: Class, blocks: Mapping[str, Any], checkout: Path) -> None:
    for name, texts in blocks.items():
        file = f"{SOURCES}/{name}"
        lines = [_words(line) for line in (checkout / file).read_text("utf-8").splitlines()]
        if texts == _WHOLE_FILE:
            found.add(Block(file, range(1, len(lines) + 1), of_class))
            continue
        for text in texts:
            numbers = _numbers(file, lines, [_words(line) for line in text.strip().splitlines()])
            found.add(Block(file, numbers, of_class))


def _numbers(file: str, lines: Sequence[str], block: Sequence[str]) -> range:
    """Return the numbers, from 1 on, of the lines of a block."""
    places = [at for at in range(len(lines)) if list(lines[at : at + len(block)]) == list(block)]
    if len(places) != 1:
        raise ValueError(f"{file}: {block[0]!r} stands {len(places)} times in it, expected once")
    return range(places[0] + 1, places[0] + 1 + len(block))


def _words(line: str) -> str:
    return " ".join(line.split())
