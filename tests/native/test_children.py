"""A fork of the process that has imported the package does what a new process does.

Tests what the other files of this directory run their children with.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from .children import TWO_CORES, Finished, finish, run_command, run_python, started
from .forks import PYTHON

# What a program could tell them apart by; StarPU is started in neither.
SEEN = """
import ctypes, json, os, signal, sys, threading, warnings
from pathlib import Path
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
print(json.dumps({
    "arguments": sys.argv[1:], "name": __name__, "directory": os.getcwd(),
    "environment": {**os.environ, "PYTEST_CURRENT_TEST": "", "STARPULLM_JOB": ""},
    "in C": getenv(b"HWLOC_SYNTHETIC").decode(),
    "flags": str(sys.flags), "errors": ("error", None, Warning, None, 0) in warnings.filters, "path": sys.path,
    "libraries": "starpu" in Path("/proc/self/maps").read_text(), "threads": threading.active_count(),
    "leader": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)],
    "input": os.read(0, 1).decode(), "terminal": [os.isatty(number) for number in range(3)],
}, sort_keys=True))
sys.stderr.write("note")
sys.exit(3)
"""


def in_new_process(command: list[str], cwd: Path) -> Finished:
    with started(command, environment=TWO_CORES, cwd=cwd) as process:
        return finish(process)


def test_it_sees_what_a_new_process_sees(tmp_path: Path) -> None:
    command = [*PYTHON, "-c", SEEN, "one", "two words"]
    forked = run_command(command, environment=TWO_CORES, cwd=tmp_path).check(3)
    assert forked == in_new_process(command, tmp_path)
    assert '"arguments": ["one", "two words"]' in forked.stdout
    assert forked.stderr == "note"


def test_a_child_is_killed_after_its_time() -> None:
    code = "import subprocess; subprocess.Popen(['sleep', '1000']); print('begins', flush=True); input()"
    start = time.monotonic()
    with pytest.raises(AssertionError, match=r"(?s)killed, because it had not ended after 1 s.*begins"):
        run_python(code.replace("input()", "import time; time.sleep(1000)"), timeout=1)
    assert time.monotonic() - start < 60
    assert run_python("print('next')").stdout == "next\n"


def test_an_interrupted_wait_leaves_no_answer_to_the_next_child() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 1)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_python("import time; print('first'); time.sleep(1000)")
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert run_python("print('second')").stdout == "second\n"
