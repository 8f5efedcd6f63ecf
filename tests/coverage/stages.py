"""What is run to measure coverage: stages, each cut into parts that take minutes and are measured one by one."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starpullm.golden.records import shipped_record
from starpullm.pytest_plugin.options import DEFAULT_RECORDS, DEFAULT_RECORDS_OF_RANKS, PARITY_RECORDS_OF_RANKS

PYTHON: Final = (sys.executable, "-P")

_SLOW_SECONDS: Final = 600
"""Time limit of a check: the kernels are compiled with little optimisation, and count their branches."""

_RECORDS: Final = DEFAULT_RECORDS
_OF_RANKS: Final = [name for name in DEFAULT_RECORDS_OF_RANKS if shipped_record(name).batch_size % 2 == 0]
_THRESHOLDS: Final = " or ".join(PARITY_RECORDS_OF_RANKS)
_PARITY_RECORDS: Final = ("tiny or odd or single", "small", "deep", "ragged", "long", "wide")
_KERNELS: Final = {"matmul": "matmul", "attention": "attention", "others": "not matmul and not attention"}
_CTESTS: Final = ("kernels", "libm", "files", "training_state", "instrument", "training", "allocation", ".*_unknown")


@dataclass(frozen=True)
class Part:
    """One run of tests, with the counters of the library at zero before it.

    Parameters
    ----------
    stage, name
        The stage that it is a part of; its own name, which no other part has.
    command
        What is run.
    """

    stage: str
    name: str
    command: tuple[str, ...]


TITLES: Final = {"suite": "suite", "ranks": "2 ranks", "ctest": "ctests"}
"""The stages, in the order in which the table adds them."""


def parts(build: Path) -> tuple[Part, ...]:
    """Return the parts of all stages; they use the library in the folder ``build``."""
    return (
        *(Part("suite", f"suite-{name}", (*PYTHON, *suite(build, *arguments))) for name, arguments in _suite_parts()),
        *(
            Part("ranks", f"ranks-{name}", (*_MPIRUN, *PYTHON, *suite(build, "", records), "--with-mpi"))
            for name, records in (*zip(_OF_RANKS, _OF_RANKS, strict=True), ("thresholds", _THRESHOLDS))
        ),
        Part("ranks", "ranks-interface", (*_MPIRUN, *PYTHON, *suite(build, "interface"), "--with-mpi")),
        *(
            Part("ctest", f"ctest-{name.strip('.*_')}", ("ctest", *_CTEST, "--test-dir", str(build), "-R", f"^{name}$"))
            for name in _CTESTS
        ),
    )


_MPIRUN: Final = ("mpirun", "-n", "2", "--oversubscribe")
_CTEST: Final = ("--output-on-failure", "--no-tests=error", "--timeout", "1500")


def _suite_parts() -> list[tuple[str, tuple[str, str]]]:
    by_record = [
        (f"{family}-{record}", (family, f"{record} and not perturbation"))
        for family in ("dependencies", "reduction")
        for record in _RECORDS
    ]
    return [
        *((f"parity-{records.partition(' ')[0]}", ("parity", records)) for records in _PARITY_RECORDS),
        *by_record,
        *((f"perturbation-{record}", ("dependencies", f"perturbation and {record}")) for record in _RECORDS[:2]),
        *((family, (family, "")) for family in ("memory", "interface", "scenario")),
        *((f"kernels-{name}", ("kernels", chosen)) for name, chosen in _KERNELS.items()),
    ]


def suite(build: Path, family: str = "", chosen: str = "") -> tuple[str, ...]:
    """Return the arguments of Python that run a family of checks (empty: all), or what ``-k`` chooses of them."""
    marked = ("-m", f"starpullm_{family}") if family else ()
    names = ("-k", chosen) if chosen else ()
    library = ("--starpullm-library", str(library_in(build)), "--starpullm-time-limit", str(_SLOW_SECONDS))
    return ("-m", "pytest", "-q", "--pyargs", "starpullm.suite", "-p", "no:cacheprovider", *marked, *names, *library)


def library_in(build: Path) -> Path:
    """Return the library that a build has made."""
    return build / "libstarpullm.so"
