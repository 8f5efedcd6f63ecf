"""Tests of the child processes of checks: kept and stopped between checks, and ended; test_lost.py has lost ones."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from starpullm.checks.cases import Case, find_record
from starpullm.checks.check import run_check
from starpullm.checks.check_context import CheckContext, serve_checks
from starpullm.checks.parity import Parity
from starpullm.checks.result import Outcome, Result
from starpullm.checks.training import new_trainer
from starpullm.data.generator import generate_tokens
from starpullm.options import RuntimeConfiguration
from starpullm.processes.children import Pool
from starpullm.processes.service import Answered, Raised

PARITY = partial(run_check, check=Parity(), case=Case("tiny", sub_batches=1, reduction="ordered"))

ONE, TWO = RuntimeConfiguration("1x1", "lws"), RuntimeConfiguration("2x1", "eager")


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(serve_checks, {"HWLOC_SYNTHETIC": "numa:1 core:2 pu:1", "PYTHONSAFEPATH": "1"}) as pool:
        yield pool
        processes = [psutil.Process(pid) for pid in pids(pool).values()]
    assert not any(process.is_running() for process in processes)


def pids(pool: Pool) -> dict[RuntimeConfiguration, int]:
    return {configuration: child.pids[0] for configuration, child in pool._children.items()}


def parity(pool: Pool, configuration: RuntimeConfiguration = ONE) -> Result:
    answer = pool.ask(configuration, PARITY)
    assert isinstance(answer, Answered), answer
    report: Result = answer.value
    assert report.outcome is Outcome.PASSED, report.lines()
    return report


def test_a_child_serves_all_checks_of_its_configuration(pool: Pool) -> None:
    parity(pool)
    parity(pool, TWO)
    first = pids(pool)
    report = parity(pool)
    assert report.facts["partition"] == "1x1"
    assert parity(pool, TWO).facts["scheduler"] == "eager"
    assert pids(pool) == first
    assert pool.costs == {"processes": 2, "served": 4}


def train_and_spoil(context: CheckContext, record: str) -> None:
    """Train, and overwrite the file of the initial model."""
    golden = find_record(record)
    with new_trainer(context, golden) as trainer:
        for number in range(3):
            trainer.step(*generate_tokens(5, number, golden.batch_size, golden.seq_len, golden.model.vocab_size))
        trainer.save_checkpoint(context.checkpoint(golden))


def test_every_check_begins_at_the_initial_state(pool: Pool) -> None:
    parity(pool)
    assert pool.ask(ONE, partial(train_and_spoil, record="tiny")) == Answered(None)
    parity(pool)
    assert pool.costs["processes"] == 1


def told_home(context: CheckContext) -> Result:
    return Result(check="home", outcome=Outcome.PASSED, sentence=os.environ["STARPU_HOME"], compared=1)


def test_a_home_of_starpu_that_is_set_stays(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STARPU_HOME", str(tmp_path))
    assert pool.ask(ONE, partial(told_home)).result().sentence == str(tmp_path)


def wait(context: CheckContext, seconds: float) -> Result:
    time.sleep(seconds)
    return Result(check="wait", outcome=Outcome.PASSED, sentence=f"{seconds} s", compared=1)


def interrupt_and_wait(context: CheckContext, pid: int) -> Result:
    os.kill(pid, signal.SIGALRM)
    return wait(context, 3)


def test_an_interrupted_call_leaves_no_reply_for_the_next(pool: Pool) -> None:
    """As by Ctrl-C or pytest-timeout, while the child is at work."""

    class InterruptedByUserError(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise InterruptedByUserError

    assert isinstance(pool.ask(ONE, partial(wait, seconds=0)), Answered)
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(InterruptedByUserError):
            pool.ask(ONE, partial(interrupt_and_wait, pid=os.getpid()))
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert pids(pool) == {}
    answer = pool.ask(ONE, partial(wait, seconds=0.1))
    assert isinstance(answer, Answered)
    assert answer.value.sentence == "0.1 s"


def test_a_runtime_that_does_not_start(pool: Pool) -> None:
    answer = pool.ask(RuntimeConfiguration("1x1", "none"), PARITY)
    assert isinstance(answer, Raised)
    assert answer.text.startswith("1x1 none: InvalidArgumentError: ")
    assert pids(pool) == {}


def test_closed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pool = Pool(serve_checks, {"PYTHONSAFEPATH": "1"})
    parity(pool)
    pool.close()
    pool.close()
    assert list(tmp_path.iterdir()) == []
