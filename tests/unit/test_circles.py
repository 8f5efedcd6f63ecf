"""No circle of imports: between modules of the package, as far as importing them goes, and between C files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]


def modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (ROOT / "starpullm").rglob("*.py")
    }


def imported(path: Path) -> Iterator[str]:
    """Yield what a module imports when it is imported itself: each name as it is and without its last part."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_modules() -> None:
    known = modules()
    needs = {name: {known_as(of, known) for of in imported(path)} - {name, ""} for name, path in known.items()}
    assert sum(map(len, needs.values())) > 500
    list(TopologicalSorter(needs).static_order())  # raises CycleError, which names the circle


def known_as(name: str, known: dict[str, Path]) -> str:
    """Return the module that is imported: the one of this name, or the one that has it; nothing if it's not ours."""
    return next((of for of in (name, name.rpartition(".")[0]) if of in known), "")


def test_c_files() -> None:
    """A source file and its header are one."""
    sources = ROOT / "native" / "src"
    needs: dict[str, set[str]] = {}
    for path in sources.rglob("*.[ch]"):
        found = re.findall(r'^#include "([^"]+)\.\w+"', path.read_text("utf-8"), re.MULTILINE)
        needs.setdefault(str(path.relative_to(sources).with_suffix("")), set()).update(found)
    assert sum(map(len, needs.values())) > 200
    list(TopologicalSorter({name: of - {name} for name, of in needs.items()}).static_order())
