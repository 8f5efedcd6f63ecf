"""When the pool of children starts, keeps and ends a child, with children that answer at once.

tests/plugin/test_isolation.py has real children.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, ClassVar

import pytest

from starpullm.binding import allocations
from starpullm.checks import isolation as pools
from starpullm.checks.isolation import Pool, RuntimeConfiguration
from starpullm.checks.place import run_check
from starpullm.checks.result import Outcome, Result
from starpullm.processes.children import Answered, Lost, Reply

from .test_check_reports import report

ONE, TWO = RuntimeConfiguration("1x1", "lws"), RuntimeConfiguration("2x1", "random", 2)

LOST = Lost("the process was ended by SIGSEGV", None)  # type: ignore[arg-type]


class Child:
    """Stands for `starpullm.processes.children.Child`: keeps what it was asked."""

    made: ClassVar[list[Child]]
    started: Reply = Answered(None)
    reply: Reply | BaseException = Answered(None)
    lost_at_end: Lost | None = None

    def __init__(self, name: str, function: Callable[..., Any], arguments: Mapping[str, Any], **options: Any) -> None:
        self.name, self.arguments, self.options = name, arguments, options
        self.asked: list[tuple[Any, float]] = []
        self.ended = self.killed = False
        self.pids = [100 + len(self.made)]
        self.made.append(self)

    @property
    def has_ended(self) -> bool:
        return self.ended

    def start(self) -> Reply:
        return self.started

    def ask(self, request: Any, time_limit: float) -> Reply:
        self.asked.append((request, time_limit))
        if isinstance(self.reply, BaseException):
            raise self.reply
        return self.reply

    def end(self) -> Lost | None:
        self.ended = True
        return self.lost_at_end

    def kill(self) -> None:
        self.killed = True

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.ended = True


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> type[Child]:
    """The class whose attributes say how new children behave."""

    class Children(Child):
        made: ClassVar[list[Child]] = []
        reply = Answered(report(Outcome.PASSED).as_json())

    monkeypatch.setattr(pools, "Child", Children)
    monkeypatch.setattr(pools, "machine_lock", nullcontext)  # nothing runs, so nothing is disturbed
    monkeypatch.setattr(allocations, "preloading", lambda: {"LD_PRELOAD": "counts.so"})
    monkeypatch.delenv("STARPU_HOME", raising=False)
    return Children


def call(pool: Pool, configuration: RuntimeConfiguration = ONE, **options: Any) -> Reply:
    return pool.call(configuration, run_check, **{"record": "tiny", **options})


def test_a_child_serves_all_calls_of_its_configuration(children: type[Child]) -> None:
    with Pool({"A": "1"}) as pool:
        reply = call(pool, time_limit=7.0)
        assert isinstance(reply, Answered)
        assert reply.value == report(Outcome.PASSED)
        call(pool)
        call(pool, TWO)
        one, two = children.made
        assert [(child.name, child.options["ranks"], len(child.asked)) for child in (one, two)] == [
            ("1x1 lws", 1, 2),
            ("2x1 random 2 ranks", 2, 1),
        ]
        request, time_limit = one.asked[0]
        assert (request["function"], request["arguments"], time_limit) == ("run_check", {"record": "tiny"}, 7.0)
        assert one.asked[1][1] == pools.DEFAULT_TIME_LIMIT
        assert (one.arguments["configuration"], one.options["request_name"]) == (ONE, "the check")
        assert one.options["environment"] == {"A": "1", "STARPU_HOME": one.arguments["directory"]}
        assert pool.pids() == {ONE: 100, TWO: 101}
        assert pool.costs == {"processes": 2, "served": 3}
    assert [child.ended for child in children.made] == [True, True]
    assert (pool.failures, pool.pids()) == ([], {})


def test_a_home_of_starpu_that_is_set_stays(children: type[Child], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STARPU_HOME", "/home")
    with Pool() as pool:
        call(pool)
    assert children.made[0].options["environment"] == {}


def test_without_stickiness_every_call_has_a_child_of_its_own(children: type[Child]) -> None:
    with Pool(sticky=False) as pool:
        call(pool)
        assert (children.made[0].ended, pool.pids()) == (True, {})
        call(pool)
    assert len(children.made) == 2


def test_after_a_lost_child_comes_a_new_one(children: type[Child]) -> None:
    children.reply = LOST
    with Pool() as pool:
        assert call(pool) is LOST
        assert (children.made[0].ended, pool.pids()) == (True, {})
        children.reply = Answered(None)
        call(pool)
        assert pool.pids() == {ONE: 101}


def test_a_child_that_does_not_start_is_not_asked(children: type[Child]) -> None:
    children.started = LOST
    with Pool() as pool:
        assert call(pool) is LOST
        assert (children.made[0].asked, children.made[0].ended, pool.pids()) == ([], True, {})
        assert pool.costs["served"] == 0


def test_allocations_are_counted_in_a_child_of_its_own(children: type[Child]) -> None:
    with Pool() as pool:
        call(pool)
        call(pool, counts_allocations=True)
        first, counting = children.made
        assert (first.ended, counting.ended, pool.pids()) == (True, True, {})
        assert "LD_PRELOAD" not in first.options["environment"]
        assert counting.options["environment"]["LD_PRELOAD"] == "counts.so"


def test_a_child_that_fails_when_all_is_answered_is_told_at_the_end(children: type[Child]) -> None:
    with Pool() as pool:
        call(pool)
        children.lost_at_end = LOST
    assert pool.failures == ["the process was ended by SIGSEGV"]
    pool.close()
    assert len(pool.failures) == 1


# ---- Checks that start runtimes themselves ----


def alone(workplace: object) -> Any:
    raise AssertionError("a child calls it")


def test_a_check_alone_has_a_child_without_a_runtime(children: type[Child]) -> None:
    with Pool({"A": "1"}) as pool:
        reply = pool.call(2, alone, time_limit=3.0, counts_allocations=True)
        (child,) = children.made
        assert isinstance(reply, Answered)
        assert isinstance(reply.value, Result)
        assert (child.name, child.options["ranks"], child.arguments["configuration"]) == ("alone", 2, None)
        assert child.options["environment"]["LD_PRELOAD"] == "counts.so"
        assert (child.options["environment"]["A"], child.options["request_name"]) == ("1", "the check")
        assert (child.asked[0][0]["function"], child.asked[0][1], child.ended) == ("alone", 3.0, True)
        assert pool.costs == {"processes": 1, "served": 1}
        pool.call(1, alone)
        assert (children.made[1].options["ranks"], children.made[1].asked[0][1]) == (1, pools.DEFAULT_TIME_LIMIT)
        assert "LD_PRELOAD" not in children.made[1].options["environment"]


@pytest.mark.parametrize("when", ["start", "ask", "end"])
def test_a_check_alone_that_is_lost_is_told(children: type[Child], when: str) -> None:
    if when == "start":
        children.started = LOST
    elif when == "ask":
        children.reply = LOST
    else:
        children.lost_at_end = LOST
    with Pool() as pool:
        assert pool.call(1, alone) is LOST
    assert len(children.made[0].asked) == (when != "start")
