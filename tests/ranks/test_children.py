"""Each way to fail is told as itself, on every number of ranks and at every place of a child's life."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from starpullm.processes import children, job
from starpullm.processes.children import Child, Hung, Lost, Reply
from starpullm.processes.progress import report_phase
from starpullm.processes.ranks import meet
from starpullm.processes.service import Answered, Raised

if TYPE_CHECKING:  # importing it would initialise MPI in pytest's process
    from mpi4py.MPI import Comm


TIME_LIMIT = 60.0
START_LIMIT = 6.0
"""For a process that hangs as soon as it has imported what it needs."""
GROUP = "STARPULLM_TESTS_MEMORY_GROUP"
"""Environment variable with a control group whose memory is limited."""


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def stumble() -> None:
    raise ValueError("stumbled")


def hang() -> None:
    time.sleep(1000)


def be_killed() -> None:
    """By the kernel for want of memory, in a control group where there is one."""
    if GROUP in os.environ:
        Path(os.environ[GROUP], "cgroup.procs").write_text(str(os.getpid()))
        blocks = []
        while True:
            blocks.append(b"x" * 2**24)
    os.kill(os.getpid(), signal.SIGKILL)


FAILURES: dict[str, Callable[[], object]] = {
    "crash": crash,
    "exit": lambda: sys.exit(3),
    "leave": lambda: os._exit(0),
    "raise": stumble,
    "hang": hang,
    "kill": be_killed,
}
SENTENCES = {
    "crash": "was ended by SIGSEGV",
    "exit": "ended with exit status 3",
    "leave": "exit status 0",
    "raise": "ValueError: stumbled",
    "hang": "had not ended after",
    "kill": "was ended by SIGKILL",
}
PLACES = ("service", "set-up", "first step", "later step", "tear-down")
EVERY_SECOND = [*product(FAILURES, PLACES)][::2]
"""Each failure in two or three places, each place with three failures; places are an odd number."""


def serve(comm: Comm | None, failure: str, place: str, culprit: int) -> Any:
    rank = 0 if comm is None else comm.Get_rank()

    def reach(here: str) -> None:
        report_phase(f"in the {here}")
        if here == place and rank == culprit:
            FAILURES[failure]()
        if comm is not None:
            meet(comm)  # asleep: MPI's own barrier would keep a core busy until a hang is found out

    @contextmanager
    def context() -> Iterator[tuple[None, Callable[[str], None]]]:
        reach("set-up")
        yield None, reach
        reach("tear-down")

    reach("service")
    return context()


def first_failure(child: Child, limits: Mapping[str, float]) -> Reply | None:
    reply = child.start(min(limits["service"], limits["set-up"]))
    for place in ("first step", "later step"):
        if not isinstance(reply, Answered):
            return reply
        reply = child.ask(place, limits[place])
    return child.end() if isinstance(reply, Answered) else reply


@pytest.mark.parametrize(
    ("failure", "place", "ranks"),
    [(failure, place, 1 + number % 4) for number, (failure, place) in enumerate(EVERY_SECOND)],
)
def test_each_failure_is_told_as_itself(
    failure: str, place: str, ranks: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    group = request.getfixturevalue("memory_group") if failure == "kill" else None
    environment = {} if group is None else {GROUP: str(group)}
    culprit = 0 if PLACES.index(place) % 2 == 0 else ranks - 1
    if failure == "hang":
        monkeypatch.setattr(children, "_END_SECONDS", 2.0)
    monkeypatch.setattr(job, "_STACK_SECONDS", 3.0)
    arguments = {"failure": failure, "place": place, "culprit": culprit}
    # Only where it hangs: on a busy machine everything else takes longer.
    limits = dict.fromkeys(PLACES, TIME_LIMIT)
    if failure == "hang":
        limits[place] = START_LIMIT if place in PLACES[:2] else 3.0
    with Child("child", serve, arguments, ranks=ranks, environment=environment) as child:
        reply = first_failure(child, limits)
    assert isinstance(reply, Raised | Lost)
    assert isinstance(reply, Hung) == (failure == "hang")
    sentence = reply.text.partition("\ncommand:")[0]
    assert SENTENCES[failure] in sentence
    if ranks > 1 and failure != "hang":
        assert f"child: rank {culprit} of {ranks} " in sentence
    assert isinstance(reply, Raised) or f"phase in the {place}" in sentence
    if failure == "hang":
        assert "in hang" in reply.text
        assert "---- native stacks" in reply.text
    if group is not None:
        assert re.search("\nmeanwhile the kernel has killed [1-9]+ of this machine's processes to get", reply.text)
    if failure in ("crash", "raise"):
        assert re.search(r'test_children\.py", line \d+, in stumble|in crash', reply.text)
