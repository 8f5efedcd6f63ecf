"""Runs Python commands as forks of a child that has imported what they import, which takes longer than most work.

The child opens no native library, so each fork opens its own and starts its own StarPU. As a program this file calls
one function: ``python forks.py CALL``.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from starpullm.processes import Comm, progress
from starpullm.processes.job import JOB_VARIABLE
from starpullm.processes.service import find_function

# With faulthandler, a crash prints where it was.
PYTHON = (sys.executable, "-W", "error", "-X", "faulthandler")
"""How the commands begin."""

LIKE_PYTHON = {"PYTHONWARNINGS": "error", "PYTHONFAULTHANDLER": "1"}
"""The environment of a child whose forks do what such commands do."""

_IMPORTED = ("psutil", "pytest", "starpullm.commands", "starpullm.checks.training")

# What may differ from the environment of the child: nothing reads these while a module is imported.
_READ_LATE = (
    "HWLOC_",
    "OMP_",
    "STARPU_",
    "PYTEST_CURRENT_TEST",
    "STARPULLM_L2_CACHE",
    "STARPULLM_LIB",
    "STARPULLM_SIMD",
)


def can_fork(command: Sequence[str], environment: Mapping[str, str], childs: Mapping[str, str]) -> bool:
    """Return whether a fork does what a new process would: Python with these options, and the child's environment."""
    return tuple(command[: len(PYTHON)]) == PYTHON and _lasting(environment) == _lasting(childs)


def _lasting(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(_READ_LATE)}


# ---- In the child ----


@contextmanager
def serve_forks(comm: Comm | None) -> Iterator[tuple[None, Callable[[Mapping[str, Any]], int]]]:
    """Answer commands with their exit status, negative for a signal."""
    del comm
    for name in _IMPORTED:
        importlib.import_module(name)
    yield None, _run_in_fork


def _run_in_fork(request: Mapping[str, Any]) -> int:
    with warnings.catch_warnings():
        # NumPy's threads wait for work, and are started anew in a fork that needs them.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid > 0:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    _become(**request)
    try:
        _run(request["arguments"])
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    sys.exit()  # leaves everything that the child is in, as a program that ends does


def _become(*, arguments: object, environment: Mapping[str, str], cwd: str, outputs: Sequence[str]) -> None:
    """Take over what a new process is given; by the name of the child's job what it starts can be killed."""
    del arguments
    os.setsid()
    for number, path in enumerate(outputs, start=1):
        file = os.open(path, os.O_WRONLY)
        os.dup2(file, number)
        os.close(file)
    job = os.environ[JOB_VARIABLE]
    os.environ.clear()
    os.environ.update(environment, **{JOB_VARIABLE: job})
    os.chdir(cwd)
    progress.OwnReport.phase = None
    progress._record_file.cache_clear()


def _run(arguments: Sequence[str]) -> None:
    """Do what ``python ARGUMENTS`` does: ``-c CODE``, ``-m MODULE`` or a file's name, and what follows."""
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    elif arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    location, values = json.loads(sys.argv[1])
    print(json.dumps(find_function(location)(*values)))
