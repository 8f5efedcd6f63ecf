"""pytest in a checkout, whose package has no library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.skipif((CHECKOUT / "starpullm" / "lib").exists(), reason="the checkout's package has a library")
@pytest.mark.parametrize("options", [(), ("-P",)], ids=["python", "python -P"])
def test_the_checkout_s_package_is_refused(options: tuple[str, ...]) -> None:
    """`python -m pytest` imports it instead of the installed one, `python -P -m pytest` doesn't."""
    hiding = ("PYTHONPATH", "PYTHONSAFEPATH", "STARPULLM_LIB")
    environment = {name: value for name, value in os.environ.items() if name not in hiding}
    command = (sys.executable, *options, "-m", "pytest", "--collect-only", "-q", "tests/unit/test_import.py")
    ended = subprocess.run(
        command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    if options:
        assert ended.returncode == pytest.ExitCode.OK, ended.stderr
    else:
        assert ended.returncode == pytest.ExitCode.USAGE_ERROR
        assert ended.stderr == (
            f"ERROR: {CHECKOUT}: the checkout's starpullm was imported, which has no library, expected the installed "
            "one: run `pytest`, or `python -P -m pytest`\n\n"
        )
