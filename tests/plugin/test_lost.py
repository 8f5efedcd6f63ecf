"""A check whose process crashes, hangs or leaves fails one test, with what is known of the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Run

LOST = """
import os
import signal
import sys
import time

from starpullm.checks.cases import find_record


def crash(place, record):
    print("about to", file=sys.stderr)
    os.kill(os.getpid(), signal.SIGSEGV)


def hang(place, record):
    while True:
        time.sleep(0.1)


def leave(place, record):
    os._exit(3)


def refuse(place, record):
    find_record("nowhere.json")


def stumble(place, record):
    raise ValueError("stumbled")


def test_crash(starpullm_check):
    starpullm_check(crash, record="tiny")


def test_after_crash(starpullm_check):
    starpullm_check("parity", record="tiny", sub_batches=1, reduction="ordered")


def test_hang(starpullm_check):
    starpullm_check(hang, record="tiny")


def test_after_hang(starpullm_check):
    starpullm_check("parity", record="tiny", sub_batches=1, reduction="ordered")


def test_leave(starpullm_check):
    starpullm_check(leave, record="tiny")


def test_killed_between_checks(starpullm_check, starpullm_validation):
    starpullm_check("parity", record="tiny", sub_batches=1, reduction="ordered")
    [pid] = starpullm_validation.pool.pids().values()
    os.kill(pid, signal.SIGKILL)
    starpullm_check("parity", record="tiny", sub_batches=1, reduction="ordered")


def test_refuse(starpullm_check):
    starpullm_check(refuse, record="tiny")


def test_stumble(starpullm_check):
    starpullm_check(stumble, record="tiny")


def test_last(starpullm_check):
    starpullm_check("parity", record="tiny", sub_batches=2, reduction="ordered")
"""


def test_lost_children_fail_one_test_each(run: Run, pytester: pytest.Pytester) -> None:
    """A crash, a hang, an exit and a kill are reported with signal or status, and with Python's stack if possible."""
    pytester.makepyfile(LOST)
    result = run("--starpullm-time-limit", "4")
    result.assert_outcomes(passed=3, failed=6)
    result.stdout.fnmatch_lines(
        [
            "isolation: 5 processes served 10 checks",
            "*_ test_crash[[]1x1-lws[]] _*",
            "1x1 lws: the process was ended by SIGSEGV (*, phase running crash)",
            "about to",
            "Fatal Python error: Segmentation fault",
            "*test_lost_children_fail_one_test_each.py*in crash",
            "*_ test_hang[[]1x1-lws[]] _*",
            "1x1 lws: the check had not ended after 4 s, so its process was ended:",
            "stopped after * s: was running, *, phase running hang for * s",
            "Fatal Python error: Aborted",
            "*test_lost_children_fail_one_test_each.py*in hang",
            "---- native stacks",
            "*_ test_leave[[]1x1-lws[]] _*",
            "1x1 lws: the process ended with exit status 3 (*, phase running leave)",
            "*_ test_killed_between_checks[[]1x1-lws[]] _*",
            "1x1 lws: the process was ended by SIGKILL (*, phase waiting for a request)",
            "*_ test_refuse[[]1x1-lws[]] _*",
            "1x1 lws: FileError: nowhere.json*",
            "*_ test_stumble[[]1x1-lws[]] _*",
            "1x1 lws: Traceback (most recent call last):",
            "*in stumble",
            "ValueError: stumbled",
        ]
    )


LATE = """
import atexit
import os

from starpullm.checks.result import Outcome, Result


def abort_at_the_end(place):
    atexit.register(os.abort)
    return Result(check="late", outcome=Outcome.PASSED, compared=1)


def test_late(starpullm_check):
    starpullm_check(abort_at_the_end)
"""


def test_a_crash_after_the_last_check_fails_the_run(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(LATE)
    result = run()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["1x1 lws: the process was ended by SIGABRT (*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    run("--starpullm-fresh").assert_outcomes(failed=1)  # then it is the check's own process


INSIDE_STARPU = """
import ctypes
from pathlib import Path


def call_from_outside_a_worker(place):
    lines = Path("/proc/self/maps").read_text().splitlines()
    [library] = {line.split()[-1] for line in lines if "/libstarpu-1" in line}
    ctypes.CDLL(library)._starpu_worker_get_id_check(b"test", 1)


def test_abort(starpullm_check):
    starpullm_check(call_from_outside_a_worker)
"""


def test_an_abort_inside_starpu_shows_its_assertion(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(INSIDE_STARPU)
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "1x1 lws: the process was ended by SIGABRT (*, phase running call_from_outside_a_worker): StarPU *",
            "[[]starpu[]]*assert failure[]]*Cannot be called from outside a worker*",
            "*in call_from_outside_a_worker",
        ]
    )


MEMORY = """
import os
from pathlib import Path


def eat(place, group):
    Path(group, "cgroup.procs").write_text(str(os.getpid()))
    blocks = []
    while True:
        blocks.append(b"x" * 2**24)


def test_memory(starpullm_check):
    starpullm_check(eat, group={group!r})


def test_next(starpullm_check):
    starpullm_check("parity", record="tiny", sub_batches=1, reduction="ordered")
"""


def test_a_kill_for_memory_says_so(run: Run, pytester: pytest.Pytester, memory_group: Path | None) -> None:
    if memory_group is None:
        pytest.skip("can't make a control group with a memory limit here")
    pytester.makepyfile(MEMORY.format(group=str(memory_group)))
    result = run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "1x1 lws: the process was ended by SIGKILL (*, phase running eat)",
            "meanwhile the kernel has killed 1 of this machine's processes to get memory",
        ]
    )
