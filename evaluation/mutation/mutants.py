"""Builds the native library with a patch: compiles what the patch changes, and links that with unchanged objects.

Run by hand it builds one library: ``python -m evaluation.mutation.mutants PATCH -o libstarpullm.so``.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Protocol

from .patches import CHECKOUT, PatchError, read_patch

BUILD = CHECKOUT / ".cache" / "build" / "release"
"""Where the unchanged library is built, as for the C tests; later runs build only what has changed since. Tox has
installed the package from there, with the same options, so that nothing is compiled twice."""

_LIBRARY = "libstarpullm.so"
_OTHERS = ("libstarpullm_allocations.so", "libstarpullm_plain.so", "probe/libstarpullm_probe.so")
_BUILD_SECONDS = 300.0


class Change(Protocol):
    """A change of the sources: a patch, or a line."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def changed_files(self) -> list[str]:
        """The files that it changes, relative to the root of the sources."""

    def apply(self, directory: Path) -> None:
        """Change a copy of the sources."""


class Builder:
    """The unchanged library, and libraries with patches that share its objects.

    Parameters
    ----------
    directory
        For copies of the sources and for what is built of them; outside the checkout.

    Raises
    ------
    PatchError
        If the unchanged library cannot be built.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # Other options than those of tox.ini would compile all files again, and tox would then build the C tests, too.
        options = ("-DSTARPULLM_WARNINGS_AS_ERRORS=ON", "-DSTARPULLM_TESTS=OFF")
        _run(["cmake", "--preset", "release", *options], CHECKOUT / "native")
        _run(["ninja", _LIBRARY], BUILD)
        # From here on the sources in the checkout may change.
        self.sources = directory / "sources"
        """A copy of the sources that it is made from."""
        _copy_sources(CHECKOUT, self.sources)
        self.library = directory / _LIBRARY
        """Without any patch."""
        shutil.copy2(BUILD / _LIBRARY, self.library)

    def install_others(self, package: Path) -> None:
        """Put the libraries that checks use beside the library, and where a copy of the package finds them."""
        _run(["ninja", *_OTHERS], BUILD)
        (package / "lib").mkdir()
        for name in _OTHERS:
            shutil.copy2(BUILD / name, package / "lib")
            shutil.copy2(BUILD / name, self.library.parent)

    def build(self, change: Change, *, refuse_warnings: bool = False) -> Path:
        """Return the library with a change.

        Warnings are ignored unless `refuse_warnings`, because a defect may leave a variable unused.

        Raises
        ------
        PatchError
            If the change does not apply, is of a file that no object is made from, does not compile, or changes no
            byte of the library.
        """
        directory = Path(tempfile.mkdtemp(prefix="mutant-", dir=self._directory))
        self.copy_sources(directory)
        change.apply(directory)
        objects = self._affected(change)
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(lambda name: self.compile(name, directory, refuse_warnings=refuse_warnings), objects))
        library = self.link(objects, directory)
        if library.read_bytes() == self.library.read_bytes():
            raise PatchError(f"{change.name}: the library with it is the same, byte for byte, as without it")
        return library

    def _affected(self, change: Change) -> list[str]:
        """Return the objects that are made from a file which is changed."""
        affected: set[str] = set()
        for name in change.changed_files:
            users = self.objects_of(name)
            if not users:
                raise PatchError(f"{change.name}: no object is made from {name}, expected a C file or a header")
            affected.update(users)
        return sorted(affected)

    def objects_of(self, name: str) -> list[str]:
        """Return the objects of the library that are made from a file, given relative to the checkout."""
        path = os.path.normpath(CHECKOUT / name)
        return sorted(output for output in self.objects if path in self._dependencies.get(output, ()))

    @cached_property
    def objects(self) -> list[str]:
        """The objects that the library is linked from."""
        return [word for word in self._link_command if word.endswith(".o")]

    @cached_property
    def _dependencies(self) -> dict[str, set[str]]:
        """Files that each object is made from, as the compiler has listed them."""
        found = {}
        for block in _run(["ninja", "-t", "deps"], BUILD).strip().split("\n\n"):
            first, *paths = block.splitlines()
            found[first.partition(": #deps")[0]] = {os.path.normpath(BUILD / path.strip()) for path in paths}
        return found

    @cached_property
    def _compile_commands(self) -> dict[str, list[str]]:
        entries = json.loads((BUILD / "compile_commands.json").read_text("utf-8"))
        commands = [shlex.split(entry["command"]) for entry in entries]
        return {command[command.index("-o") + 1]: command for command in commands}

    @cached_property
    def _link_command(self) -> list[str]:
        """The last of the commands that ninja would run: ``: && cc ... && :``."""
        return shlex.split(_run(["ninja", "-t", "commands", _LIBRARY], BUILD).splitlines()[-1])[2:-2]

    def copy_sources(self, directory: Path) -> None:
        """Copy the sources without a patch."""
        _copy_sources(self.sources, directory)

    def compile(self, name: str, directory: Path, *, refuse_warnings: bool = False) -> Path:
        """Return an object, made from the copy of the sources in a directory; it is written there too.

        Raises
        ------
        PatchError
            If it does not compile.
        """
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [
            str(target) if word == name else word.replace(f"{CHECKOUT}/native/", f"{directory}/native/")
            for word in self._compile_commands[name]
            if refuse_warnings or word != "-Werror"
        ]
        # Where the copy lies must not be a difference.
        _run([*command, f"-ffile-prefix-map={directory}={CHECKOUT}"], BUILD)
        return target

    def link(self, objects: Sequence[str], directory: Path) -> Path:
        """Return the library of a directory's objects and, for the rest, of the unchanged ones."""
        replaced = {name: str(directory / name) for name in (*objects, _LIBRARY)}
        _run([replaced.get(word, word) for word in self._link_command], BUILD)
        return directory / _LIBRARY


def _copy_sources(source: Path, target: Path) -> None:
    for part in ("include", "src"):
        shutil.copytree(source / "native" / part, target / "native" / part)


def _run(command: Sequence[str], directory: Path) -> str:
    run = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False)
    if run.returncode != 0:
        raise PatchError(f"{shlex.join(command)}\n{run.stdout}{run.stderr}")
    return run.stdout


def _main() -> None:
    parser = argparse.ArgumentParser(description="Build the native library with a patch.")
    parser.add_argument("patch", type=Path, help="a patch with a header, as in evaluation/mutation/defects")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the library to write")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="starpullm-mutant-") as directory:
        shutil.copy2(Builder(Path(directory)).build(read_patch(options.patch)), options.output)


if __name__ == "__main__":
    _main()
