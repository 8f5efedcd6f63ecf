"""StarPU's own examples and tests, as evaluation/probe/build_examples.sh built them: names, commands, and sources."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from starpullm.binding.library import ENVIRONMENT_VARIABLE
from starpullm.machine import inspect_machine
from starpullm.processes.mpirun import mpirun_here

CHECKOUT = Path(__file__).parents[2]
EXAMPLES = CHECKOUT / ".cache" / "starpu-examples"
SOURCE = EXAMPLES / "work" / "source"
BUILD = EXAMPLES / "build"

RANKS: Mapping[str, int] = {"mpi/comm": 4, "mpi/mpi_redux/mpi_redux_tree": 4, "mpi": 2, "stencil": 2}
"""How many ranks run programs whose name begins so; others are no MPI programs. The first entry that fits counts."""

# Smaller than their own defaults, also those of --enable-quick-check, so that all of them take minutes, and the ways
# through a program that its test script takes.
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "cholesky/cholesky_grain_tag": ("-size", "256", "-nblocks", "8", "-nbigblocks", "4"),
    "cholesky/cholesky_implicit": ("-size", "256", "-nblocks", "8"),
    "cholesky/cholesky_tag": ("-size", "256", "-nblocks", "8"),
    "cholesky/cholesky_tile_tag": ("-size", "256", "-nblocks", "8"),
    "heat/heat": ("-shape", "0", "-nthick", "34", "-ntheta", "34", "-nblocks", "4"),
    "lu/lu_example_double": ("-size", "256", "-nblocks", "8"),
    "lu/lu_example_float": ("-size", "256", "-nblocks", "8"),
    "lu/lu_implicit_example_double": ("-size", "256", "-nblocks", "8"),
    "lu/lu_implicit_example_float": ("-size", "256", "-nblocks", "8"),
    "mandelbrot/mandelbrot": ("-width", "64", "-height", "64", "-nblocks", "4", "-niter", "500", "-no-x11"),
    "mpi/matrix_decomposition/mpi_cholesky": ("-size", "192", "-nblocks", "6"),
    "mpi/matrix_decomposition/mpi_cholesky_distributed": ("-size", "192", "-nblocks", "6"),
    "mpi/matrix_mult/mm_2dbc": ("64", "64", "64", "16", "2", "1", "1"),
    "mpi/mpi_lu/plu_example_double": ("-size", "192", "-nblocks", "6", "-p", "2", "-q", "1"),
    "mpi/mpi_lu/plu_example_float": ("-size", "192", "-nblocks", "6", "-p", "2", "-q", "1"),
    "mpi/mpi_lu/plu_implicit_example_double": ("-size", "192", "-nblocks", "6", "-p", "2", "-q", "1"),
    "mpi/mpi_lu/plu_implicit_example_float": ("-size", "192", "-nblocks", "6", "-p", "2", "-q", "1"),
    "mpi/mpi_lu/plu_outofcore_example_double": ("-size", "192", "-nblocks", "6", "-p", "2", "-q", "1"),
    "mpi/mpi_lu/plu_outofcore_example_float": ("-size", "192", "-nblocks", "6", "-p", "2", "-q", "1"),
    "mpi/stencil/stencil5": ("-iter", "4"),
    "mpi/stencil/stencil5_lb": ("-iter", "4"),
    "pi/pi": ("-ntasks", "16", "-nshot", "10000"),
    "pi/pi_redux": ("-ntasks", "32", "-nshot", "10000"),
    "spmv/spmv": ("-size", "4096", "-nblocks", "8"),
}

VARIANTS: Mapping[str, tuple[str, ...]] = {
    "cholesky/cholesky_implicit -commute": ("-size", "256", "-nblocks", "8", "-commute"),
    "heat/heat -cg": ("-cg", "-nthick", "18", "-ntheta", "18"),
    "lu/lu_implicit_example_float -piv": ("-size", "256", "-nblocks", "8", "-piv"),
    "lu/lu_example_float -piv": ("-size", "256", "-nblocks", "8", "-piv"),
    "lu/lu_implicit_example_float -no-stride": ("-size", "256", "-nblocks", "8", "-no-stride"),
}
"""Other ways through a program, by its name and a word."""

CLOCKED = ("lu/", "mpi/mpi_lu/", "mpi/stencil/")
"""Their input is made from the time. They run with a clock that stands still."""
_CLOCK = EXAMPLES / "constant_clock.so"

LEFT_OUT = ("loader", "stencil/loader", "mpi/loader", "mpi/cg/cg", "tests/loader", "mpi/tests/loader")
"""Helpers of StarPU's `make check`, which use no StarPU, and a program that hangs without the probe, too, on 2 ranks.

The benchmarks below mpi/benchs are left out, too: they measure by the clock.
"""


@dataclass(frozen=True)
class Example:
    """A program, and how it is started."""

    name: str
    path: Path
    arguments: tuple[str, ...]

    @property
    def ranks(self) -> int:
        """How many ranks it is started as; 0: not under mpirun."""
        return next((ranks for start, ranks in RANKS.items() if self.name.startswith(start)), 0)

    def command(self, path: Path | None = None) -> list[str]:
        """Return the command line of the program, or of one compiled from its changed source."""
        launcher = mpirun_here(self.ranks, (), os.environ.get("PATH")) if self.ranks else []
        clock = ["env", f"LD_PRELOAD={_CLOCK}"] if self.name.startswith(CLOCKED) else []
        return [*launcher, *clock, str(path or self.path), *self.arguments]

    @property
    def folder(self) -> Path:
        """Where its Makefile is."""
        folder = self.path.parents[1]
        while not (folder / "Makefile").exists():
            folder = folder.parent
        return folder

    def sources(self) -> list[Path]:
        """Return the C sources that the program is linked from, without those of libraries."""
        target = str(self.path.parents[1].relative_to(self.folder) / self.path.name)
        canonical = re.sub(r"\W", "_", target)
        run = subprocess.run(
            ["make", "-s", "-C", self.folder, f"--eval=say:;@echo $({canonical}_OBJECTS)", "say"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        root = SOURCE / self.folder.relative_to(BUILD)
        found = []
        for name in run.stdout.split():
            path = Path(os.path.normpath(root / name)).with_suffix(".c")
            # An object of a target with flags of its own is called TARGET-SOURCE.o.
            plain = path.with_name(path.name.removeprefix(f"{self.path.name}-"))
            found.append(path if path.is_file() else plain)
        return [path for path in found if path.is_file()]


def examples(kind: str = "examples") -> Iterator[Example]:
    """Yield the built examples, or the tests, in the order of their names."""
    found = []
    of_kind = "" if kind == "examples" else f"{kind}/"
    for folder, prefix in ((BUILD / kind, of_kind), (BUILD / "mpi" / kind, f"mpi/{of_kind}")):
        for path in folder.glob("**/.libs/*"):
            name = prefix + str(path.parents[1].relative_to(folder) / path.name)
            is_program = path.is_file() and os.access(path, os.X_OK) and ".so" not in path.name
            if is_program and name not in LEFT_OUT and not name.startswith("mpi/benchs/"):
                found.append(Example(name, path, ARGUMENTS.get(name, ())))
                found += [
                    Example(variant, path, arguments)
                    for variant, arguments in VARIANTS.items()
                    if variant.partition(" ")[0] == name
                ]
    yield from sorted(found, key=lambda example: example.name)


def prepare_environment() -> Path:
    """Set what all runs have in common, variables and folder, and return the prefix of the StarPU that they run on."""
    # `python -m` imports starpullm from the checkout, where it has no library; that of the installed package serves.
    installed = Path(sysconfig.get_path("platlib"), "starpullm", "lib", "libstarpullm.so")
    os.environ.setdefault(ENVIRONMENT_VARIABLE, str(installed))
    prefix = Path(inspect_machine()["starpu_prefix"])
    os.environ["LD_LIBRARY_PATH"] = f"{prefix}/lib"
    os.environ["STARPU_HOME"] = str(EXAMPLES / "home")
    os.environ["STARPU_SILENT"] = "1"
    # A BLAS with threads of its own would take cores from the workers.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    (EXAMPLES / "home").mkdir(parents=True, exist_ok=True)
    leavings = EXAMPLES / "leavings"
    leavings.mkdir(exist_ok=True)
    os.chdir(leavings)  # some programs write files into the folder where they run
    source = CHECKOUT / "tests" / "probe" / "programs" / "constant_clock.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", _CLOCK, source], check=True)
    return prefix


def lock_results() -> None:
    """Keep other processes from writing results until this one ends."""
    lock = os.open(EXAMPLES / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SystemExit(f"{EXAMPLES}: another process probes these examples, expected to be the only one") from None
