"""The native stacks of another process, as far as this machine allows to read them."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

_FRAMES = 16  # of each thread, the innermost
# A thread that waits runs for a moment after a debugger or a signal; on a loaded machine that moment is long.
_RUNNING_SECONDS = 2.0


def native_stacks(pid: int, seconds: float, *, only_main: bool = False) -> str:
    """Return the stacks of a process's threads by eu-stack or gdb, or without them what each thread waits for."""
    for command in _debuggers(pid, only_main=only_main):
        with suppress(OSError, subprocess.TimeoutExpired):
            run = subprocess.run(
                # A debugger stops this process too if it is the one: then nothing here could end the debugger.
                ["timeout", "--signal=KILL", f"{seconds}", *command] if pid == os.getpid() else command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
                env={**os.environ, "DEBUGINFOD_URLS": ""},  # downloading symbols takes too long
            )
            lines = [line for line in run.stdout.splitlines() if line.startswith(("#", "Thread ", "TID "))]
            if any(line.startswith("#") for line in lines):
                return "\n".join(lines)
    return _kernel_view(pid, only_main=only_main)


def _debuggers(pid: int, *, only_main: bool) -> list[list[str]]:
    """Return the commands of the installed debuggers, the fastest first."""
    commands = [
        ["eu-stack", *only_main * ("-1",), "-n", str(_FRAMES), "-p", str(pid)],
        [
            *("gdb", "-nx", "-batch"),
            *("-iex", "set print frame-arguments presence", "-iex", "set filename-display basename"),
            *("-p", str(pid), "-ex", f"thread apply {1 if only_main else 'all'} backtrace {_FRAMES}"),
        ],
    ]
    return [command for command in commands if shutil.which(command[0])]


def _kernel_view(pid: int, *, only_main: bool) -> str:
    """Return a line for each thread: its name, its state, and the kernel function that it waits in."""
    lines = []
    deadline = time.monotonic() + _RUNNING_SECONDS
    for task in sorted(Path(f"/proc/{pid}/task").glob(str(pid) if only_main else "*"), key=lambda path: int(path.name)):
        with suppress(OSError):  # the thread may end meanwhile
            name, state = name_and_state(task)
            while state in "Rt" and time.monotonic() < deadline:
                time.sleep(0.01)
                name, state = name_and_state(task)
            lines.append(f"thread {task.name} {name}: state {state}, waits in {_waits_in(task)}")
    return "\n".join(lines)


def name_and_state(task: Path) -> tuple[str, str]:
    """Return the name of a thread and its state, R if it runs or is ready to; its folder is in `/proc`."""
    # The name is in parentheses and may contain any character; the state follows it.
    name, _, rest = (task / "stat").read_text(errors="replace").partition("(")[2].rpartition(")")
    return name, rest.split()[0]


def _waits_in(task: Path) -> str:
    with suppress(OSError):
        function = (task / "wchan").read_text().strip()
        if function not in ("", "0"):
            return function
    return "nothing known"
