"""The memory that a process may still take, and sizes as texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

from starpullm.errors import InvalidArgumentError

_GROUPS = "/sys/fs/cgroup"
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")
_VERSION_2 = ("memory.max", "memory.current")
_AVAILABLE, _SWAP = re.compile(rb"^MemAvailable:\s+(\d+)", re.M), re.compile(rb"^SwapFree:\s+(\d+)", re.M)
_DROPPABLE = re.compile(rb"^(?:total_)?inactive_file (\d+)", re.M)  # the total, if there is one, is the last


_SIZE, _UNITS = re.compile(r"([1-9][0-9]{0,17})([KMGT]?)(?:i?B)?"), "KMGT"


def bytes_of(option: str, size: int | str) -> int:
    """Return a size, as a number or a text such as ``12G`` or ``512MiB``, in bytes; units are powers of 1024.

    `InvalidArgumentError` is raised for another text.
    """
    match = _SIZE.fullmatch(str(size))
    if not match:
        raise InvalidArgumentError(f'{option}: found "{size}", expected a size such as 12G')
    return int(match[1]) << 10 * (_UNITS.find(match[2]) + 1 if match[2] else 0)


def available_memory() -> int:
    """Return the bytes that the machine and this process's control groups leave to it; 0 if that isn't known.

    Free swap and files that the kernel can drop count as available.
    """
    left = [_machine(), *_control_groups()]
    return min((size for size in left if size), default=0)


def _machine() -> int:
    with suppress(OSError):
        text = _read("/proc/meminfo")
        return 1024 * sum(int(match[1]) for match in (_AVAILABLE.search(text), _SWAP.search(text)) if match)
    return 0


def _control_groups() -> Iterator[int]:
    """Yield what each group with a limit leaves, from this process's up to the root, of either version."""
    with suppress(OSError):
        for line in _read("/proc/self/cgroup").decode().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root, names = (f"{_GROUPS}/memory", _VERSION_1) if controllers else (_GROUPS, _VERSION_2)
            while True:
                with suppress(OSError, ValueError):
                    limit, used = (int(_read(f"{root}{path}/{name}")) for name in names)
                    droppable = _DROPPABLE.findall(_read(f"{root}{path}/memory.stat"))
                    yield max(limit - used + (int(droppable[-1]) if droppable else 0), 1)
                if path in ("", "/"):
                    break
                path = path.rpartition("/")[0]


def _read(path: str) -> bytes:
    # Python keeps something of most text files that are opened, and far more of pathlib's.
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        return file.read()
