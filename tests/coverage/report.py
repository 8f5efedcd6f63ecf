"""Reports of gcovr: what ran of each file and line, as a table and as a list of what did not run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

SOURCES: Final = "native/src"


@dataclass(frozen=True)
class Counts:
    """How many lines or branches there are, and how many of them ran."""

    covered: int = 0
    total: int = 0

    def __str__(self) -> str:
        return f"{self.covered} of {self.total}" if self.total else "–"

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.covered + other.covered, self.total + other.total)

    @property
    def missing(self) -> int:
        """How many did not run."""
        return self.total - self.covered

    @property
    def percent(self) -> str:
        """The share that ran, with one digit."""
        return f"{100 * self.covered / self.total:.1f} %" if self.total else "–"


@dataclass(frozen=True)
class Line:
    """Whether a line ran, and the branches that begin in it."""

    ran: bool
    branches: Counts = Counts()


@dataclass(frozen=True)
class Covered:
    """The lines of one file that have code, by number."""

    by_number: Mapping[int, Line]

    @cached_property
    def lines(self) -> Counts:
        """How many lines ran."""
        return Counts(sum(line.ran for line in self.by_number.values()), len(self.by_number))

    @cached_property
    def branches(self) -> Counts:
        """How many branches were taken."""
        return sum((line.branches for line in self.by_number.values()), Counts())

    @cached_property
    def missing(self) -> tuple[int, ...]:
        """The numbers of the lines that did not run."""
        return tuple(number for number, line in self.by_number.items() if not line.ran)

    @cached_property
    def untaken(self) -> tuple[int, ...]:
        """The numbers of the lines that ran without taking all of their branches."""
        return tuple(number for number, line in self.by_number.items() if line.ran and line.branches.missing)


def read_report(report: dict[str, Any]) -> dict[str, Covered]:
    """Return the coverage by file of a report of gcovr (``--json``). A line's counts at all SIMD levels are added."""
    lines: dict[str, dict[int, tuple[int, dict[int, int]]]] = {}
    for file in report["files"]:
        of_file = lines.setdefault(file["file"], {})
        for line in file["lines"]:
            if line.get("gcovr/excluded") or line.get("gcovr/noncode"):
                continue
            count, branches = of_file.get(line["line_number"], (0, {}))
            for number, branch in enumerate(line["branches"]):
                branches[number] = branches.get(number, 0) + branch["count"]
            of_file[line["line_number"]] = (count + line["count"], branches)
    return {
        name: Covered({number: _line(*of_line) for number, of_line in sorted(of_file.items())})
        for name, of_file in sorted(lines.items())
    }


def _line(count: int, branches: Mapping[int, int]) -> Line:
    return Line(count > 0, Counts(sum(taken > 0 for taken in branches.values()), len(branches)))


Files = Mapping[str, Covered]


def table(columns: Mapping[str, Files]) -> Iterator[str]:
    """Yield the lines of a Markdown table: files, and for each title lines and branches; then the sums."""
    yield f"| file | {' | '.join(f'{title}: lines | branches' for title in columns)} |"
    yield "|---|" + "---:|" * (2 * len(columns))
    for name in sorted({name for files in columns.values() for name in files}):
        of_file = [files.get(name, Covered({})) for files in columns.values()]
        cells = [str(counts) for covered in of_file for counts in (covered.lines, covered.branches)]
        yield f"| {name.removeprefix(SOURCES + '/')} | {' | '.join(cells)} |"
    sums = [counts for files in columns.values() for counts in _sums(files)]
    yield f"| **all** | {' | '.join(f'{counts} ({counts.percent})' for counts in sums)} |"


def _sums(files: Files) -> tuple[Counts, Counts]:
    lines = sum((covered.lines for covered in files.values()), Counts())
    return lines, sum((covered.branches for covered in files.values()), Counts())


def missing(files: Files, checkout: Path) -> Iterator[str]:
    """Yield lines of Markdown: by file, the lines that did not run, and those whose branches were not all taken."""
    for name, covered in files.items():
        if not covered.missing and not covered.untaken:
            continue
        texts = (checkout / name).read_text("utf-8").splitlines()
        yield f"**{name.removeprefix(SOURCES + '/')}**: {covered.lines} lines, {covered.branches} branches"
        yield ""
        for block in _blocks(covered):
            last = f" to {block[-1]}" if len(block) > 1 else ""
            yield f"- {block[0]}{last} `{texts[block[0] - 1].strip()}`"
        for number in covered.untaken:
            counts = covered.by_number[number].branches
            yield f"- {counts.missing} of {counts.total} branches of {number} `{texts[number - 1].strip()}`"
        yield ""


def _blocks(covered: Covered) -> list[Sequence[int]]:
    """Return the lines that did not run, those together between which no line ran."""
    blocks: list[list[int]] = []
    before = True
    for number, line in covered.by_number.items():
        if not line.ran and before:
            blocks.append([])
        if not line.ran:
            blocks[-1].append(number)
        before = line.ran
    return list(blocks)
