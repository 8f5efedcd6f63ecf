"""No circle of imports: between folders and modules of the package, also inside functions, and between C files."""

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


def imported(node: ast.AST, *, types: bool) -> Iterator[str]:
    """Yield what a module imports, also inside functions, as far as it is asked for where only type checkers look."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif types or not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from imported(child, types=types)


def needed(*, types: bool) -> dict[str, set[str]]:
    """Return for each module the others that it imports."""
    known = modules()
    trees = {name: ast.parse(path.read_text("utf-8")) for name, path in known.items()}
    return {
        name: {known_as(module, known) for module in imported(tree, types=types)} - {name, ""}
        for name, tree in trees.items()
    }


def test_modules() -> None:
    needs = needed(types=False)
    assert sum(map(len, needs.values())) > 700
    list(TopologicalSorter(needs).static_order())  # raises CycleError, which names the circle


BASE = ("errors", "options", "memory")


def folder_of(module: str) -> str:
    """Return the folder that a module is in, or that it is; of those in no folder, one of three groups."""
    parts = Path(*module.split(".")[1:])
    if (ROOT / "starpullm" / parts).is_dir():
        return str(parts) if parts.name else "API"
    if len(parts.parts) > 1:
        return str(parts.parent)
    return "base" if parts.name in BASE else "testing" if parts.name == "testing" else "API"


def folders(depth: int) -> dict[str, set[str]]:
    """Return for each folder those that it imports from; those below so many levels count as part of their parents."""
    needs: dict[str, set[str]] = {}
    for module, others in needed(types=True).items():
        one, *rest = ("/".join(folder_of(name).split("/")[:depth]) for name in (module, *others))
        needs.setdefault(one, set()).update(other for other in rest if other != one)
    return needs


@pytest.mark.parametrize("depth", [1, 2])
def test_folders(depth: int) -> None:
    list(TopologicalSorter(folders(depth)).static_order())


def test_the_design_page_has_the_imports_between_folders() -> None:
    """Each row names folders of the rows above it only."""
    page = (ROOT / "docs" / "design.md").read_text("utf-8").partition("| folder | imports from |\n")[2]
    rows = [line.split("|")[1:3] for line in page.partition("\n\n")[0].splitlines()[1:]]
    stated = {name: set(re.findall(r"\w+", targets)) for names, targets in rows for name in re.findall(r"\w+", names)}
    assert stated == folders(1)
    order = list(stated)
    assert all(order.index(other) < order.index(name) for name, others in stated.items() for other in others)


def known_as(name: str, known: dict[str, Path]) -> str:
    """Return the module that is imported: the one of this name, or the one that has it; nothing if it's not ours."""
    return next((part for part in (name, name.rpartition(".")[0]) if part in known), "")


@SOURCES
def test_c_files(sources: Path) -> None:
    """A source file and its header are one."""
    needs: dict[str, set[str]] = {}
    for path in sources.rglob("*.[ch]"):
        found = re.findall(r'^#include "([^"]+)\.\w+"', path.read_text("utf-8"), re.MULTILINE)
        needs.setdefault(str(path.relative_to(sources).with_suffix("")), set()).update(found)
    assert sum(map(len, needs.values())) > 2 * len(needs)
    list(TopologicalSorter({name: needed - {name} for name, needed in needs.items()}).static_order())


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
            *(files for name in set(re.findall(r"\b(\w+)\(", text)) if file not in (files := defined.get(name, set())))
        )
        for file, text in code.items()
    }
    assert len(defined) > 2 * len(code)
    assert sum(map(len, needs.values())) > len(code)
    list(TopologicalSorter(needs).static_order())
