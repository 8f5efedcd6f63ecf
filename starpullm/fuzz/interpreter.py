"""The interpreter of programs, compiled against the StarPU of the user, as a process that runs one after another."""

from __future__ import annotations

import fcntl
import os
import re
import select
import shlex
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Self

from starpullm.binding import prototypes
from starpullm.errors import InvalidArgumentError, MissingDependencyError
from starpullm.fuzz.configuration import Configuration
from starpullm.processes.endings import signal_name
from starpullm.processes.stacks import native_stacks

START_SECONDS = 60.0
"""For StarPU to start: it may measure the machine."""
_STACK_SECONDS = 15.0
_PIPE_BYTES = 1 << 20
_PACKAGES = ("starpu-1.4", "starpu-1.5")
_LIBDIR = "--variable=libdir"


def source(name: str) -> str:
    """Return the text of a C file that comes with this package."""
    return files("starpullm").joinpath("fuzz", name).read_text()


def starpu_flags() -> list[str]:
    """Return what a compiler needs for the StarPU of STARPU_PREFIX, of pkg-config, or that starpullm was built with."""
    if shutil.which("pkg-config") is None:
        raise MissingDependencyError("pkg-config: there is no such command, and it is needed to find StarPU")
    for prefix in (os.environ.get("STARPU_PREFIX"), None, prototypes.starpu_of_build()[1]):
        for package in _PACKAGES:
            flags, libraries = (
                _pkg_config(prefix, *options, package) for options in (["--cflags", "--libs"], [_LIBDIR])
            )
            if flags is not None and libraries is not None:
                return [*shlex.split(flags), f"-Wl,-rpath,{libraries.strip()}"]
    raise MissingDependencyError(
        f"StarPU: pkg-config finds neither {' nor '.join(_PACKAGES)}; set STARPU_PREFIX or PKG_CONFIG_PATH"
    )


def _pkg_config(prefix: str | None, *arguments: str) -> str | None:
    environment = dict(os.environ)
    if prefix:
        paths = [str(Path(prefix, lib, "pkgconfig")) for lib in ("lib", "lib64")]
        environment["PKG_CONFIG_PATH"] = ":".join([*paths, *filter(None, [environment.get("PKG_CONFIG_PATH")])])
    command = ["pkg-config", *arguments]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return answer.stdout if answer.returncode == 0 else None


def compile_c(text: str, target: Path, flags: list[str]) -> None:
    """Compile a C program or library."""
    path = target.with_suffix(".c")
    path.write_text(text)
    command = [*shlex.split(os.environ.get("CC", "cc")), "-std=gnu11", "-O1", "-g", str(path), "-o", str(target)]
    try:
        run = subprocess.run([*command, *flags], capture_output=True, text=True, check=False)
    except OSError as error:
        raise MissingDependencyError(f"{command[0]}: {error.strerror}, expected a C compiler") from error
    if run.returncode != 0:
        first = next((line for line in run.stderr.splitlines() if "error" in line), run.stderr[:200])
        raise MissingDependencyError(f"{path.name}: can't be compiled against this StarPU: {first}")


def build_interpreter(directory: Path) -> None:
    """Compile the interpreter and the library that perturbs threads into a directory."""
    (directory / "disk").mkdir(exist_ok=True)
    compile_c(source("interpreter.c"), directory / "interpreter", starpu_flags())
    compile_c(source("perturb.c"), directory / "perturb.so", ["-D_GNU_SOURCE", "-shared", "-fPIC", "-ldl"])


@dataclass(frozen=True)
class Failure:
    """What was wrong with a program: a sentence, and the stacks of a process that hung or the last output of one."""

    sentence: str
    details: str = ""
    is_hang: bool = False
    """Whether the program had not ended; it takes a whole time limit to see that again."""


class Interpreter:
    """A context manager; the process is started when it is needed, and again after a failure."""

    def __init__(self, directory: Path, configuration: Configuration) -> None:
        self._directory = directory
        self.configuration = configuration
        self._environment = {**os.environ, **configuration.environment(directory)}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            with suppress(BrokenPipeError):
                self._process.communicate()
            self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is not None:
            return self._process
        with (self._directory / "stderr").open("wb") as stderr:
            self._process = subprocess.Popen(
                [self._directory / "interpreter"],
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        assert self._process.stdin is not None
        # A whole program has room: nobody reads it if an operation hangs.
        fcntl.fcntl(self._process.stdin, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        try:
            self._check_ready(self._line(START_SECONDS) or "nothing")
        except InvalidArgumentError:
            self._kill()
            raise
        return self._process

    def _check_ready(self, line: str) -> None:
        """Refuse a configuration that this StarPU doesn't have, by what it says that it has."""
        wanted = self.configuration
        match = re.fullmatch(r"ready \d+ (\d+) (\d+) (.*)", line)
        if match is None:
            raise InvalidArgumentError(f"configuration {wanted}: StarPU doesn't start: {line}; {self._last_output()}")
        found = {"workers": match[1], "memory nodes": match[2], "scheduler": match[3]}
        expected = {
            "workers": str(wanted.workers),
            "memory nodes": str(wanted.nodes + wanted.disk),
            "scheduler": wanted.scheduler,
        }
        for name, value in expected.items():
            if found[name] != value:
                raise InvalidArgumentError(f"configuration {wanted}: {name}: found {found[name]}, expected {value}")

    def _last_output(self) -> str:
        text = (self._directory / "stderr").read_text(errors="replace")
        return "\n".join(text.strip().splitlines()[-12:])

    def _line(self, seconds: float) -> str | None:
        """Return the next line, "" at the end of the process, None if there is none within the time limit."""
        assert self._process is not None
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            return None
        return self._process.stdout.readline().decode(errors="replace").rstrip("\n")

    def run(self, text: str, time_limit: float, *, stacks: bool = True) -> Failure | None:
        """Run a program; after a failure the next one has a new process. Stacks take some seconds."""
        process = self._start()
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(text.encode())
            process.stdin.flush()
        line = self._line(time_limit)
        if line == "ok":
            return None
        if line is None:
            details = native_stacks(process.pid, _STACK_SECONDS) if stacks else ""
            failure = Failure(f"had not ended after {time_limit:.0f} s", details, is_hang=True)
        elif line:
            failure = Failure(line)
        else:
            status = process.wait()
            ending = f"was ended by {signal_name(-status)}" if status < 0 else f"ended with exit status {status}"
            output = self._last_output()
            asserted = re.search(r"^.*([Aa]ssert|\[abort\]).*$", output, re.MULTILINE)
            failure = Failure(f"{ending}: {asserted[0].strip()}" if asserted else ending, output)
        self._kill()
        return failure
