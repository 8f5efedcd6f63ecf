"""Reports of gcovr: what ran of each file, as a table in Markdown and in a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

SOURCES: Final = "native/src"


@dataclass(frozen=True)
class Counts:
    """How many lines or branches there are, and how many of them ran."""

    covered: int
    total: int

    def __str__(self) -> str:
        return f"{100 * self.covered / self.total:.0f} %" if self.total else "–"

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.covered + other.covered, self.total + other.total)


@dataclass(frozen=True)
class Covered:
    """Lines and branches of one file, and the numbers of the lines that did not run."""

    lines: Counts
    branches: Counts
    missing: tuple[int, ...]


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
    found = {}
    for name, of_file in sorted(lines.items()):
        counts = [count for count, _ in of_file.values()]
        taken = [count for _, branches in of_file.values() for count in branches.values()]
        missing = tuple(sorted(number for number, (count, _) in of_file.items() if count == 0))
        found[name] = Covered(
            Counts(len(counts) - counts.count(0), len(counts)), Counts(len(taken) - taken.count(0), len(taken)), missing
        )
    return found


def table(stages_done: dict[str, dict[str, Covered]]) -> Iterator[str]:
    """Yield the lines of a Markdown table: files, and for each title lines and branches; then the sums."""
    titles = list(stages_done)
    yield f"| file | lines | {' | '.join(f'{title}: lines | branches' for title in titles)} |"
    yield "|---|" + "---:|" * (1 + 2 * len(titles))
    nothing = Covered(Counts(0, 0), Counts(0, 0), ())
    sums = dict.fromkeys(titles, nothing)
    for name in sorted({name for files in stages_done.values() for name in files}):
        cells = []
        for title, files in stages_done.items():
            covered = files.get(name, nothing)
            total = sums[title]
            sums[title] = Covered(total.lines + covered.lines, total.branches + covered.branches, ())
            cells += [str(covered.lines), str(covered.branches)]
        size = max(files.get(name, nothing).lines.total for files in stages_done.values())
        yield f"| {name.removeprefix(SOURCES + '/')} | {size} | {' | '.join(cells)} |"
    of_all = [str(counts) for total in sums.values() for counts in (total.lines, total.branches)]
    yield f"| **all** | {max(total.lines.total for total in sums.values())} | {' | '.join(of_all)} |"


def write_page(page: str, lines: Sequence[str], head: str) -> str:
    """Return the page with a new table, and the sentence above it, between its two marks."""
    begin, end = "<!-- table: begin -->\n", "<!-- table: end -->"
    before, _, rest = page.partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        raise SystemExit(f"docs/coverage.md: expected the marks {begin.strip()} and {end}")
    return f"{before}{begin}{head}\n\n" + "\n".join(lines) + f"\n{mark}{after}"
