"""The fixture by which any StarPU project tests its schedules."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from starpullm.checks.result import Outcome
from starpullm.probe.findings import Fault
from starpullm.pytest_plugin.fixtures import ProbedProgram

from .conftest import Compile


def test_a_right_program_passes(scenarios: Path, starpullm_program: Callable[..., ProbedProgram]) -> None:
    result = starpullm_program(scenarios, "commute").probe(runs=1, workers=2)
    assert (result.outcome, result.num_tasks, result.runs) == (Outcome.PASSED, 13, 5)


def test_a_wrong_one_fails_with_the_task(scenarios: Path, starpullm_program: Callable[..., ProbedProgram]) -> None:
    program = starpullm_program(scenarios, "writes_what_it_reads")
    line = r"write_second \(task \d+\), scenarios.c:\d+  changes data that it declares to read only\n    handle +4: "
    with pytest.raises(pytest.fail.Exception, match=line):
        program.probe(runs=1)
    assert [finding.kind for finding in program.probe(runs=1, same=False).findings] == [Fault.READ_WRITTEN]


PAGE = Path(__file__).parents[2] / "docs" / "probe.md"


@pytest.mark.parametrize("flags", ["", "-Wall -Wextra", "-Wall -Wextra -O2 -DDECLARED"])
def test_the_page_compiles_its_example_without_a_warning(flags: str, starpu_prefix: Path, tmp_path: Path) -> None:
    [command] = re.findall(r"^gcc -g .*?[^\\]\n", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    for there, here in (("$PWD/.cache/starpu", "PREFIX"), (".cache/starpu", "PREFIX"), ("PREFIX", str(starpu_prefix))):
        command = command.replace(there, here)
    command = command.replace("-o heat", f"{flags} -o {tmp_path}/heat")
    run = subprocess.run(
        ["sh", "-c", command], cwd=PAGE.parents[1], capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert (tmp_path / "heat").exists()


def test_the_example_of_the_page(
    compiled: Compile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    starpullm_program: Callable[..., ProbedProgram],
) -> None:
    """The Python block of probe.md, with the page's program, whose tasks don't declare what they read."""
    page = PAGE.read_text("utf-8")
    names: dict[str, Any] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], names)
    shutil.copy(compiled("heat"), tmp_path / "heat")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        pytest.fail.Exception, match=r"  differs  update \(task \d+\), heat.c:37  reads data that it doesn't declare\n"
    ):
        names["test_any_schedule"](starpullm_program)
