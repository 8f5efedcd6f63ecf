"""The memory that a process may still take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

_GROUPS = Path("/sys/fs/cgroup")
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")
_VERSION_2 = ("memory.max", "memory.current")


def available_memory(comm: Comm | None = None) -> int:
    """Return the bytes that the machine and this process's control groups leave to it; 0 if that isn't known.

    Free swap and files that the kernel can drop count as available. Ranks of one machine, all of which have to call
    this, share them equally.
    """
    left = [_machine(), *_control_groups()]
    ranks = 1
    if comm:
        from mpi4py.MPI import COMM_TYPE_SHARED

        neighbours = comm.Split_type(COMM_TYPE_SHARED)
        ranks = neighbours.Get_size()
        neighbours.Free()
    return min((size for size in left if size), default=0) // ranks


def _machine() -> int:
    with suppress(OSError, KeyError):
        fields = _numbers(Path("/proc/meminfo").read_text(), ":")
        return 1024 * (fields["MemAvailable"] + fields["SwapFree"])
    return 0


def _control_groups() -> Iterator[int]:
    """Yield what each group with a limit leaves, from this process's up to the root, of either version."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root = _GROUPS / "memory" if controllers else _GROUPS
            names = _VERSION_1 if controllers else _VERSION_2
            own = root / path.lstrip("/")
            for folder in (own, *own.parents)[: len(own.relative_to(root).parts) + 1]:
                with suppress(OSError, ValueError):
                    limit, used = (int((folder / name).read_text()) for name in names)
                    files = _numbers((folder / "memory.stat").read_text())
                    droppable = files.get("total_inactive_file", files.get("inactive_file", 0))
                    yield max(limit - used + droppable, 1)


def _numbers(text: str, separator: str | None = None) -> dict[str, int]:
    """Return the numbers of a text of the kernel's with a name and a number a line."""
    pairs = (line.split(separator, 1) for line in text.splitlines())
    return {name: int(value.split()[0]) for name, value in pairs}
