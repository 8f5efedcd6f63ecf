"""Tests of what ranks do without MPI: rank and size, texts about options and ranks, exit statuses of exceptions.

What ranks do with MPI is tested in tests/ranks.
"""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from starpullm.processes.rank_wrapper import rank_and_size_from_environment
from starpullm.processes.ranks import default_exit_status, option_differences, rank_list


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, (2, 4)),
        ({"PMI_RANK": "3", "PMI_SIZE": "8"}, (3, 8)),
        ({"PMIX_RANK": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}, (1, 2)),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6"}, (5, 6)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "6"}, (0, 1)),  # a batch script isn't a rank
        # mpirun inside a Slurm job
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "SLURM_PROCID": "0", "PMIX_RANK": "1"}, (1, 2)),
    ],
)
def test_rank_and_size(environment: dict[str, str], expected: tuple[int, int]) -> None:
    assert rank_and_size_from_environment(environment) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([{"B": "2"}], []),
        ([{"B": "2", "T": "8"}, {"T": "8", "B": "2"}], []),
        ([{"B": "2"}, {"B": "4"}], ["B is 2 on rank 0 and 4 on rank 1"]),
        ([{"B": "2"}, {"B": "4"}, {"B": "2"}, {"B": "2"}], ["B is 2 on ranks 0, 2-3 and 4 on rank 1"]),
        ([{"B": "1"}, {"B": "2"}, {"B": "3"}], ["B is 1 on rank 0, 2 on rank 1 and 3 on rank 2"]),
        ([{"B": "2"}, {}], ["B is 2 on rank 0 and missing on rank 1"]),
        (
            [{"T": "8"}, {"B": "2", "T": "9"}],
            ["T is 8 on rank 0 and 9 on rank 1", "B is missing on rank 0 and 2 on rank 1"],
        ),
    ],
)
def test_option_differences(options: list[dict[str, str]], expected: list[str]) -> None:
    assert option_differences(options) == expected


def test_rank_list() -> None:
    assert rank_list([3]) == "rank 3"
    assert rank_list([0, 1, 2]) == "ranks 0-2"
    assert rank_list([0, 2, 3, 7]) == "ranks 0, 2-3, 7"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SystemExit(), 0),
        (SystemExit(0), 0),
        (SystemExit(3), 3),
        (SystemExit("a sentence"), 1),
        (click.UsageError("no such option"), 2),
        (click.ClickException("bad"), 1),
        (click.exceptions.Exit(4), 4),
        (KeyboardInterrupt(), 130),
        (ValueError("bad"), 1),
    ],
)
def test_default_exit_status(error: BaseException, status: int) -> None:
    assert default_exit_status(error) == status


def test_without_mpi4py() -> None:
    code = (
        "import sys; sys.modules['mpi4py'] = None\n"
        "from starpullm import errors; from starpullm.processes import ranks\n"
        "try:\n    ranks.world()\nexcept errors.MissingDependencyError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("mpi4py: can't be imported")
    assert done.stdout.endswith("expected it for several ranks: pip install 'starpullm[mpi]'\n")
