"""Tests of children of one process: what they answer, and what becomes of them.

Every way in which they can fail, also over ranks, is in tests/ranks/test_children.py.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest

from starpullm.errors import InvalidArgumentError, RuntimeFailureError
from starpullm.processes.children import Child, Hung, Lost, location_of
from starpullm.processes.endings import Completed, Crashed
from starpullm.processes.progress import report_phase
from starpullm.processes.service import Answered, Raised, find_function

TIME_LIMIT = 60.0


@contextmanager
def calculator(comm: None, start: int) -> Iterator[tuple[str, Callable[[Any], int]]]:
    """Add up the numbers of all requests; other requests are the ways to fail."""
    total = start

    def answer(request: int | str) -> int:
        nonlocal total
        report_phase(f"answering {request}")
        if isinstance(request, str):
            failures: dict[str, Callable[[], object]] = {
                "refuse": refuse,
                "stumble": stumble,
                "abort": os.abort,
                "leave": partial(os._exit, 0),
            }
            failures[request]()
            return 0
        total += request
        return total

    yield "ready", answer


@contextmanager
def computer(comm: None, core: int) -> Iterator[tuple[None, Callable[[float], float]]]:
    """Use a core for as many seconds of its own time as a request says."""
    os.sched_setaffinity(0, {core})

    def answer(seconds: float) -> float:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass
        return seconds

    yield None, answer


def refuse() -> NoReturn:
    raise InvalidArgumentError("number: found none")


def stumble() -> NoReturn:
    raise ValueError("stumbled")


@contextmanager
def starter(comm: None) -> Iterator[tuple[int, Callable[[Any], None]]]:
    """Start a process that never ends by itself."""
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield process.pid, lambda request: None


@pytest.fixture
def child() -> Iterator[Child]:
    with Child("calculator", calculator, {"start": 10}) as child:
        assert child.start() == Answered("ready")
        yield child
    assert child.has_ended
    assert child.pids
    assert not any(psutil.pid_exists(pid) for pid in child.pids)


def test_answers_and_is_stopped_between_requests(child: Child) -> None:
    [process] = map(psutil.Process, child.pids)
    for expected in (11, 12):
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
        assert child.ask(1, TIME_LIMIT).result() == expected


def test_an_exception_is_reported_and_the_child_goes_on(child: Child) -> None:
    sentence = "number: found none"
    refused = child.ask("refuse", TIME_LIMIT)
    text = f"calculator: InvalidArgumentError: {sentence}"
    assert refused == Raised(text, "InvalidArgumentError", sentence)
    with pytest.raises(RuntimeFailureError, match=r"^calculator: InvalidArgumentError: number: found none$"):
        refused.result()
    stumbled = child.ask("stumble", TIME_LIMIT)
    assert isinstance(stumbled, Raised)
    assert (stumbled.kind, stumbled.sentence) == ("ValueError", "stumbled")
    assert "in stumble" in stumbled.text
    assert child.ask(1, TIME_LIMIT) == Answered(11)


def test_a_crash(child: Child) -> None:
    lost = child.ask("abort", TIME_LIMIT)
    assert isinstance(lost, Lost)
    assert not isinstance(lost, Hung)
    assert isinstance(lost.ending, Crashed)
    assert lost.ending.signal == signal.SIGABRT
    assert lost.text.startswith("calculator: the process was ended by SIGABRT (")
    assert "in answer" in lost.text
    with pytest.raises(RuntimeFailureError, match="phase answering abort"):
        lost.result()
    assert isinstance(child.ask(1, TIME_LIMIT), Lost)


def test_a_child_that_leaves_without_an_answer(child: Child) -> None:
    lost = child.ask("leave", TIME_LIMIT)
    assert isinstance(lost, Lost)
    assert isinstance(lost.ending, Completed)
    assert lost.text.startswith("calculator: ended before the request had ended: exit status 0, ")


def test_an_answer_that_comes_too_late(child: Child) -> None:
    """The child is already being killed, so its next request, or its end, would have no answer."""
    late = child.ask(1, 0.0)
    assert isinstance(late, Hung)
    assert late.text.startswith("calculator: the request had not ended after 0 s, so its process was ended:\n")
    assert child.end() is None


def test_a_wait_for_a_processor_does_not_count() -> None:
    """Others use the same core. It may be shared between sessions first, so the child has half of it or less."""
    limit = 2.0
    spin = [sys.executable, "-S", "-c", "while True: pass"]
    core = min(os.sched_getaffinity(0))
    with ExitStack() as stack:
        for _ in range(3):
            process = stack.enter_context(subprocess.Popen(spin))
            stack.callback(process.kill)
            os.sched_setaffinity(process.pid, {core})
        child = stack.enter_context(Child("computer", computer, {"core": core}))
        child.start()
        begin = time.monotonic()
        assert child.ask(limit * 0.75, limit) == Answered(limit * 0.75)
        assert time.monotonic() - begin > limit
        hung = child.ask(60.0, limit)
        assert isinstance(hung, Hung)
        assert re.search(r"not ended after 2 s, .*\n\d+ s more in which it waited for a processor\n", hung.text)


def test_what_a_child_has_started_ends_with_it() -> None:
    with Child("starter", starter, {}) as child:
        pid = child.start().result()
        assert psutil.pid_exists(pid)
    wait_until(lambda: not psutil.pid_exists(pid))


def test_a_child_that_is_never_started() -> None:
    with Child("unused", calculator, {"start": 0}) as child:
        assert child.has_ended


def test_functions_that_another_process_finds() -> None:
    assert find_function(location_of(refuse)) is refuse
    assert location_of(refuse)["function"] == "refuse"
    with pytest.raises(InvalidArgumentError, match="local, expected one of a module's own"):
        location_of(local_function())


def test_a_module_that_cannot_be_imported_is_not_kept(tmp_path: Path) -> None:
    """A later call fails for the same reason."""
    path = tmp_path / "stumbles.py"
    path.write_text("raise ValueError('stumbled')", "utf-8")
    for _ in range(2):
        with pytest.raises(ValueError, match="stumbled"):
            find_function({"module": "starpullm_stumbles", "file": str(path), "function": "any"})


def local_function() -> Callable[[], None]:
    def local() -> None: ...

    return local


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
