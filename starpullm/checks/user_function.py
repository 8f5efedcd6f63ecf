"""A user's function as a check: its assert statements are the comparisons, and one that fails shows its values.

It is apart because it uses pytest's assertion rewriting, which other checks don't need. The public
``register_assert_rewrite`` works only where pytest imports modules, and not in a child.
"""

from __future__ import annotations

import ast
import importlib
import linecache
import traceback
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any, Final

from starpullm.checks.check_context import CheckContext
from starpullm.checks.result import Finding, Outcome, Result
from starpullm.errors import InvalidArgumentError
from starpullm.processes.progress import report_phase
from starpullm.processes.service import find_function


def run_user_function(
    context: CheckContext, *, location: Mapping[str, str], arguments: Mapping[str, Any]
) -> Result | None:
    """Call a function by its location, and return its result, or that of its assertions if it returns nothing.

    The result is None if it asserts nothing either. On several ranks a failed assertion is raised: the other ranks may
    wait for this one, so all of them are ended. An `InvalidArgumentError` is raised if it returns anything else.
    """
    importlib.import_module("_pytest.assertion.util")._assertion_pass = _PASSES  # type: ignore[attr-defined]
    function = find_function(location, _Rewriting)
    report_phase(f"running {function.__name__}")
    before = _PASSES.count
    try:
        result: Result | None = function(context, **arguments)
    except AssertionError as error:
        if context.runtime.ranks > 1:
            raise
        return _failed(function.__name__, error, _PASSES.count - before + 1)
    if isinstance(result, Result):
        return result
    if result is not None:
        raise InvalidArgumentError(f"it returned {type(result).__name__}, expected a Result, or None after assertions")
    count = _PASSES.count - before
    if count == 0 and any(name.startswith("assert") for name in function.__code__.co_names):
        count = 1  # a function such as numpy.testing.assert_allclose
    if count == 0:
        return None
    sentence = f"{count} assertion{'s' * (count > 1)} held"
    return Result(check=function.__name__, outcome=Outcome.PASSED, compared=count, unit="assertions", sentence=sentence)


def _failed(name: str, error: AssertionError, count: int) -> Result:
    """Return the result of an assertion that failed, with its values and the last lines of code that led to it."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    message = str(error).splitlines() or ["an assertion failed"]
    places = [f"{frame.filename}:{frame.lineno}: in {frame.name}: {frame.line}" for frame in frames]
    return Result(
        check=name,
        outcome=Outcome.FAILED,
        compared=count,
        unit="assertions",
        sentence=message[0],
        findings=tuple(map(Finding, (*message[1:], *places))),
        count=1,
    )


class _Passes:
    """Counts the assert statements that hold; also what pytest's rewriting takes for the configuration of pytest."""

    def __init__(self) -> None:
        self.count = 0

    def getini(self, name: str) -> bool:
        """Return that the rewritten statements report each assertion that holds."""
        return name == "enable_assertion_pass_hook"

    def __call__(self, *_: object) -> None:
        self.count += 1


_PASSES: Final = _Passes()


class _Rewriting(SourceFileLoader):
    """Imports a module from its file, with the assert statements that pytest would make of its own."""

    def get_code(self, fullname: str) -> CodeType:
        """Compile the source, whatever was compiled of it before."""
        rewrite: Any = importlib.import_module("_pytest.assertion.rewrite")
        source = self.get_data(self.path)
        tree = ast.parse(source, self.path)
        rewrite.rewrite_asserts(tree, source, self.path, _PASSES)
        linecache.checkcache(self.path)
        code: CodeType = compile(tree, self.path, "exec", dont_inherit=True)
        return code
