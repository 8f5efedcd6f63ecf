"""The changes that universalmutator makes to the C sources, without those that a rule leaves out, in a random order.

A candidate changes one line. Nothing is compiled here.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

FOLDERS = ("graph", "codelets", "data", "runtime", "session", "io", "trace", "kernels/ref")
"""Below native/src; the folder of vector kernels is added once for each level."""

VECTOR_FOLDER = "kernels/simd"

RULES = ["universal.rules", "c_like.rules", "c.rules"]
"""Files of universalmutator."""

LEFT_OUT: dict[str, str] = {
    "comments and strings": "no result depends on them",
    "block sizes of vector kernels and the measured limit of a machine": "they change no bit by design: "
    "`kernels/simd/blocking.c`, `kernels/simd/peak_loop.c`, and lines of `kernels/simd` with `blocking`",
    "prefetching": "it changes no bit by design: lines with `prefetch`, and functions with `prefetch` in their head",
    "instruments": "audit, poison and delays only watch: lines and functions with these words",
    "`continue;` at the end of a loop's body": "the loop continues there anyway",
    "`#include` lines": "the tool does not change them",
}
"""The rules, with their reasons."""

_FILES_LEFT_OUT = ("kernels/simd/blocking.c", "kernels/simd/peak_loop.c")
_WORDS_LEFT_OUT = re.compile(r"prefetch|instrument|audit|poison|delay|findings", re.IGNORECASE)
_BLOCKING = re.compile(r"\bblocking")
_COMMENT_OR_STRING = re.compile(r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'""", re.DOTALL)


class Candidate(NamedTuple):
    """A changed line: its file, relative to the checkout, number and text before and after, and the tool's rule.

    A statement after which another one was inserted has two lines.
    """

    file: str
    line: int
    before: str
    after: str
    rule: str

    @property
    def diff(self) -> str:
        """The change as a reader sees it."""
        after = "\n".join(f"+{line}" for line in self.after.splitlines())
        return f"{self.file}:{self.line}\n-{self.before}\n{after}"

    def apply(self, directory: Path) -> None:
        """Change the line in a copy of the sources, or the only one with its text if it has moved since.

        Raises
        ------
        ValueError
            If the line is another one there.
        """
        path = directory / self.file
        path.write_text("\n".join(self.applied(path.read_text("utf-8").splitlines())) + "\n", "utf-8")

    def applied(self, lines: list[str]) -> list[str]:
        """Return the lines of a file with the change; raises as `apply`."""
        index = self.line - 1
        if lines[index : index + 1] != [self.before]:
            found = [number for number, line in enumerate(lines) if line == self.before]
            if len(found) != 1:
                raise ValueError(f"{self.file}:{self.line}: found {lines[index : index + 1]}, expected {self.before!r}")
            index = found[0]
        return [*lines[:index], self.after, *lines[index + 1 :]]


@dataclass(frozen=True)
class Stratum:
    """A folder of the sources, and for vector kernels the level that they are compiled for."""

    folder: str
    level: str | None = None

    def __str__(self) -> str:
        return f"{self.folder}, {self.level}" if self.level and self.folder == VECTOR_FOLDER else self.folder


def strata(levels: Sequence[str]) -> list[Stratum]:
    """Return all strata for the levels that a machine has."""
    plain = [Stratum(folder, "ref" if folder == "kernels/ref" else None) for folder in FOLDERS]
    return plain + [Stratum(VECTOR_FOLDER, level) for level in levels]


def tool() -> str:
    """Return the name and the version of the tool that makes the mutants."""
    return f"universalmutator {importlib.metadata.version('universalmutator')}"


def candidates_of(sources: Path, folder: str) -> Iterator[Candidate]:
    """Yield what the tool makes of the C files of a folder below native/src; ``sources`` has a copy of ``native``."""
    for path in sorted((sources / "native" / "src" / folder).glob("*.c")):
        if f"{folder}/{path.name}" not in _FILES_LEFT_OUT:
            yield from candidates_of_file(path, str(path.relative_to(sources)))


def candidates_of_file(path: Path, name: str) -> Iterator[Candidate]:
    """Yield what the tool makes of a C file, which candidates know by a name."""
    text = path.read_text("utf-8")
    original = text.splitlines()
    code = _without_comments(text).splitlines(keepends=True)
    left_out = is_left_out(original)
    for line, after, rule in changes_of(code, RULES):
        before = code[line - 1].rstrip()
        if VECTOR_FOLDER in name and _BLOCKING.search(before):
            continue
        if left_out[line - 1] or (after.endswith("continue;") and ends_a_loop(original, line)):
            continue
        if _bare(after) != _bare(before):
            yield Candidate(name, line, original[line - 1], after, rule)


def changes_of(code: Sequence[str], rules: Sequence[str]) -> list[tuple[int, str, str]]:
    """Return what the tool makes of lines of code: the number of a line, what it becomes, and the rule."""
    from universalmutator.mutator import mutants_regexp

    # What it takes for the start of a comment of another language would end its work.
    code = [line.replace("/*", "/\0*").replace("{-", "{\0-") for line in code]
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its rules
        mutants = mutants_regexp(code, list(rules), ignorePatterns=[], ignoreStringOnly=True)
    return [(line, changed.replace("\0", "").rstrip(), rule.strip()) for line, changed, (rule, _), _ in mutants]


def _without_comments(text: str) -> str:
    """Return a text with spaces for its comments: the tool takes any line with a comment as one."""

    def blank(match: re.Match[str]) -> str:
        found = match.group()
        return re.sub(r"[^\n]", " ", found) if found.startswith("/") else found

    return _COMMENT_OR_STRING.sub(blank, text)


def is_left_out(lines: Sequence[str]) -> list[bool]:
    """Return for every line of a file whether the rules on prefetching and instruments leave it out."""
    left_out, head = [], ""
    for line in lines:
        if re.match(r"[A-Za-z_]", line):  # a function's head or another declaration starts in the first column
            head = line
        left_out.append(bool(_WORDS_LEFT_OUT.search(line) or _WORDS_LEFT_OUT.search(head)))
    return left_out


def _bare(text: str) -> str:
    """Return a text without comments, the content of strings, and white space."""
    return "".join(re.sub(r'"(?:\\.|[^"\\])*"', '""', _without_comments(text)).split())


def ends_a_loop(lines: Sequence[str], line: int) -> bool:
    """Return whether a line (from 1) is the last one in the body of a loop, by the indentation of the formatter."""
    after = lines[line] if line < len(lines) else ""
    if not after.lstrip().startswith("}"):
        return False
    indentation = after[: len(after) - len(after.lstrip())]
    heads = (text for text in reversed(lines[:line]) if re.match(rf"{indentation}[^\s}}]", text))
    return re.match(r"\s*(for|while|do)\b", next(heads, "")) is not None


def shuffled(candidates: Sequence[Candidate], seed: int, stratum: Stratum) -> list[Candidate]:
    """Return candidates in a random order: one of every line first, then a second one of every line, and so on.

    Otherwise lines with many operators would make up the sample.
    """
    random = Random(f"{seed} {stratum}")
    by_line: dict[tuple[str, int], list[Candidate]] = {}
    for candidate in candidates:
        by_line.setdefault((candidate.file, candidate.line), []).append(candidate)
    groups = list(by_line.values())
    random.shuffle(groups)
    for group in groups:
        random.shuffle(group)
    longest = max(map(len, groups), default=0)
    return [group[number] for number in range(longest) for group in groups if number < len(group)]
