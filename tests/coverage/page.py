"""The table of coverage in Markdown, and what docs/coverage.md says of the lines and branches that don't run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from .explained import COPIES, NEXT, TRY, Class, Explanations
from .report import SOURCES, Counts, Covered

Files = Mapping[str, Covered]

_BY_RULE = (TRY, NEXT, COPIES)
_NONE = Class("**not explained**", "", "")
_CODE_CHARACTERS = 90


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


class Missing:
    """What the suite doesn't run.

    Parameters
    ----------
    suite
        The coverage of what users run.
    more
        The same with the ctests; it may be that of the suite.
    explanations
        Why lines don't run.
    checkout
        Where the sources are.
    """

    def __init__(self, suite: Files, more: Files, explanations: Explanations, checkout: Path) -> None:
        self._suite, self._more, self._explanations = suite, more, explanations
        self._texts = {name: (checkout / name).read_text("utf-8").splitlines() for name in suite}
        self._lines: Counter[Class] = Counter()
        self._branches: Counter[Class] = Counter()
        self._entries = {name: list(self._of_file(name)) for name in suite}

    def open(self) -> int:
        """Return how many lines and branches are not explained."""
        return self._lines[_NONE] + self._branches[_NONE]

    def classes(self) -> Iterator[str]:
        """Yield the lines of a table of the classes."""
        yield "| why | lines | branches | | run by |"
        yield "|---|---:|---:|---|---|"
        for of in (*self._explanations.classes, *_BY_RULE, _NONE):
            yield f"| {of.name} | {self._lines[of]} | {self._branches[of]} | {of.why} | {of.reached} |"

    def entries(self) -> Iterator[str]:
        """Yield the lines of a list by file."""
        for name, entries in self._entries.items():
            covered = self._suite[name]
            if not covered.missing and not covered.untaken:
                continue
            yield f"**{name.removeprefix(SOURCES + '/')}**: {covered.lines} lines, {covered.branches} branches"
            yield ""
            yield from entries
            yield ""

    def _of_file(self, name: str) -> Iterator[str]:
        covered, more = self._suite[name], self._more.get(name, Covered({}))
        silent: Counter[Class] = Counter()
        for run in _runs(covered, [(self._why(name, number), _ran(more, number)) for number in covered.missing]):
            (of, elsewhere), numbers = run
            self._lines[of] += len(numbers)
            for number in numbers:
                self._branches[of] += covered.by_number[number].branches.missing
            yield f"- {_span(numbers)} {self._code(name, numbers[0])}: {of.name}{'; a ctest' if elsewhere else ''}"
        for number in covered.untaken:
            of = self._explanations.of_branches(name, covered, number, self._text(name, number)) or _NONE
            counts = covered.by_number[number].branches
            self._branches[of] += counts.missing
            if of in _BY_RULE:
                silent[of] += counts.missing
            else:
                yield f"- {counts.missing} of {counts.total} branches of {number} {self._code(name, number)}: {of.name}"
        if silent:
            yield f"- other branches: {', '.join(f'{count} {of.name}' for of, count in silent.items())}"

    def _why(self, name: str, number: int) -> Class:
        return self._explanations.of_line(name, number) or _NONE

    def _text(self, name: str, number: int) -> str:
        return self._texts[name][number - 1].strip()

    def _code(self, name: str, number: int) -> str:
        text = self._text(name, number)
        return f"`{text if len(text) <= _CODE_CHARACTERS else text[:_CODE_CHARACTERS].rstrip() + ' …'}`"


def _ran(covered: Covered, number: int) -> bool:
    line = covered.by_number.get(number)
    return line is not None and line.ran


def _runs(covered: Covered, keys: Sequence[tuple[Class, bool]]) -> Iterator[tuple[tuple[Class, bool], list[int]]]:
    """Yield the lines that did not run, those together that follow each other and have the same key."""
    order = {number: place for place, number in enumerate(covered.by_number)}
    run: list[int] = []
    key = None
    for number, of in zip(covered.missing, keys, strict=True):
        if run and key is not None and (of != key or order[number] != order[run[-1]] + 1):
            yield key, run
            run = []
        run, key = [*run, number], of
    if run and key is not None:
        yield key, run


def _span(numbers: Sequence[int]) -> str:
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def write_page(page: str, lines: Sequence[str]) -> str:
    """Return the page with new lines between its two marks."""
    begin, end = "<!-- measured: begin -->\n", "<!-- measured: end -->"
    before, _, rest = page.partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        raise SystemExit(f"docs/coverage.md: expected the marks {begin.strip()} and {end}")
    return f"{before}{begin}" + "\n".join(lines) + f"\n{mark}{after}"
