"""A name means one thing: no public class and no module of the package has another's, and no value a preposition's."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

MODULES = [path for path in (Path(__file__).parents[2] / "starpullm").rglob("*.py") if path.stem != "__init__"]


def test_classes() -> None:
    nodes = [node for path in MODULES for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))
    assert len(names) > 150
    assert [name for name, count in names.items() if count > 1] == []


def test_modules() -> None:
    """Those of commands have the names of commands."""
    names = Counter(path.stem for path in MODULES if path.parent.name != "commands")
    assert len(names) > 120
    assert [name for name, count in names.items() if count > 1] == []


def test_values() -> None:
    nodes = [(path, node) for path in MODULES for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    names = [(path.name, node.id) for path, node in nodes if isinstance(node, ast.Name)]
    names += [(path.name, node.arg) for path, node in nodes if isinstance(node, ast.arg)]
    assert len(names) > 20_000
    assert [name for name in names if name[1] in {"at", "by", "from_", "in_", "into", "of", "on", "to", "with_"}] == []
