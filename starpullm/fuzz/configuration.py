"""In what StarPU runs programs: its scheduler, workers and memory, drawn or chosen."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from random import Random
from typing import Self

from starpullm.errors import InvalidArgumentError

_OF_COMPONENTS = ("modular-prio", "modular-prio-prefetching", "modular-random-prio")
SCHEDULERS = ("lws", "eager", "prio", "ws", "dmda", "dmdas", "dmdar", "peager", *_OF_COMPONENTS)
MAX_WORKERS = 8
_DISK_UNIT = 4096
"""Numbers in an element when data must not fit into memory."""
_DISK_MEMORY, _DISK_SIZE = 2, 64
"""MiB; StarPU takes no disk that is smaller than 16 MiB."""


@dataclass(frozen=True)
class Configuration:
    """As ``--configuration`` takes it, by the names of the fields: ``scheduler=lws,workers=3,perturb=7``."""

    scheduler: str = "lws"
    workers: int = 2
    nodes: int = 1
    """NUMA nodes of a synthetic topology; 2 isn't drawn: 1.4.10 may fail with it."""
    disk: int = 0
    """1: memory for data is limited, and a disk takes what doesn't fit. It isn't drawn: 1.4.10 may hang with it."""
    ranks: int = 1
    """Processes, each with these workers; more than one aren't drawn, as they may not be there."""
    parallel_workers: int = 0
    """1: programs of one rank also make parallel workers. It isn't drawn: 1.4.10 may hang with them."""
    perturb: int = 0
    """Seed of the times for which StarPU's threads are stopped; 0: none."""

    def __str__(self) -> str:
        return ",".join(f"{name}={value}" for name, value in asdict(self).items())

    @property
    def unit(self) -> int:
        """Numbers in an element of a program's data."""
        return _DISK_UNIT if self.disk else 1

    def environment(self, directory: Path) -> dict[str, str]:
        """Return the variables that make StarPU run so; the directory takes what StarPU stores."""
        variables = {
            "STARPU_SCHED": self.scheduler,
            "STARPU_NCPU": str(self.workers),
            "STARPU_WORKERS_NOBIND": "1",
            "HWLOC_SYNTHETIC": f"numa:{self.nodes} core:{-(-self.workers // self.nodes)} pu:1",
            "STARPU_HOME": str(directory),
            "STARPU_HOSTNAME": f"fuzz-{self.nodes}",
            "STARPU_SILENT": "1",
            "STARPU_CATCH_SIGNALS": "0",
            "OMP_WAIT_POLICY": "passive",  # threads of parallel workers that spin would have all processors
        }
        if self.nodes > 1:
            variables["STARPU_USE_NUMA"] = "1"
        if self.disk:
            variables |= {
                "STARPU_LIMIT_CPU_MEM": str(_DISK_MEMORY),
                "STARPU_DISK_SWAP": str(directory / "disk"),
                "STARPU_DISK_SWAP_BACKEND": "unistd",
                "STARPU_DISK_SWAP_SIZE": str(_DISK_SIZE),
            }
        if self.perturb:
            variables |= {"LD_PRELOAD": str(directory / "perturb.so"), "STARPULLM_PERTURB": str(self.perturb)}
            # glibc overwrites what is freed, so that its use shows; memory that a thread keeps for itself it doesn't.
            variables |= {"MALLOC_PERTURB_": "165", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
        return variables

    @classmethod
    def drawn(cls, seed: int, chosen: str) -> Self:
        """Return a configuration by a seed, with what is chosen; an `InvalidArgumentError` if that can't be had."""
        random, values = Random(seed), _parse(chosen)
        drawn = cls(
            scheduler=random.choice(SCHEDULERS),
            workers=random.randint(1, MAX_WORKERS),
            # Always: idle workers and StarPU-MPI's thread poll, and keep cores and locks from others if never stopped.
            perturb=seed or 1,
        )
        return replace(drawn, **values)  # type: ignore[arg-type]


def _parse(text: str) -> dict[str, str | int]:
    names = [field.name for field in fields(Configuration)]
    limits = {"workers": (1, MAX_WORKERS), "nodes": (1, 2), "disk": (0, 1), "ranks": (1, 4)}
    limits |= {"parallel_workers": (0, 1), "perturb": (0, 1 << 62)}
    values: dict[str, str | int] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if name not in names or not equals:
            raise InvalidArgumentError(f'configuration: found "{part}", expected {", ".join(names)} with a value each')
        if name in limits:
            low, high = limits[name]
            if not value.isdecimal() or not low <= int(value) <= high:
                raise InvalidArgumentError(f'configuration: {name}: found "{value}", expected {low} to {high}')
        values[name] = int(value) if name in limits else value
    return values
