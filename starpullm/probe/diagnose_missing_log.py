"""Where the program is in a command, which StarPU it loads, and why it recorded nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from starpullm.binding import prototypes
from starpullm.errors import InvalidArgumentError
from starpullm.probe.program import ProgramEnding, find_program

_LOADER_SECONDS = 20.0
_SAID = 300
"""Characters of what a program said, the last ones."""
_ELF = b"\x7fELF"
_LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "srun")


class Starpu(NamedTuple):
    """The StarPU of a process, as the probe that it loaded tells; the variables are those of StarPU and hwloc."""

    version: str
    library: str
    num_workers: int
    variables: Mapping[str, str]

    def surroundings(self, given: Mapping[str, str], said: str) -> Iterator[str]:
        """Yield StarPU's warnings, the variables that aren't as given, and StarPU's place if it is another one."""
        if self.num_workers != int(given["STARPU_NCPU"]):
            yield f"StarPU's workers: {self.num_workers}, where --workers asks for {given['STARPU_NCPU']}"
        yield from dict.fromkeys(f"StarPU: {warning}" for warning in re.findall(r"\[starpu\].*?(Warning: .*)", said))
        known = _of_starpu(given)
        changed = dict.fromkeys(sorted(known.keys() - self.variables.keys()), "(unset)")
        changed |= dict(sorted(_of_starpu(self.variables).items() - known.items()))
        if changed:
            yield f"changed by the program or a script: {', '.join(map('='.join, changed.items()))}"
        version, prefix = prototypes.starpu_of_build()
        if not Path(self.library).resolve().is_relative_to(Path(prefix).resolve()):
            yield f"StarPU {self.version}: {self.library}; the probe was compiled for {version} in {prefix}"


def _of_starpu(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of StarPU and hwloc, but for one of this project's, and what PoCL sets for StarPU."""
    others = (("HWLOC_PLUGINS_PATH", "/dev/null"), ("STARPU_PREFIX", variables.get("STARPU_PREFIX")))
    return {
        name: value
        for name, value in variables.items()
        if name.startswith(("STARPU_", "HWLOC_")) and (name, value) not in others
    }


def starpu_in(folder: Path) -> Starpu | None:
    """Return the StarPU with the fewest workers that loaded the probe in a run, if one has."""
    found = []
    for path in folder.glob("starpu-*"):
        if lines := path.read_text(errors="replace").splitlines():
            variables = dict(line.split("=", 1) for line in lines[3:] if "=" in line)
            found.append(Starpu(lines[0], lines[1], int(lines[2]), variables))
    return min(found, key=lambda starpu: starpu.num_workers, default=None)


def explain_missing_log(command: Sequence[str], ending: ProgramEnding, folder: Path, given: Mapping[str, str]) -> str:
    """Return a sentence about a program that ended and left no log in the folder."""
    name = program_of(command)
    version = " in ".join(prototypes.starpu_of_build())
    own = f"expected {version}, for which this package's probe was compiled, or one with its configuration"
    if (starpu := starpu_in(folder)) is not None:
        return f"{name}: found StarPU {starpu.version} ({starpu.library}), {own}"
    if _is_static(Path(find_program(name))):
        return f"{name}: is statically linked, so it can't load the probe, expected a program that uses libstarpu"
    library, of_minor = starpu_of(name), f"/libstarpu-{prototypes.starpu_of_build()[0].rpartition('.')[0]}."
    if (library and of_minor not in library) or "_probe.so' can not be loaded" in ending.stderr:
        return f"{name}: found {library or 'a StarPU'}, which can't load the probe, {own}"
    if (launcher := launcher_of(command)) and ending.status != 0:
        said = what_it_said(ending.stderr, slice(3 * _SAID))
        return f"{launcher}: {ending}, and no {name} had started StarPU{said}"
    said = what_it_said(ending.stderr)
    if library or (folder.parent / "models" / "bus").exists():
        if kept := [f"{key}={value}" for key, value in _of_starpu(os.environ).items() if key not in given]:
            said += f"; the environment has {', '.join(kept)}"
        if "scheduling policy 'probe' was not found" in ending.stderr:
            why = "it started StarPU with another scheduling policy, expected STARPU_SCHED_LIB as the probe sets it"
        else:
            why = (
                "it ended before it started StarPU, as a program may if STARPU_SCHED is set, or started it without the "
            )
            why += "probe, expected a call of starpu_init with STARPU_SCHED and STARPU_SCHED_LIB as the probe sets them"
        return f"{name}: {ending}; {why}{said}"
    return f"{name}: {ending} and didn't start StarPU, expected a StarPU program{said}"


def launcher_of(command: Sequence[str]) -> str:
    """Return the launcher of ranks before the program; nothing if there is none."""
    before = command[: index_of_program(command) or 1]
    return next((word for word in before if Path(word).name.startswith(_LAUNCHERS)), "")


def program_of(command: Sequence[str]) -> str:
    """Return the program itself, which may stand behind launchers."""
    return command[index_of_program(command)]


def index_of_program(command: Sequence[str]) -> int:
    """Return where the program is: the first word that is linked with StarPU, or else behind a launcher's options."""
    found = [place for place, word in enumerate(command) if shutil.which(word) is not None]
    linked = [place for place in found if starpu_of(command[place])]
    if linked or not Path(command[0]).name.startswith(_LAUNCHERS):
        return linked[0] if linked else 0
    paths = [place for place, word in enumerate(command) if word.startswith(("/", "./", "../"))]
    values = [place for place, word in enumerate(command, 1) if word.startswith("-") or "mca" in command[place - 2]]
    likely = [place for place in (*found, *paths) if place not in (0, *values)]
    return [*likely, *found[1:], 0][0]


def _is_static(path: Path) -> bool:
    with suppress(OSError):
        content = path.read_bytes()[:8192]
        return content.startswith(_ELF) and b"\0/lib" not in content and b"ld-linux" not in content
    return False


def starpu_of(name: str) -> str:
    """Return the path of the StarPU that the dynamic linker would load for a program; nothing if it isn't told."""
    with suppress(OSError, subprocess.TimeoutExpired, InvalidArgumentError):
        run = subprocess.run(
            ["ldd", find_program(name)], capture_output=True, text=True, timeout=_LOADER_SECONDS, check=False
        )
        found = re.search(r"^\s*libstarpu-\d\S* => (/\S+)", run.stdout, re.MULTILINE)
        return "" if found is None else found[1]
    return ""


def what_it_said(text: str, part: slice = slice(-_SAID, None)) -> str:
    """Return the end of what a program said, or another part, without lines that only separate others."""
    lines = [line.strip() for line in text.splitlines()]
    words = [line for line in lines if any(map(str.isalnum, line)) and "[check_bus_config_file]" not in line]
    return f"; it said: {' '.join(words)[part]}" if words else ""
