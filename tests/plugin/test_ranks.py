"""pytest under mpirun: all ranks run the same tests and agree on each outcome, and no rank waits for ever."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Run
from .test_report import read

SUITE = ("--pyargs", "starpullm.suite", "--starpullm-records", "tiny")
LONG = "scenarios or growth"
SHORTER = "scenarios-best or growth"


def test_suite(run_ranks: Run, pytester: pytest.Pytester, llmc_stand_in: Callable[..., Path]) -> None:
    """Only rank 0 prints and writes; the report shows the workers of all ranks."""
    options = ("--starpullm-llmc-library", str(llmc_stand_in()), "--starpullm-report", "out", "--starpullm-strict")
    result = run_ranks(*SUITE, *options, "-k", f"not ({LONG})")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        [
            "starpullm: 2 ranks; tests marked mpi run on all of them, the others on rank 0",
            "parity *1x1 lws 2 ranks *15 passed *",
            "dependencies *1x1 lws 2 ranks *4 passed *",
            "dependencies *all *5 passed *",
            "reduction *1x1 lws 2 ranks *5 passed *",
            "reduction *all *2 passed *",
            "interface *all *1 passed *",
            "isolation: 10 processes served * checks",
            "report: *out/index.html",
        ]
    )
    text = result.stdout.str()
    assert text.count("test session starts") == text.count("= starpullm =") == 1
    document, _ = read(pytester.path / "out")
    assert document["ranks"] == 2
    of_ranks = {check["ranks"] for test in document["tests"] for check in test["results"]}
    assert of_ranks == {"", "rank 0 of 2"}, of_ranks
    assert [path.name for path in pytester.path.glob("out*")] == ["out"]


def test_long_checks(run_ranks: Run) -> None:
    run_ranks(*SUITE, "-k", SHORTER).assert_outcomes(passed=4, deselected=29)


LOST = """
import os
import signal

import pytest

from starpullm.checks.cases import find_record
from starpullm.checks.result import Outcome, Result
from starpullm.checks.training import new_trainer, local_batch

pytestmark = pytest.mark.starpullm_over_ranks


def stumble(place, record):
    with new_trainer(place, find_record(record)) as trainer:
        if place.runtime.rank == 1:
            raise ValueError("stumbled")
        trainer.step(*local_batch(trainer, 1, 0))


def crash(place, record):
    if place.runtime.rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    place.runtime.comm.barrier()


def asserts(place, record):
    assert place.runtime.rank == 0
    place.runtime.comm.barrier()


def other_outcome(place, record):
    outcome = Outcome.FAILED if place.runtime.rank == 1 else Outcome.PASSED
    return Result(check="sums", outcome=outcome, sentence="one is wrong", compared=1)


@pytest.mark.parametrize("function", [stumble, crash, asserts, other_outcome])
def test_lost(starpullm_check, function):
    starpullm_check(function, record="tiny")


def test_next(starpullm_check):
    starpullm_check("parity", record="tiny", sub_batches=1, reduction="ordered")
"""


def test_a_rank_of_a_check_that_fails_or_is_lost_fails_one_test(run_ranks: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(LOST)
    result = run_ranks()
    result.assert_outcomes(passed=1, failed=4)
    result.stdout.fnmatch_lines(
        [
            "*_ test_lost*stumble* _*",
            "* on 1x1 lws 2 ranks: no result: rank 1 of 2 ended with exit status 1 (*): ValueError: stumbled",
            "*_ test_lost*crash* _*",
            "* on 1x1 lws 2 ranks: no result: rank 1 of 2 was ended by SIGSEGV (*, phase running crash)",
            "*in crash",
            "*_ test_lost*asserts* _*",
            "*AssertionError: assert 1 == 0*",
            "*_ test_lost*other_outcome* _*",
            "sums of test_* on 1x1 lws 2 ranks on rank 1 of 2: failed: one is wrong",
        ]
    )


EVERYWHERE = """
import pytest
from mpi4py import MPI

COMM = MPI.COMM_WORLD
pytestmark = pytest.mark.mpi


def test_collective():
    assert COMM.allreduce(1) == 2


def test_fails_on_one():
    print("said before")
    assert COMM.Get_rank() == 0


@pytest.fixture
def broken_on_one():
    assert COMM.Get_rank() == 0


def test_setup_fails_on_one(broken_on_one):
    COMM.barrier()


def test_skipped_on_one():
    if COMM.Get_rank() == 1:
        pytest.skip("not here")


@pytest.mark.mpi(min_size=3)
def test_needs_more():
    raise AssertionError("not reached")


def test_starts_ranks_itself(starpullm_check):
    pass


def test_trains(starpullm_trainer, starpullm_golden):
    from starpullm.checks.training import local_batch

    assert starpullm_trainer.runtime.ranks == 2
    losses = COMM.allgather(starpullm_trainer.step(*local_batch(starpullm_trainer, starpullm_golden.seed, 0)))
    assert losses[0] == losses[1]
"""


def test_tests_on_every_rank(run_ranks: Run, pytester: pytest.Pytester) -> None:
    """They run together with a test on rank 0 alone, which has a runtime of its own."""
    pytester.makepyfile(
        test_everywhere=EVERYWHERE,
        test_alone="def test_alone(starpullm_runtime):\n    assert starpullm_runtime.ranks == 1\n",
    )
    result = run_ranks("--starpullm-records", "tiny", "-rs")
    result.assert_outcomes(passed=5, failed=1, skipped=2, errors=2)
    result.stdout.fnmatch_lines(
        [
            "failed on rank 1 of 2",
            "*assert COMM.Get_rank() == 0",
            "*::test_starts_ranks_itself*mark it starpullm_over_ranks instead of mpi",
            "failed on rank 1 of 2",
            "---- Captured stdout call",
            "said before",
            "*skipped on rank 1 of 2*not here",
        ]
    )


def test_without_pytest_mpi(run_ranks: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\nfrom mpi4py import MPI\n\n@pytest.mark.mpi\ndef test_it():\n"
        "    assert MPI.COMM_WORLD.allreduce(1) == 2\n"
    )
    result = run_ranks("-p", "no:pytest_mpi")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["starpullm: 2 ranks*"])


def test_other_tests_on_a_rank(run_ranks: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import os\nimport pytest\n\n@pytest.mark.parametrize('rank', [os.environ['OMPI_COMM_WORLD_RANK']])\n"
        "def test_it(rank):\n    pass\n"
    )
    result = run_ranks()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [
            "ERROR: the ranks have collected different tests: *::test_it[[]0[]] is 1 on rank 0 and missing on rank 1; "
            "*::test_it[[]1[]] is missing on rank 0 and 1 on rank 1"
        ]
    )
    assert result.stderr.str().count("ERROR") == 1


ELSEWHERE = """
import os
import signal
import time

if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    {action}


def test_it():
    pass
"""


@pytest.mark.parametrize(
    ("action", "lines"),
    [
        (
            "raise ValueError('broken')",
            [
                "ERROR: the ranks have collected different tests: * missing on rank 1; rank 1 had an error in *.py:",
                "*.py:6: in <module>",
                "*ValueError: broken",
            ],
        ),
        (
            "time.sleep(1000)",
            [
                "rank 0 of 2: collection: 1 tests here; rank 1 hadn't ended it 2 s later (--starpullm-time-limit)*",
                "*---- native stacks of rank 1",
                "*---- stacks of Python of rank 1",
                '*.py", line 6 in <module>',
            ],
        ),
        ("os.kill(os.getpid(), signal.SIGSEGV)", ['*.py", line 6 in <module>', "*rank 1*on signal 11*"]),
    ],
    ids=["exception", "hang", "crash"],
)
def test_a_module_that_fails_on_one_rank(
    run_ranks: Run, pytester: pytest.Pytester, action: str, lines: list[str]
) -> None:
    """What happens in the collection is told as itself, and no rank waits for ever."""
    pytester.makepyfile(ELSEWHERE.format(action=action))
    result = run_ranks("--starpullm-time-limit", "2", timeout=60)
    assert result.ret != 0
    # mpirun forwards what two ranks write in any order, even within a line.
    pytest.LineMatcher([*result.outlines, *result.errlines]).fnmatch_lines_random(lines)
    assert "passed" not in result.stdout.str()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ("--starpullm-records", "tiny", "--starpullm-schedulers", "best"),
            'schedulers: found "best", expected one of',
        ),
        (
            ("--starpullm-records", "odd"),
            "starpullm: found 2 ranks, which with these sub-batches divide the batch of none",
        ),
    ],
    ids=["schedulers", "records"],
)
def test_a_usage_error_is_said_once(run_ranks: Run, options: tuple[str, ...], sentence: str) -> None:
    """Of an option of the machine, and of one that ranks can't share."""
    result = run_ranks("--pyargs", "starpullm.suite", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.stderr.str().count(sentence) == result.stderr.str().count("ERROR") == 1


STUCK = """
import os
import signal

import pytest
from mpi4py import MPI


@pytest.mark.mpi
def test_stuck():
    if MPI.COMM_WORLD.Get_rank() == 1:
        {action}
    MPI.COMM_WORLD.recv(source=1)
"""


@pytest.mark.parametrize(
    ("action", "lines"),
    [
        (
            "raise ValueError('not sent')",
            [
                "rank 1 of 2: call of *::test_stuck: failed here; rank 0 hadn't ended it 2 s later (*), so the job *",
                "*ValueError: not sent",
            ],
        ),
        ("os.kill(os.getpid(), signal.SIGKILL)", ["*rank 1*on signal 9*"]),
    ],
)
def test_a_rank_that_others_wait_for_in_vain(
    run_ranks: Run, pytester: pytest.Pytester, action: str, lines: list[str]
) -> None:
    """The job is ended, because nothing else ends the wait."""
    pytester.makepyfile(STUCK.format(action=action))
    start = time.monotonic()
    result = run_ranks("--starpullm-time-limit", "2")
    assert time.monotonic() - start < 30
    assert result.ret != 0
    pytest.LineMatcher([*result.errlines, *result.outlines]).fnmatch_lines(lines)


def test_a_rank_that_leaves(run_ranks: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\nfrom mpi4py import MPI\n\n@pytest.mark.mpi\ndef test_it():\n"
        "    if MPI.COMM_WORLD.Get_rank() == 1:\n        pytest.exit('enough')\n"
    )
    result = run_ranks()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        ["*Interrupted: the ranks aren't at the same place of the run: rank 0: call of *; rank 1: end of the run*"]
    )


def test_an_error_inside_pytest_on_one_rank(run_ranks: Run, pytester: pytest.Pytester) -> None:
    """It is shown, and the others don't wait for ever."""
    pytester.makeconftest(
        "import os\n\ndef pytest_sessionstart():\n    if os.environ['OMPI_COMM_WORLD_RANK'] == '1':\n"
        "        raise ValueError('broken')\n"
    )
    result = run_ranks(timeout=60)
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    pytest.LineMatcher([*result.outlines, *result.errlines]).fnmatch_lines(
        ["*rank 1 of 2: INTERNALERROR> *", "*ValueError: broken*"]
    )
