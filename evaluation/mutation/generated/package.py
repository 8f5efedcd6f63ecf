"""The changes that universalmutator makes to the Python package, without those that a rule leaves out.

A candidate counts if the compiled code differs; what is compiled has no docstrings, annotations and texts.
"""

from __future__ import annotations

import ast
import hashlib
import io
import marshal
import re
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path

from .candidates import Candidate, changes_of

FOLDERS: dict[str, tuple[str, ...]] = {
    "top level, binding": ("", "binding"),
    **{
        name: (name,)
        for name in "checks checks/dependencies checks/kernels checks/scenario fuzz graph probe processes files golden "
        "traces report speed predict commands".split()
    },
    "data, training": ("data", "training"),
    "pytest_plugin, suite": ("pytest_plugin", "suite"),
}
"""The folders below starpullm of each stratum."""

RULES = ["universal.rules", "python.rules"]
"""Files of universalmutator."""

LEFT_OUT: dict[str, str] = {
    "comments, docstrings, and the content of strings": "no result depends on them; strings are mostly messages",
    "imports and `__all__`": "without the name a module can't be used, so these mutants are caught by the first test",
    "annotations, type aliases, and `if TYPE_CHECKING`": "only type checkers read them",
    "what compiles to the same code": "as a `continue` at the end of a loop, or a statement behind a `return`",
}
"""The rules, with their reasons."""

_OF_STRINGS = ('".+" ==> ""', "'.+' ==> ''")
_TYPE_ALIAS = re.compile(r"_?[A-Z][a-z]\w*")


def candidates_of(sources: Path, folder: str) -> Iterator[Candidate]:
    """Yield what the tool makes of a stratum's modules; ``sources`` has a copy of the package."""
    for part in FOLDERS[folder]:
        for path in sorted((sources / "starpullm" / part).glob("*.py")):
            text = path.read_text("utf-8")
            code, left_out = _without_comments(text), left_out_lines(text)
            for line, after, rule in changes_of(code.splitlines(keepends=True), RULES):
                if line not in left_out and rule not in _OF_STRINGS:
                    before = text.splitlines()[line - 1]
                    yield Candidate(str(path.relative_to(sources)), line, before, after, rule)


def code_of(text: str) -> str | None:
    """Return a hash of a module's compiled code without what `LEFT_OUT` names; None: it does not compile."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the code of mutants
        try:
            tree = _WithoutText().visit(ast.parse(text))
            for node in ast.walk(tree):  # so that the code has no numbers of lines
                vars(node).update(lineno=1, end_lineno=1, col_offset=0, end_col_offset=0)
            code = compile(tree, "", "exec")
        except SyntaxError:
            return None
    return hashlib.sha256(marshal.dumps(code, 2)).hexdigest()[:16]


def left_out_lines(text: str) -> set[int]:
    """Return the lines, from 1, that are no candidates."""
    tree = ast.parse(text)
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) or (isinstance(node, ast.stmt) and _is_for_readers(node)):
            found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def _is_for_readers(node: ast.stmt) -> bool:
    """Whether a statement is a docstring, a type alias, ``__all__`` or `if TYPE_CHECKING`."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    targets = node.targets if isinstance(node, ast.Assign) else []
    names = [target.id for target in targets if isinstance(target, ast.Name) and node.col_offset == 0]
    return any(name == "__all__" or _TYPE_ALIAS.fullmatch(name) for name in names)


class _WithoutText(ast.NodeTransformer):
    """Removes the content of strings, and annotations."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant("") if isinstance(node.value, str) else node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(node.arg)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)


def _without_comments(text: str) -> str:
    """Return a text without comments, which the rules would change or stop at."""
    lines = text.splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            lines[line - 1] = lines[line - 1][:column].rstrip() + "\n"
    return "".join(lines)
