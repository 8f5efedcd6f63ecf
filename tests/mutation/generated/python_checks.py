"""Samples mutants of starpullm/checks by mutmut and has the unit tests catch them; docs/mutants.md shows the result.

Run by hand: ``python -m tests.mutation.generated.python_checks``. It can be interrupted at any time and run again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from ..patches import CHECKOUT
from .results import checked_out

__all__ = ["PythonMutant", "PythonRun", "read_run"]

DIRECTORY = CHECKOUT / ".cache" / "mutmut"
"""A copy of the checkout, and mutmut's results, by which it goes on."""

RESULTS = CHECKOUT / ".cache" / "mutants-python.json"

_COPIED = ("starpullm", "native/include", "tests/unit", "conftest.py", "pyproject.toml")

_TESTS = "accesses bits dependencies errors findings libm memory parity reduction result same_bits task_graph".split()
"""The unit tests that import starpullm.checks and start no other process."""

_CONFIGURATION = """
[tool.mutmut]
source_paths = ["starpullm"]
only_mutate = ["starpullm/checks/*"]
also_copy = ["native", "tests", "conftest.py", "pyproject.toml"]
pytest_add_cli_args = ["-p", "no:starpullm", "-p", "no:cacheprovider"]
pytest_add_cli_args_test_selection = {tests}
"""

_STATUS = {0: "survived", 1: "caught", 3: "caught", 5: "no test", 33: "no test", None: "not tried"}
"""mutmut's exit codes; those not here are time limits and crashes, which are credited to no test."""


@dataclass(frozen=True)
class PythonMutant:
    """A mutant of a function: mutmut's name for it, the outcome, and if it survived the changed lines."""

    name: str
    status: str
    file: str = ""
    before: str = ""
    after: str = ""

    @property
    def function(self) -> str:
        """Nothing: the lines are enough."""
        return ""

    @property
    def key(self) -> tuple[str, str, str]:
        """By which it is explained."""
        return self.file, " ".join(self.before.split()), " ".join(self.after.split())


@dataclass(frozen=True)
class PythonRun:
    """A sample: what it is drawn with, of how many mutants in how many, and its mutants."""

    seed: int
    commit: str
    tool: str
    mutants_of_tested: int
    mutants_of_all: int
    mutants: tuple[PythonMutant, ...]


def read_run(path: Path = RESULTS) -> PythonRun | None:
    """Return a run's results; None if there are none."""
    if not path.exists():
        return None
    values = json.loads(path.read_text("utf-8"))
    return PythonRun(**{**values, "mutants": tuple(PythonMutant(**mutant) for mutant in values["mutants"])})


def prepare() -> None:
    """Copy what mutmut needs."""
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    for name in _COPIED:
        source, target = CHECKOUT / name, DIRECTORY / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)
    tests = [f"tests/unit/test_{name}.py" for name in _TESTS]
    with (DIRECTORY / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write(_CONFIGURATION.format(tests=json.dumps(tests)))


def mutmut(*arguments: str, show: bool = False) -> str:
    """Run mutmut in the copy and return what it prints."""
    command = [str(Path(sys.executable).with_name("mutmut")), *arguments]
    environment = {**os.environ, "PYTHONPATH": ""}
    run = subprocess.run(command, cwd=DIRECTORY, capture_output=True, text=True, check=False, env=environment)
    if show:
        print(run.stdout[-300:] + run.stderr[-300:])
    return run.stdout


def exit_codes() -> dict[str, int | None]:
    """Return mutmut's results: the exit code of the tests by the name of the mutant, None if it was not tried."""
    found: dict[str, int | None] = {}
    for path in sorted((DIRECTORY / "mutants").rglob("*.meta")):
        found.update(json.loads(path.read_text("utf-8"))["exit_code_by_key"])
    return found


def tested_functions() -> set[str]:
    """Return the functions that a test has run, by mutmut's names."""
    path = DIRECTORY / "mutants" / "mutmut-stats.json"
    return set(json.loads(path.read_text("utf-8"))["tests_by_mangled_function_name"])


def described(name: str, code: int | None) -> PythonMutant:
    """Return a mutant with its outcome."""
    status = _STATUS.get(code, "time limit or crash")
    if status != "survived":
        return PythonMutant(name, status)
    diff = mutmut("show", name)
    file = re.search(r"^\+\+\+ (\S+)", diff, re.MULTILINE)
    changed = {sign: re.findall(rf"^\{sign}(?!{re.escape(sign * 2)})(.*)$", diff, re.MULTILINE) for sign in "-+"}
    return PythonMutant(name, status, file[1] if file else "", "\n".join(changed["-"]), "\n".join(changed["+"]))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.generated.python_checks", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the sample; default 1")
    parser.add_argument("--count", type=int, default=200, help="how many mutants; default 200")
    parser.add_argument("--resume", action="store_true", help="go on in .cache/mutmut instead of beginning anew")
    options = parser.parse_args()
    if not options.resume:
        prepare()
    if not (DIRECTORY / "mutants" / "mutmut-stats.json").exists():
        mutmut("run", "--max-children", "1", "starpullm.checks.memory.*", show=True)
    codes, tested = exit_codes(), tested_functions()
    names = sorted(name for name in codes if name.rpartition("__mutmut_")[0] in tested)
    chosen = Random(options.seed).sample(names, min(options.count, len(names)))
    left = [name for name in chosen if codes[name] is None]
    if left:
        mutmut("run", "--max-children", "1", *left, show=True)
        codes = exit_codes()
    version = mutmut("--version").split()[-1]
    mutants = tuple(described(name, codes[name]) for name in chosen)
    run = PythonRun(options.seed, checked_out(), f"mutmut {version}", len(names), len(codes), mutants)
    RESULTS.write_text(json.dumps(asdict(run), indent=1) + "\n", "utf-8")
    print(Counter(mutant.status for mutant in mutants))


if __name__ == "__main__":
    main()
