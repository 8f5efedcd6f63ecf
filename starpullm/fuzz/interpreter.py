"""The interpreter of programs, compiled against the user's StarPU, as processes that run one program after another."""

from __future__ import annotations

import fcntl
import os
import re
import select
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from io import FileIO
from pathlib import Path
from typing import Self

from starpullm.binding import prototypes
from starpullm.errors import InvalidArgumentError, MissingDependencyError
from starpullm.fuzz.configuration import Configuration
from starpullm.processes.endings import signal_name
from starpullm.processes.job import JOB_VARIABLE, job_variable, launched, new_job_directories, processes_of
from starpullm.processes.mpirun import mpi_parameters, mpirun_here, outside_of_jobs
from starpullm.processes.stacks import name_and_state, native_stacks

START_SECONDS = 60.0  # for StarPU, which may measure the machine
_STACK_SECONDS = 15.0
_MPIRUN_SECONDS = 60.0  # to end after a rank
_TOOL_SECONDS = 120.0  # for pkg-config and the compiler
_PIPE_BYTES = 1 << 20


_MAIN = """int main(void)
{{
    if (start() != 0)
        return 77;
    begin({unit});
{calls}
    end();
    stop();
    puts(failure[0] ? failure : "ok");
    return failure[0] != 0;
}}
"""


def source(name: str) -> str:
    """Return the text of a C file that comes with this package."""
    return files("starpullm").joinpath("fuzz", name).read_text()


def program_source(ranks: int) -> str:
    """Return the interpreter for so many ranks."""
    text = source("interpreter.c")
    if ranks == 1:
        return text
    before, _, rest = text.partition("/* ALONE")
    return before + source("ranks.c") + rest[rest.index("/* INTERPRETER") :]


def c_program(text: str, comment: str, ranks: int = 1) -> str:
    """Return a program as C; the comment says how it fails."""
    head, *lines = (line.split() for line in text.splitlines()[:-1])
    calls = []
    for line in lines:
        # Not with "if": arguments that callbacks use must live as long as main().
        before, after = (f"rank == {line.pop(0)} ? ", " : (void)0") if line[0].isdecimal() else ("", "")
        calls.append(f"    {before}op_{line[0]}((uint64_t[]){{{', '.join(line[1:]) or '0'}}}){after};")
    main = _MAIN.format(unit=head[2], calls="\n".join(calls))
    return f"/* {comment} */\n{program_source(ranks).partition('/* INTERPRETER')[0].partition('*/')[2]}{main}"


def starpu_flags(ranks: int = 1) -> list[str]:
    """Return what a compiler needs for the StarPU of STARPU_PREFIX, of pkg-config, or that starpullm was built with."""
    if shutil.which("pkg-config") is None:
        raise MissingDependencyError("pkg-config: there is no such command, and it is needed to find StarPU")
    packages = [f"starpu{'mpi' if ranks > 1 else ''}-{version}" for version in ("1.4", "1.5")]
    for prefix in (os.environ.get("STARPU_PREFIX"), None, prototypes.starpu_of_build()[1]):
        for package in packages:
            flags = _pkg_config(prefix, "--cflags", "--libs", package)
            folder = _pkg_config(prefix, "--variable=libdir", package)
            if flags and folder:
                return [*flags, f"-Wl,-rpath,{folder[0]}"]
    raise MissingDependencyError(
        f"StarPU: pkg-config finds neither {' nor '.join(packages)}; set STARPU_PREFIX or PKG_CONFIG_PATH"
    )


def _pkg_config(prefix: str | None, *arguments: str) -> list[str]:
    """Return the words of its answer, none if it doesn't know the package."""
    paths = [f"{prefix}/{lib}/pkgconfig" for lib in ("lib", "lib64")] if prefix else []
    paths += filter(None, [os.environ.get("PKG_CONFIG_PATH")])
    environment = {**os.environ, "PKG_CONFIG_PATH": ":".join(paths)}
    answer = subprocess.run(
        ["pkg-config", *arguments], env=environment, capture_output=True, text=True, check=False, timeout=_TOOL_SECONDS
    )
    return shlex.split(answer.stdout) if answer.returncode == 0 else []


def compile_c(text: str, target: Path, flags: list[str], ranks: int = 1) -> None:
    """Compile a C program or library, with ``mpicc`` if it is for several ranks."""
    path = target.with_suffix(".c")
    path.write_text(text)
    compiler = os.environ.get("CC", "cc") if ranks == 1 else os.environ.get("MPICC", "mpicc")
    command = [*shlex.split(compiler), "-std=gnu11", "-O1", "-g", str(path), "-o", str(target)]
    try:
        run = subprocess.run([*command, *flags], capture_output=True, text=True, check=False, timeout=_TOOL_SECONDS)
    except OSError as error:
        raise MissingDependencyError(f"{command[0]}: {error.strerror}, expected a C compiler") from error
    if run.returncode != 0:
        first = next((line for line in run.stderr.splitlines() if "error" in line), run.stderr[:200])
        raise MissingDependencyError(f"{path.name}: can't be compiled against this StarPU: {first}")


def can_compile() -> bool:
    """Return whether there are a C compiler and StarPU's headers."""
    try:
        with tempfile.TemporaryDirectory() as name:
            compile_c("#include <starpu.h>\n", Path(name, "headers"), ["-fsyntax-only", *starpu_flags()])
    except MissingDependencyError:
        return False
    return True


@contextmanager
def built_interpreter(ranks: int = 1) -> Iterator[Path]:
    """Provide a directory with the interpreter, compiled against the StarPU that is found."""
    with tempfile.TemporaryDirectory(prefix="starpullm-fuzz-") as name:
        directory = Path(name)
        (directory / "disk").mkdir()
        compile_c(program_source(ranks), directory / "interpreter", ["-rdynamic", *starpu_flags(ranks)], ranks)
        compile_c(source("perturb.c"), directory / "perturb.so", ["-D_GNU_SOURCE", "-shared", "-fPIC", "-ldl"])
        yield directory


@dataclass(frozen=True)
class Failure:
    """What was wrong with a program: a sentence, and the stacks of a process that hung or the last output of one."""

    sentence: str
    details: str = ""
    is_hang: bool = False
    """Whether the program had not ended; it takes a whole time limit to see that again."""


class _Delays:
    """How long threads were ready to run while others had the processors; nothing where Linux doesn't count it."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._before: dict[Path, int] = {}
        self._ran: dict[Path, tuple[int, float]] = {}
        """For how long each has run, and when that was last seen to grow: Linux counts a delay when it is over."""
        self.longest()

    def longest(self) -> float:
        """Return the seconds of the thread that was delayed most, since this object was made."""
        now, longest = time.monotonic(), 0.0
        for task in (path for pid in self._pids for path in Path(f"/proc/{pid}/task").glob("*")):
            with suppress(OSError, ValueError, IndexError):  # the thread has ended
                ran, delay, _ = map(int, (task / "schedstat").read_text().split())
                ready = name_and_state(task)[1] == "R"
                if not ready or self._ran.get(task, (-1, 0.0))[0] != ran:
                    self._ran[task] = ran, now
                before = self._before.setdefault(task, delay)
                longest = max(longest, (delay - before) / 1e9 + now - self._ran[task][1])
        return longest


class Interpreter:
    """A context manager; the process is started when it is needed, and again after a failure."""

    def __init__(self, directory: Path, configuration: Configuration) -> None:
        self.configuration = configuration
        self._directory = directory
        self._open, self._running = ExitStack(), ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._job = self._open.enter_context(new_job_directories())
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._open.close()

    def _stop(self) -> None:
        self._process = None
        self._running.close()

    def _pipe(self, name: str) -> FileIO:
        """Make a named pipe, which this process holds open, so that a whole program has room if nobody reads it."""
        path = self._job.directory / name
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        pipe = self._running.enter_context(FileIO(os.open(path, os.O_RDWR), "r+"))
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        return pipe

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is not None:
            return self._process
        wanted = self.configuration
        self._programs = [self._pipe(f"programs-{rank}") for rank in range(wanted.ranks)]
        self._replies = [self._pipe(f"replies-{rank}") for rank in range(wanted.ranks)]
        variables = wanted.environment(self._directory) | {JOB_VARIABLE: job_variable(os.environ, self._job.name)}
        environment, command = {**os.environ, **variables}, [str(self._directory / "interpreter")]
        if wanted.ranks > 1:
            here = outside_of_jobs(os.environ, on_this_machine=True)
            environment = {**here, **mpi_parameters(self._job.directory, self._job.memory), **variables}
            command = [*mpirun_here(wanted.ranks, [*variables], environment.get("PATH")), *command]
        stderr = self._running.enter_context((self._directory / "stderr").open("wb"))
        started = launched(command, self._job, stderr=stderr, cwd=self._job.directory, env=environment)
        self._process = process = self._running.enter_context(started)
        self._pids = [process.pid]
        expected = f"{wanted.workers} workers, {wanted.nodes + wanted.disk} memory nodes, scheduler {wanted.scheduler}"
        found = self._reply(process, START_SECONDS, expected)
        if found != expected:
            output = self._last_output()
            self._stop()
            raise InvalidArgumentError(f"configuration {wanted}: found {found or output}, expected {expected}")
        # Each rank has replied, so all are there; none is mpirun.
        self._pids = [pid for pid in processes_of(self._job.name) if wanted.ranks == 1 or pid != process.pid]
        return process

    def _last_output(self) -> str:
        text = (self._directory / "stderr").read_text(errors="replace")
        return "\n".join(text.strip().splitlines()[-12:])

    def _reply(self, process: subprocess.Popen[bytes], seconds: float, expected: str = "ok") -> str:
        """Return the next line, another than is expected if a rank has one, or "" if one of them has none in time.

        Time in which a thread is ready and another has its processor doesn't count: on a loaded machine it is most.
        """
        deadline, delays = time.monotonic() + seconds, _Delays(self._pids)
        waiting, replies = set(self._replies), list[str]()
        while waiting and all(reply == expected for reply in replies):
            ended = process.poll() is not None
            for pipe in select.select(waiting, [], [], 0 if ended else 0.05)[0]:
                replies.append(pipe.readline().decode(errors="replace").rstrip("\n"))
                waiting.remove(pipe)
            late = time.monotonic() - deadline
            if ended or (late > 0 and late > delays.longest()):
                break
        others = [reply for reply in replies if reply != expected]
        return others[0] if others else "" if waiting else expected

    def _ends(self, process: subprocess.Popen[bytes]) -> bool:
        """Return whether the process has ended; mpirun gives the other ranks some seconds after one has crashed."""
        if len(processes_of(self._job.name)) <= len(self._replies) > 1:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_MPIRUN_SECONDS)
        return process.poll() is not None

    def run(self, text: str, time_limit: float, *, stacks: bool = True) -> Failure | None:
        """Run a program; after a failure the next one has a new process. Stacks take some seconds."""
        process = self._start()
        for pipe in self._programs:
            pipe.write(text.encode())
        reply = self._reply(process, time_limit)
        if reply == "ok":
            return None
        if reply:
            failure = Failure(reply)
        elif not self._ends(process):
            details = "\n".join(native_stacks(pid, _STACK_SECONDS) for pid in self._pids * stacks)
            failure = Failure(f"had not ended after {time_limit:.0f} s", details, is_hang=True)
        else:
            status, output = process.returncode, self._last_output()
            status = status if status <= 128 else 128 - status  # mpirun adds a rank's signal to 128
            ending = f"was ended by {signal_name(-status)}" if status < 0 else f"ended with exit status {status}"
            rank = re.search(r"process (rank \d+) with PID", output)
            ending = f"{rank[1]} {ending}" if rank else ending
            asserted = re.search(r"^.*([Aa]ssert|\[abort\]).*$", output, re.MULTILINE)
            failure = Failure(f"{ending}: {asserted[0].strip()}" if asserted else ending, output)
        self._stop()
        return failure
