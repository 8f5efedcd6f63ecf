"""A name means one thing: no public class and no module of the package has the name of another one."""

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
