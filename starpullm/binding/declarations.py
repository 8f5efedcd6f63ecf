"""The declarations in the C headers, from which ctypes' structs and prototypes are made; nothing repeats them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Declaration(NamedTuple):
    """A member of a struct, a parameter of a function, or a function with its result."""

    constant: bool
    type: str
    pointers: int
    """How many * stand before the name."""
    name: str
    elements: int
    """Of an array; 0: it isn't one."""

    @property
    def output(self) -> bool:
        """Whether C may write to what a parameter points to."""
        return self.pointers > 0 and not self.constant


_DECLARATION = re.compile(r"(const )?(?:struct |enum )?(?:starpullm_)?(\w+) (\**)(?:starpullm_)?(\w+)(?:\[(\d+)\])?")
_STRUCT = re.compile(r"struct starpullm_(\w+) \{ (.*?); \};")
_FUNCTION = re.compile(r"STARPULLM_API ([^()]*)\((.*?)\);")


def structs() -> dict[str, list[Declaration]]:
    """Return each struct's members, by its name without the prefix ``starpullm_``."""
    return {
        name: [member for group in members.split("; ") for member in _members(group)]
        for name, members in _STRUCT.findall(_text())
    }


@cache
def functions() -> dict[str, tuple[Declaration, list[Declaration]]]:
    """Return each function's result and parameters, by its name without the prefix ``starpullm_``."""
    found = {}
    for declaration, parameters in _FUNCTION.findall(_text()):
        result = _declaration(declaration)
        found[result.name] = result, [] if parameters == "void" else _parameters(parameters)
    return found


@cache
def kernel_parameters(declaration: str) -> list[Declaration]:
    """Return the parameters of a kernel, of which the library gives the declaration, in parentheses."""
    return _parameters(_words(declaration).strip("() "))


def abi_version() -> int:
    """Return the version that a library of these declarations has."""
    return int(source().partition("#define STARPULLM_ABI_VERSION ")[2].partition("\n")[0])


@cache
def source(name: str = "starpullm.h", folder: str = "include") -> str:
    """Return the text of an installed header, which is in this folder of the sources."""
    package = Path(__file__).parents[1]
    installed = package / "include" / name
    # In a source tree, where nothing is installed, the modules that need no library still work.
    return (installed if installed.is_file() else package.parent / "native" / folder / name).read_text("utf-8")


@cache
def _text() -> str:
    """Return the headers without comments and preprocessor lines, and without blanks before punctuation or after *."""
    text = source() + source("starpullm_checks.h")
    return _words(re.sub(r"/\*.*?\*/|^#.*?$", " ", text, flags=re.DOTALL | re.MULTILINE))


def _words(text: str) -> str:
    return re.sub(r" (?=[,;)])", "", re.sub(r"\* ?(const )?", "*", " ".join(text.split())))


def _parameters(text: str) -> list[Declaration]:
    return [_declaration(parameter) for parameter in text.split(", ")]


def _members(group: str) -> list[Declaration]:
    """Return the members of ``int32_t rank, num_ranks``."""
    first, *others = group.split(", ")
    shared = first[: first.rindex(" ") + 1]
    return [_declaration(member) for member in (first, *(shared + other for other in others))]


def _declaration(text: str) -> Declaration:
    match = _DECLARATION.fullmatch(text)
    assert match, text
    constant, type_name, pointers, name, elements = match.groups()
    return Declaration(bool(constant), type_name, len(pointers), name, int(elements or 0))
