"""A probe that SIGTERM ends leaves nothing behind: neither the program nor a file."""

from __future__ import annotations

from pathlib import Path

from ..native.children import check_sigterm, cli_command
from .conftest import Compile


def test_sigterm_leaves_nothing_behind(compiled: Compile, tmp_path: Path) -> None:
    command = cli_command("probe", "--", compiled("many"), 100000, 100, 8)
    check_sigterm(command, tmp_path, lambda process: process.name() == "many", {})
