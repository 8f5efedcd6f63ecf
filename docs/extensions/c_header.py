"""Sphinx's directive `c-header`: the declarations of a C header, each with the comment before it.

Structs and enumerations are shown as they are written, because the comments of their members explain them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList

_BLOCK = re.compile(
    r"(?P<comment>/\*(?:(?!\*/).)*\*/\n)?"
    r"(?:(?P<section>/\* ---- (?P<title>.*?) ---- \*/)"
    r"|STARPULLM_API (?P<function>[^;{]*?\));"
    r"|(?P<type>(?:struct|enum) \w+ \{.*?\n\};)"
    r"|typedef (?P<typedef>struct \w+ \w+);"
    r"|#define (?P<macro>\w+) (?P<value>\d+))",
    re.DOTALL,
)


class Entry(NamedTuple):
    """A section's title, or a declaration with its comment."""

    kind: str
    text: str
    comment: str


def entries(source: str) -> Iterator[Entry]:
    """Yield the parts of a header in order."""
    for match in _BLOCK.finditer(source.partition('extern "C" {')[2]):
        comment = " ".join(re.sub(r"^\s*/?\*+/?|\*/", " ", match["comment"] or "", flags=re.MULTILINE).split())
        if match["section"]:
            yield Entry("section", match["title"], "")
        elif match["function"]:
            yield Entry("function", *_without_shapes(match["function"], comment))
        elif match["macro"]:
            yield Entry("macro", match["macro"], f"{comment} Now {match['value']}.")
        else:
            yield Entry("type", match["type"] or f"typedef {match['typedef']};", comment)


def _without_shapes(function: str, comment: str) -> tuple[str, str]:
    """Return a prototype without the comments after its parameters, and its comment with them."""
    shapes = re.findall(r"(\w+) /\* (.*?) \*/", function)
    prototype = re.sub(r" /\*.*?\*/", "", " ".join(function.split()))
    return prototype, " ".join([comment, *(f"{name}: {shape}." for name, shape in shapes)]).strip()


class CHeader(Directive):
    """`c-header:: PATH`, with a path relative to the page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the nodes of all declarations."""
        environment = self.state.document.settings.env
        path = Path(environment.doc2path(environment.docname)).parent / self.arguments[0]
        environment.note_dependency(str(path))
        lines = []
        for entry in entries(path.read_text()):
            # A name such as `*used` isn't the begin of an emphasis.
            comment = entry.comment.replace("*", r"\*").replace("|", r"\|")
            if entry.kind == "section":
                lines += [f".. rubric:: {entry.text}", ""]
            elif entry.kind == "type":
                lines += [comment, "", ".. code-block:: c", "", *(f"   {line}" for line in entry.text.splitlines()), ""]
            else:
                lines += [f".. c:{entry.kind}:: {entry.text}", "", f"   {comment}", ""]
        node = nodes.section()
        node.document = self.state.document
        self.state.nested_parse(StringList(lines, source=str(path)), self.content_offset, node)
        return node.children


def setup(app: Any) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("c-header", CHeader)
    return {"parallel_read_safe": True}
