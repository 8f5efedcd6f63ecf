"""No circle of imports: between modules of the package, as far as importing them goes, and between C files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = pytest.mark.parametrize(
    "sources", [ROOT / "native" / name for name in ("src", "probe")], ids=lambda path: path.name
)


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


@SOURCES
def test_c_files(sources: Path) -> None:
    """A source file and its header are one."""
    needs: dict[str, set[str]] = {}
    for path in sources.rglob("*.[ch]"):
        found = re.findall(r'^#include "([^"]+)\.\w+"', path.read_text("utf-8"), re.MULTILINE)
        needs.setdefault(str(path.relative_to(sources).with_suffix("")), set()).update(found)
    assert sum(map(len, needs.values())) > 2 * len(needs)
    list(TopologicalSorter({name: of - {name} for name, of in needs.items()}).static_order())


@SOURCES
def test_c_calls(sources: Path) -> None:
    """One header may declare the functions of several files; whose files call each other is found by their names.

    Functions whose names a macro makes (kernels/simd) are left out.
    """
    code = {
        str(path.relative_to(sources)): re.sub(
            r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"', "", path.read_text("utf-8"), flags=re.DOTALL
        )
        for path in sources.rglob("*.c")
    }
    definition = re.compile(r"^(?!static\b)\w[\w *]*?[ *](\w+)\([^;{}]*\)\n\{", re.MULTILINE)
    defined: dict[str, set[str]] = {}
    for file, text in code.items():
        for name in definition.findall(text):
            defined.setdefault(name, set()).add(file)
    defined.pop("SIMD_NAME", None)
    needs = {
        file: set().union(
            *(of for name in set(re.findall(r"\b(\w+)\(", text)) if file not in (of := defined.get(name, set())))
        )
        for file, text in code.items()
    }
    assert len(defined) > 2 * len(code)
    assert sum(map(len, needs.values())) > len(code)
    list(TopologicalSorter(needs).static_order())
