"""A check whose process crashes, hangs or leaves fails one test, with what is known of the reason."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from starpullm.report.failures import failures
from starpullm.report.verdict import claim_rows

from ..report.report_json import read_report
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
    [[pid]] = (child.pids for child in starpullm_validation.pool._children.values())
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
            "crash of test_crash on 1x1 lws: no result: the process was ended by SIGSEGV (*, phase running crash)",
            "about to",
            "Fatal Python error: Segmentation fault",
            "*test_lost_children_fail_one_test_each.py*in crash",
            "*_ test_hang[[]1x1-lws[]] _*",
            "hang of test_hang on 1x1 lws: no result: the check had not ended after 4 s, so its process was ended:",
            "stopped after * s: was running, *, phase running hang for * s",
            "Fatal Python error: Aborted",
            "*test_lost_children_fail_one_test_each.py*in hang",
            "---- native stacks",
            "*_ test_leave[[]1x1-lws[]] _*",
            "leave of test_leave on 1x1 lws: no result: the process ended with exit status 3 (*, phase running leave)",
            "*_ test_killed_between_checks[[]1x1-lws[]] _*",
            "parity of tiny-1-ordered on 1x1 lws: *: the process was ended by SIGKILL (*, phase waiting for a request)",
            "*_ test_refuse[[]1x1-lws[]] _*",
            "refuse of test_refuse on 1x1 lws: no result: FileError: nowhere.json*",
            "*_ test_stumble[[]1x1-lws[]] _*",
            "stumble of test_stumble on 1x1 lws: no result: ValueError: stumbled",
            "Traceback (most recent call last):",
            "*in stumble",
            "ValueError: stumbled",
        ]
    )


ENDINGS = """
import os
import time

import pytest

from starpullm.checks.result import Outcome, Result


def fine(place, where=""):
    if where == "killed":
        os.kill(os.getpid(), 9)
    elif where == "slow":
        time.sleep(99)
    elif where == "raises":
        raise ValueError
    elif where == "answers":
        return True
    return Result(check="fine", outcome=Outcome.PASSED, compared=2)


@pytest.fixture
def broken(request):
    if request.param == "setup":
        raise ValueError("not made")
    yield
    raise ValueError("not left")


@pytest.mark.parametrize("where", ["killed", "slow", "raises", "answers"])
def test_without(starpullm_check, where):
    starpullm_check(fine, where=where)


@pytest.mark.parametrize("broken", ["setup", "teardown"], indirect=True)
def test_broken(starpullm_check, broken):
    starpullm_check(fine)


def test_fails(starpullm_check):
    starpullm_check(fine)
    raise ExceptionGroup("several", [ValueError("second")])


def test_skips(starpullm_check):
    starpullm_check(fine)
    pytest.skip("not today")


@pytest.mark.parametrize("called", ["poison", "kernel bits", "parity with llmc", "shares of ranks"])
def test_misses(starpullm_check, called):
    starpullm_check(called, **({} if called == "poison" else {"record": "tiny"}))
"""


def test_every_ending_is_told(run: Run, pytester: pytest.Pytester) -> None:
    """None of a check's tests without a verdict counts as passed; each is named by check and configuration."""
    pytester.makepyfile(ENDINGS)
    result = run("--starpullm-time-limit=1", "--starpullm-report=out", "--junitxml=junit.xml")
    counts = (
        "11 failed (1 lost its process, 1 hit its time limit, 5 raised an exception, 1 error in setup, "
        "1 error in teardown, 1 no result), 1 skipped"
    )
    result.stdout.fnmatch_lines([f"other *1x1 lws *{counts} *"])
    document = read_report(pytester.path / "out" / "report.json")
    [row] = [row for row in claim_rows(document) if row["check"] == "fine"]
    assert row["kind"] == "failed"
    assert row["endings"] == (
        "0 passed, 1 failed, 1 lost its process, 1 hit its time limit, 2 raised an exception, 1 error in setup, "
        "1 error in teardown, 1 skipped"
    )
    found = {failure.test.partition("::")[2].replace("1x1-lws-", ""): failure for failure in failures(document)}
    reasons = {
        "test_without[killed]": "the process was ended by SIGKILL (before the first step, phase running fine)",
        "test_without[slow]": "the check had not ended after 1 s, so its process was ended:",
        "test_without[raises]": "ValueError",
        "test_without[answers]": "InvalidArgumentError: it returned bool, expected a Result, or None after assertions",
        "test_broken[setup]": "ValueError: not made",
        "test_broken[teardown]": "ValueError: not left",
        "test_fails[1x1-lws]": "ValueError: second",
    }
    assert {test: found[test].reason for test in reasons} == reasons
    assert [failure.name for failure in found.values()] == [
        *["fine on 1x1 lws"] * 4,
        "test_broken on 1x1 lws",
        *["fine on 1x1 lws"] * 2,
        *(f"{check} on 1x1 lws" for check in ("poison", "kernel bits", "parity with llmc", "shares of ranks")),
    ]
    missing = {
        "poison": "FileError: record: found none, expected one or the name of a shipped record: tiny, ",
        "kernel bits": 'InvalidArgumentError: what: found "", expected a kernel with cases: ',
        "parity with llmc": "InvalidArgumentError: library: found none, expected a shared object",
        "shares of ranks": "found no such check for ranks 1, expected a function or one of parity, ",
    }
    assert [found[f"test_misses[{check}]"].reason.startswith(start) for check, start in missing.items()] == [True] * 4
    cases = ElementTree.parse(pytester.path / "junit.xml").iter("testcase")
    verdicts = {
        case.attrib["name"].replace("1x1-lws-", ""): [
            item.attrib["value"] for item in case.iter("property") if item.attrib["name"].endswith("verdict")
        ]
        for case in cases
    }
    assert verdicts["test_without[killed]"] == ["no result", "lost its process"]
    assert verdicts["test_without[slow]"] == ["no result", "hit its time limit"]


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
            "call_* on 1x1 lws: *: the process was ended by SIGABRT (*, phase running call_from_*): StarPU *",
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
            "eat of test_memory on 1x1 lws: no result: the process was ended by SIGKILL (*, phase running eat)",
            "meanwhile the kernel has killed 1 of this machine's processes to get memory",
        ]
    )


INTERRUPTED = """
import os
import signal
import time


def hang(place, pid):
    os.kill(pid, signal.SIGINT)
    time.sleep(1000)


def test_hang(starpullm_check):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
    starpullm_check(hang, pid=os.getpid())
"""


def test_an_interrupt_says_where_the_check_was(pytester: pytest.Pytester, run_apart: Run) -> None:
    """Within seconds, although the check's process doesn't end."""
    pytester.makepyfile(INTERRUPTED)
    result = run_apart()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["starpullm: interrupted (before the first step, phase running hang)"])
    assert result.duration < 20
