"""Why a program recorded nothing: what it is, which StarPU it loads, and what it said."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from starpullm.errors import InvalidArgumentError
from starpullm.probe.program import ProgramEnding, find_program

_LOADER_SECONDS = 20.0
_SAID = 300
"""Characters of what a program said, the last ones."""
_ELF = b"\x7fELF"
_LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "mpiexec.hydra", "srun")


def explain_missing_log(command: Sequence[str], ending: ProgramEnding, folder: Path) -> str:
    """Return a sentence about a program that ended and left no log in the folder."""
    name = program_of(command)
    with suppress(OSError):
        found, expected = (folder / "refused").read_text("ascii").split()
        return f"{name}: found StarPU {found}, expected {expected}, for which this package's probe was compiled"
    kind = _kind(Path(find_program(name)))
    said = _what_it_said(ending.stderr)
    if kind == "static":
        return f"{name}: is statically linked, so it can't load the probe, expected a program that uses libstarpu"
    libraries = list(_libraries(name)) if kind == "dynamic" else []
    other = [library for library in libraries if re.match(r"libstarpu-\d", library) and "starpu-1.4." not in library]
    if other:
        return f"{name}: found {other[0]}, expected libstarpu-1.4, for which this package's probe was compiled"
    if "can not be loaded" in ending.stderr:
        return f"{name}: its StarPU could not load the probe; it said: {_line_with(ending.stderr, 'can not be loaded')}"
    if any(library.startswith("libstarpu-1.4") for library in libraries):
        return (
            f"{name}: {ending} and didn't start StarPU, although it is linked with it, expected a program that calls "
            f"starpu_init{said}"
        )
    return f"{name}: {ending} and didn't start StarPU, expected a StarPU program{said}"


def is_launched(command: Sequence[str]) -> bool:
    """Return whether the command starts with a launcher of ranks."""
    return Path(command[0]).name in _LAUNCHERS


def program_of(command: Sequence[str]) -> str:
    """Return the program itself: behind a launcher of ranks, its first argument that is a program, or a path."""
    if is_launched(command):
        for argument in command[1:]:
            is_path = argument.startswith(("/", "./", "../")) and not Path(argument).exists()
            if not argument.startswith("-") and (is_path or shutil.which(argument) is not None):
                return argument
    return command[0]


def _kind(path: Path) -> str:
    """Return whether a file is a dynamically or statically linked program, or a script."""
    try:
        content = path.read_bytes()
    except OSError:
        return "unknown"
    if not content.startswith(_ELF):
        return "script"
    return "dynamic" if b"\0/lib" in content[:4096] or b"ld-linux" in content[:8192] else "static"


def starpu_of(command: Sequence[str]) -> str | None:
    """Return the path of the StarPU that the dynamic linker would load for a program; None if it isn't told."""
    with suppress(InvalidArgumentError):
        libraries = _libraries(program_of(command))
        return next((path for name, path in libraries.items() if name.startswith("libstarpu-1.4.")), None)
    return None


def _libraries(name: str) -> dict[str, str]:
    """Return the paths of the shared libraries that the dynamic linker would load, by their names."""
    with suppress(OSError, subprocess.TimeoutExpired):
        run = subprocess.run(
            ["ldd", find_program(name)], capture_output=True, text=True, timeout=_LOADER_SECONDS, check=False
        )
        lines = [line.split() for line in run.stdout.splitlines() if line.strip()]
        return {words[0]: words[2] if "=>" in words else words[0] for words in lines}
    return {}


def _what_it_said(text: str) -> str:
    """Return the end of what a program said, without lines that only separate others."""
    lines = [line.strip() for line in text.splitlines()]
    words = [line for line in lines if any(letter.isalnum() for letter in line)]
    return f"; it said: {' '.join(words)[-_SAID:]}" if words else ""


def _line_with(text: str, part: str) -> str:
    return next(line.strip() for line in text.splitlines() if part in line)
