"""Samples mutants of starpullm/checks by mutmut and has the unit tests catch them; docs/mutants.md shows the result.

Run by hand: ``python -m tests.mutation.generated.python_checks``. It can be interrupted at any time, and --resume goes
on. What it has found is in python-SEED.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random

from ..patches import CHECKOUT
from .results import checked_out

__all__ = [
    "NOT_TRIED",
    "FileCounts",
    "PythonMutant",
    "PythonRun",
    "once_more",
    "read_run",
    "results_of",
    "write_run",
]

DIRECTORY = CHECKOUT / ".cache" / "mutmut"
"""A copy of the checkout, and mutmut's results, by which it goes on."""

STATISTICS = DIRECTORY / "mutants" / "mutmut-stats.json"
"""Which tests run which functions."""

_COPIED = (
    "starpullm",
    "native/include",
    "native/src/kernels/kernels.def",
    "tests/unit",
    "conftest.py",
    "pyproject.toml",
)

_PRESENTERS = ("test_throughput.py",)
"""They import a name or two of starpullm.checks, to show or compare results."""

# The seed makes a catch by hypothesis repeatable.
_CONFIGURATION = """
[tool.mutmut]
source_paths = ["starpullm"]
only_mutate = ["starpullm/checks/*"]
also_copy = ["native", "tests", "conftest.py", "pyproject.toml"]
pytest_add_cli_args = ["-p", "no:starpullm", "-p", "no:cacheprovider", "--hypothesis-seed=1"]
pytest_add_cli_args_test_selection = {tests}
timeout_constant = 5.0
timeout_multiplier = 6.0
use_git_change_detection = false
"""

NOT_TRIED = "not tried"
_STATUS = {0: "survived", 1: "caught", 3: "caught", 5: "no test", 33: "no test", None: NOT_TRIED}
"""mutmut's exit codes; those not here are time limits and crashes, which are credited to no test."""

_FEW = "starpullm.checks.task_name.*"
"""Mutants that are run because mutmut only then looks which tests run which functions."""


@dataclass(frozen=True)
class PythonMutant:
    """A mutant of a function: mutmut's name for it, and the outcome; unless it was caught, the changed lines.

    ``again`` is the commit with whose unit tests it was tried once more, after it had survived.
    """

    name: str
    status: str = NOT_TRIED
    before: str = ""
    after: str = ""
    again: str = ""

    @property
    def file(self) -> str:
        """The file that is changed."""
        return self.name.rpartition(".")[0].replace(".", "/") + ".py"

    @property
    def function(self) -> str:
        """The function that is changed, a method with its class."""
        mangled = self.name.rpartition(".")[2].partition("__mutmut_")[0]
        return mangled[1:].replace("ǁ", ".").removeprefix(".") if "ǁ" in mangled else mangled.removeprefix("x_")

    @property
    def key(self) -> tuple[str, str, str]:
        """By which it is explained."""
        return self.file, " ".join(self.before.split()), " ".join(self.after.split())


@dataclass(frozen=True)
class FileCounts:
    """Functions of a file with mutants, and those of them that the unit tests run; the same for the mutants."""

    functions: int
    functions_run: int
    mutants: int
    mutants_run: int


@dataclass(frozen=True)
class PythonRun:
    """A sample: what it is drawn with and from, and its mutants.

    ``left_out`` is the number of mutants that other samples have, from which it was not drawn.
    """

    seed: int
    commit: str
    tool: str
    files: Mapping[str, FileCounts]
    left_out: int
    mutants: tuple[PythonMutant, ...]


def results_of(seed: int) -> Path:
    """Return the file with the results of a seed."""
    return Path(__file__).resolve().parent / f"python-{seed}.json"


def read_run(path: Path) -> PythonRun | None:
    """Return a run's results; None if there are none."""
    if not path.exists():
        return None
    values = json.loads(path.read_text("utf-8"))
    files = {name: FileCounts(**counts) for name, counts in values["files"].items()}
    return PythonRun(**{**values, "files": files, "mutants": tuple(PythonMutant(**one) for one in values["mutants"])})


def write_run(run: PythonRun, path: Path) -> None:
    """Write a run's results."""
    path.write_text(json.dumps(asdict(run), indent=1, ensure_ascii=False) + "\n", "utf-8")


def tests_of_checks() -> list[str]:
    """Return the files of unit tests that import starpullm.checks, by path in the checkout."""
    paths = sorted((CHECKOUT / "tests" / "unit").glob("test_*.py"))
    return [
        str(path.relative_to(CHECKOUT))
        for path in paths
        if "starpullm.checks" in path.read_text("utf-8") and path.name not in _PRESENTERS
    ]


def prepare(*, anew: bool) -> None:
    """Copy what mutmut needs."""
    if anew:
        shutil.rmtree(DIRECTORY, ignore_errors=True)
    for name in _COPIED:
        source, target = CHECKOUT / name, DIRECTORY / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        else:
            shutil.copy2(source, target)
    with (DIRECTORY / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write(_CONFIGURATION.format(tests=json.dumps(tests_of_checks())))


def mutmut(*arguments: str, seconds: float | None = None, show: bool = False) -> str:
    """Run mutmut in the copy and return what it prints; after so many seconds it is told to stop."""
    command = [str(Path(sys.executable).with_name("mutmut")), *arguments]
    process = subprocess.Popen(
        command,
        cwd=DIRECTORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": ""},
    )
    with process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate()
        except BaseException:
            process.send_signal(signal.SIGINT)
            raise
    if show:
        print(output[-500:])
    return output


def exit_codes() -> dict[str, int | None]:
    """Return mutmut's results: the exit code of the tests by the name of the mutant, None if it was not tried."""
    found: dict[str, int | None] = {}
    for path in sorted((DIRECTORY / "mutants").rglob("*.meta")):
        found.update(json.loads(path.read_text("utf-8"))["exit_code_by_key"])
    return found


def forget(names: Iterable[str]) -> None:
    """Let mutmut forget the results of mutants."""
    chosen = set(names)
    for path in sorted((DIRECTORY / "mutants").rglob("*.meta")):
        values = json.loads(path.read_text("utf-8"))
        values["exit_code_by_key"] |= dict.fromkeys(chosen & values["exit_code_by_key"].keys())
        path.write_text(json.dumps(values, indent=4), "utf-8")


def tested_functions() -> set[str]:
    """Return the functions that a test has run, by mutmut's names."""
    tests = json.loads(STATISTICS.read_text("utf-8"))["tests_by_mangled_function_name"]
    return {function for function, names in tests.items() if names}


def function_of(name: str) -> str:
    """Return mutmut's name of the function of a mutant."""
    return name.rpartition("__mutmut_")[0]


def draw(seed: int, count: int, others: set[str]) -> PythonRun:
    """Draw a sample of the mutants of tested functions that no other sample has."""
    names, tested = sorted(exit_codes()), tested_functions()
    by_file: dict[str, list[str]] = {}
    for name in names:
        by_file.setdefault(PythonMutant(name).file, []).append(name)
    files = {
        file: FileCounts(
            len({function_of(name) for name in own}),
            len({function_of(name) for name in own} & tested),
            len(own),
            sum(function_of(name) in tested for name in own),
        )
        for file, own in by_file.items()
    }
    left = [name for name in names if function_of(name) in tested and name not in others]
    chosen = Random(seed).sample(left, min(count, len(left)))
    version = mutmut("--version").split()[-1]
    mutants = tuple(PythonMutant(name) for name in chosen)
    return PythonRun(seed, checked_out(), f"mutmut {version}", files, len(others), mutants)


def described(mutant: PythonMutant, code: int | None) -> PythonMutant:
    """Return a mutant with its outcome."""
    status = _STATUS.get(code, "time limit or crash")
    if status in ("caught", NOT_TRIED):
        return replace(mutant, status=status)
    diff = mutmut("show", mutant.name)
    changed = {sign: re.findall(rf"^\{sign}(?!{re.escape(sign * 2)})(.*)$", diff, re.MULTILINE) for sign in "-+"}
    before, after = "\n".join(changed["-"]), "\n".join(changed["+"])
    if mutant.before and (before, after) != (mutant.before, mutant.after):
        raise SystemExit(
            f"{mutant.name}: found the change {after!r}, expected {mutant.after!r}: the function is another"
        )
    return replace(mutant, status=status, before=before, after=after)


def once_more(run: PythonRun) -> PythonRun:
    """Return the run with its survivors to be tried again."""
    survived = {mutant.name for mutant in run.mutants if mutant.status not in ("caught", NOT_TRIED)}
    commit = checked_out()
    mutants = tuple(
        replace(mutant, status=NOT_TRIED, again=commit) if mutant.name in survived else mutant for mutant in run.mutants
    )
    return replace(run, mutants=mutants)


def try_left(run: PythonRun, seconds: float) -> PythonRun:
    """Try the mutants that were not tried, as many as fit into a time, and return the run with their outcomes."""
    codes = exit_codes()
    untried = [mutant.name for mutant in run.mutants if mutant.status == NOT_TRIED]
    gone = [name for name in untried if name not in codes]
    if gone:
        raise SystemExit(f"{', '.join(gone)}: the sources have changed, and mutmut makes no such mutants of them")
    left = [name for name in untried if codes[name] is None]
    if left:
        limit = None if seconds == float("inf") else max(seconds, 1)
        mutmut("run", "--max-children", "1", *left, seconds=limit, show=True)
        codes = exit_codes()
    mutants = (described(one, codes[one.name]) if one.status == NOT_TRIED else one for one in run.mutants)
    return replace(run, mutants=tuple(mutants))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.generated.python_checks", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the sample; default 1")
    parser.add_argument("--count", type=int, default=240, help="how many mutants; default 240")
    parser.add_argument("--resume", action="store_true", help="go on in .cache/mutmut instead of beginning anew")
    parser.add_argument("--again", action="store_true", help="try the survivors once more with this checkout's tests")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time; --resume goes on")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM; --resume goes on"))
    path = results_of(options.seed)
    run = read_run(path)
    if run and not options.resume and not options.again:
        parser.error(f"{path} has results already: go on with --resume, or remove it")
    if run is None and options.again:
        parser.error(f"{path}: no such file, expected results whose survivors are to be tried")
    prepare(anew=not options.resume)
    if run is None or options.again or not STATISTICS.exists():
        mutmut("run", "--max-children", "1", _FEW, show=True)
    if run is None:
        others = filter(None, map(read_run, path.parent.glob("python-*.json")))
        run = draw(options.seed, options.count, {mutant.name for other in others for mutant in other.mutants})
        forget(mutant.name for mutant in run.mutants)
    elif options.again:
        run = once_more(run)
        forget(mutant.name for mutant in run.mutants if mutant.status == NOT_TRIED)
    write_run(run, path)
    run = try_left(run, deadline - time.monotonic())
    write_run(run, path)
    print(Counter(mutant.status for mutant in run.mutants))


if __name__ == "__main__":
    main()
