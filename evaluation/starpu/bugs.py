"""The bugs: commits of StarPU to take back, by their ids, and changes of single lines that a tool generates."""

from __future__ import annotations

import subprocess
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from evaluation.mutation.generated.candidates import Candidate, Stratum, candidates_of_file, shuffled

VERSION = "starpu-1.4.10"
"""The tag that everything is tried on."""

STRATA = {
    "dependencies": ("src/core/dependencies/*.c",),
    "core": ("src/core/jobs.c", "src/core/task.c", "src/core/workers.c", "src/core/sched_policy.c"),
    "datawizard": ("src/datawizard/*.c",),
    "parallel workers": ("src/parallel_worker/*.c",),
    "mpi": ("mpi/src/*.c",),
}
"""Files of StarPU whose lines are changed."""


class Bug(NamedTuple):
    """A bug: its kind, a name by which it is known, what is wrong in words, and the changed line of a mutant."""

    kind: str
    name: str
    wrong: str
    candidate: Candidate | None = None

    def is_run(self, lines: Sequence[tuple[str, int, bool]]) -> bool:
        """Return whether the changed line is run, or the one that it goes on or begins; a mend is taken to be."""
        if not self.candidate:
            return True
        begins_a_block = self.candidate.before.strip() == "{"
        near = bisect_right(lines, (self.candidate.file, self.candidate.line, True)) - (not begins_a_block)
        return 0 <= near < len(lines) and lines[near][0] == self.candidate.file and lines[near][2]

    def put_into(self, source: Path) -> bool:
        """Change the source; False if that is impossible."""
        if self.candidate:
            # In one line: assertions contain the numbers of the lines after it.
            self.candidate._replace(after=" ".join(self.candidate.after.splitlines())).apply(source)
            return True
        patch = git(source, "show", "--format=", "-R", self.name, "--", "src", "mpi/src")
        command = ["git", "-C", str(source), "apply", "--3way"]
        return subprocess.run(command, input=patch, text=True, capture_output=True, check=False).returncode == 0


def mends() -> Iterator[Bug]:
    """Yield those of the list."""
    for line in Path(__file__).with_name("mends.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            commit, _, rest = line.partition(" ")
            kind, _, wrong = rest.partition(": ")
            yield Bug(f"mends, {kind}", commit, wrong)


def mutants(source: Path, seed: int) -> Iterator[Bug]:
    """Yield generated bugs, one of each stratum in turn, in an order that the seed decides."""
    orders = []
    for stratum, patterns in STRATA.items():
        files = sorted(path for pattern in patterns for path in source.glob(pattern))
        found = [line for path in files for line in candidates_of_file(path, str(path.relative_to(source)))]
        orders.append([(stratum, candidate) for candidate in shuffled(found, seed, Stratum(stratum))])
    for round_of_strata in zip(*orders, strict=False):
        for stratum, candidate in round_of_strata:
            name = f"{candidate.file}:{candidate.line} {candidate.after.strip()}"
            yield Bug(f"mutants, {stratum}", name, candidate.rule, candidate)


def git(source: Path, *arguments: str) -> str:
    """Return what git writes."""
    return subprocess.run(["git", "-C", str(source), *arguments], capture_output=True, text=True, check=True).stdout
