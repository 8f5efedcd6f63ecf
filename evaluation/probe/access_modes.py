"""Access modes of codelets in C sources, and how one of them is made a lie.

The mode is changed in the codelet and in the calls of starpu_task_insert that name it, because StarPU compares them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

RULES = {
    "STARPU_RW": ("STARPU_R", "STARPU_W"),
    "STARPU_W": ("STARPU_R",),
    "STARPU_R": ("STARPU_W",),
}
"""What becomes of each mode."""

_MODE = r"STARPU_(?:RW|R|W|SCRATCH|REDUX|MPI_REDUX)\b(?:\s*\|\s*STARPU_\w+)*"
_CODELET = re.compile(r"struct\s+starpu_codelet\s+(STARPU_\w+\(\w+\)|\w+)\s*=\s*\{")
_MODES = re.compile(r"\.modes\s*=\s*\{([^}]*)\}")
_INSERT = re.compile(r"\bstarpu_(?:mpi_)?(?:task_insert|insert_task)\s*\(")


@dataclass(frozen=True)
class Lie:
    """One access of one codelet with another mode: the places to change, as offsets into files."""

    path: Path
    line: int
    codelet: str
    """The variable."""
    name: str | None
    """By which findings call it; None: it is made by a macro."""
    access: int
    before: str
    after: str
    places: tuple[tuple[Path, int], ...]

    @property
    def change(self) -> str:
        """Return codelet, access and both modes, for readers."""
        return f"`{self.codelet}`, access {self.access}: {self.before[7:]} → {self.after[7:]}"

    def texts(self, texts: Mapping[Path, str]) -> dict[Path, str]:
        """Return the changed texts of the files in which something changes."""
        changed = {path: texts[path] for path, _ in self.places}
        for path, start in sorted(self.places, key=lambda place: place[1], reverse=True):
            text = changed[path]
            assert text.startswith(self.before, start)
            changed[path] = text[:start] + self.after + text[start + len(self.before) :]
        return changed


def lies_of(texts: Mapping[Path, str]) -> Iterator[Lie]:
    """Yield the lies of a program's sources: one of each codelet first, then a second one of each, and so on."""
    by_codelet = [list(_lies_of_codelet(path, found, texts)) for path in texts for found in _codelets(texts[path])]
    yield from (lie for lie in chain.from_iterable(zip_longest(*by_codelet)) if lie is not None)


def with_names(text: str) -> str:
    """Return a source in which codelets without a name have that of their variable: findings then tell them apart."""
    for variable, start, initializer in reversed(list(_codelets(text))):
        if ".name" not in initializer:
            opening = text.index("{", start) + 1
            text = f'{text[:opening]} .name = "{variable}",{text[opening:]}'
    return text


def with_included(paths: list[Path], roots: tuple[Path, ...]) -> list[Path]:
    """Return sources and the files below the roots that they include, sources first."""
    found = dict.fromkeys(paths)
    waiting = list(paths)
    while waiting:
        path = waiting.pop()
        for name in re.findall(r'^\s*#\s*include\s*["<]([^">]+)[">]', path.read_text(errors="replace"), re.MULTILINE):
            for folder in (path.parent, *roots):
                included = (folder / name).resolve()
                if included.is_file() and any(included.is_relative_to(root) for root in roots):
                    if included not in found:
                        found[included] = None
                        waiting.append(included)
                    break
    return list(found)


def _codelets(text: str) -> Iterator[tuple[str, int, str]]:
    """Yield variable, start and initializer of each codelet."""
    for match in _CODELET.finditer(text):
        yield match.group(1), match.start(), text[match.end() : _closing(text, match.end(), "{}")]


def _closing(text: str, start: int, pair: str) -> int:
    """Return where the bracket is closed that was opened before `start`."""
    depth, position = 1, start
    while depth > 0 and position < len(text):
        depth += (text[position] == pair[0]) - (text[position] == pair[1])
        position += 1
    return position


def _lies_of_codelet(path: Path, codelet: tuple[str, int, str], texts: Mapping[Path, str]) -> Iterator[Lie]:
    variable, start, initializer = codelet
    text = texts[path]
    modes = _MODES.search(initializer)
    if modes is None or "/*" in initializer[: modes.start()].rpartition("\n")[2]:
        return
    offset = text.index(initializer, start) + modes.start(1)
    is_static = text[:start].rstrip().endswith("static") or text[:start].endswith(("\t", " "))
    files = [path] if is_static else list(texts)
    calls = [(file, call) for file in files for call in _calls(texts[file], variable)]
    for access, match in enumerate(re.finditer(_MODE, modes.group(1))):
        for after in RULES.get(match.group(), ()):
            places = [(path, offset + match.start())]
            for file, tokens in calls:
                if access < len(tokens) and tokens[access][1] == match.group():
                    places.append((file, tokens[access][0]))
            line = text.count("\n", 0, offset + match.start()) + 1
            yield Lie(path, line, variable, _name(initializer), access, match.group(), after, tuple(places))


def _calls(text: str, variable: str) -> Iterator[list[tuple[int, str]]]:
    """Yield offset and text of each mode in each call that inserts a task of a codelet."""
    for match in _INSERT.finditer(text):
        end = _closing(text, match.end(), "()")
        arguments = text[match.end() : end]
        if re.search(rf"&\s*{re.escape(variable)}(?![\w(])", arguments):
            pattern = rf"{_MODE}|\b{re.escape(variable)}\.modes\[\d+\]"
            yield [(match.end() + mode.start(), mode.group()) for mode in re.finditer(pattern, arguments)]


def _name(initializer: str) -> str | None:
    """Return a codelet's name, if one stands there."""
    found = re.search(r'\.name\s*=\s*"([^"]*)"', initializer)
    return found.group(1) if found else None
