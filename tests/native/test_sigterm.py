"""Commands that SIGTERM ends leave nothing behind, neither files nor processes."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from starpullm.processes import children

from .children import TWO_CORES, check_sigterm, cli_command

pytestmark = pytest.mark.usefixtures("own_lock")

BENCH = ("bench", "--model", "tiny", "--iterations", 100000)
BLAS = ("--against", "blas", "--blas-library", "scipy-openblas32")


@pytest.mark.parametrize(
    ("arguments", "made"),
    [
        (BENCH, "starpullm-model-*/model.bin"),
        ((*BENCH, *BLAS), "starpullm-model-*/model.bin"),
        (("scenario", "--minutes", 5), "starpullm-scenario-*/told"),
        (("scenario", "--minutes", 5, "--ranks", 2), "starpullm-scenario-*/told"),
        (("parity", *100 * ("tiny",)), "starpullm-parity-*/*"),
    ],
    ids=["bench", "bench against", "scenario", "scenario over ranks", "parity"],
)
def test_sigterm_leaves_nothing_behind(tmp_path: Path, arguments: tuple[object, ...], made: str) -> None:
    def is_at_work(process: psutil.Process) -> bool:
        has_begun = arguments[0] == "parity" or children.__name__ in process.cmdline()
        return has_begun and any(tmp_path.glob(made))

    finished = check_sigterm(cli_command(*arguments), tmp_path, is_at_work, TWO_CORES)
    assert finished.stderr == ""
