"""The log of the probe: what the tasks of one process did, as `native/probe/log_format.h` lays it out."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from starpullm.binding.declarations import source
from starpullm.errors import FormatError
from starpullm.files.header import file_size, reading

_STREAMS: Final = ("names", "handles", "tasks", "accesses", "events", "hashes", "contents")


def _types() -> dict[str, np.dtype[np.void]]:
    """Return the types of the header and of a record of each stream, as the structs declare them."""
    text = source("log_format.h", "probe").replace("PROBE_STREAMS]", f"{len(_STREAMS)}]")
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    types = {}
    for name, members in re.findall(r"struct probe_(\w+) \{(.*?)\n\};", text, re.DOTALL):
        fields = []
        for kind, declared in re.findall(r"(\w+) ([^;]+);", members):
            for member, count in re.findall(r"(\w+)(?:\[(\d+)\])?", declared):
                if kind == "char":
                    fields.append((member, f"S{count}"))
                else:
                    fields.append((member, kind.removesuffix("_t"), *([int(count)] if count else [])))
        types[name] = np.dtype(fields)
    return types


HEADER, *_RECORDS = _types().values()
RECORDS: Final = dict(zip(_STREAMS, _RECORDS, strict=True))
MAGIC: Final = b"STPPROBE"
FORMAT: Final = 7

NO_CODELET, NOWHERE, INTERNAL, ACQUIRE, LAST = 1, 2, 4, 8, 32
NO_ORDER, ORDERED = 1, 2
READY, START, END = 1, 2, 3
WAS_FILLED = 1 << 63
"""Of a hash's ``poison_left``: there was something else than zeros where a task has left poison."""
BEFORE, AFTER, RETURNED = 1, 2, 3
ON_DEVICE = 16
"""Added to the number of an implementation for devices."""

ENDED_BY_ITSELF, ENDED_BY_SIGNAL = 1, 2
"""Of the header's ``ended``; 0 if the process was ended without a word."""

# StarPU's access modes.
MODE_READ, MODE_WRITE, MODE_SCRATCH, MODE_REDUX, MODE_COMMUTE = 1, 2, 4, 8, 16


@dataclass(frozen=True, eq=False)
class ProbeLog:
    """What a process recorded, up to its end or to the moment at which it was killed.

    The arrays are structured, one entry a record, with the members of the structs in ``log_format.h``. Tasks are in the
    order of submission, events and hashes in the order of time. Times are in nanoseconds of the monotonic clock.
    """

    folder: Path
    header: np.void
    names: tuple[str, ...]
    handles: NDArray[np.void]
    tasks: NDArray[np.void]
    accesses: NDArray[np.void]
    events: NDArray[np.void]
    hashes: NDArray[np.void]
    contents: NDArray[np.void]
    stack: str
    """Of a fatal signal: one line for each frame."""

    @property
    def starpu_version(self) -> str:
        """The version of the StarPU that the program ran on."""
        return ".".join(str(number) for number in self.header["starpu_version"])

    @cached_property
    def task_of_access(self) -> NDArray[np.int64]:
        """The task of each access."""
        return np.repeat(np.arange(len(self.tasks)), self.tasks["num_accesses"].astype(np.int64))

    @cached_property
    def raced_handles(self) -> NDArray[np.bool_]:
        """Whether threads submitted accesses of each handle at once, so that StarPU's order may not be the log's."""
        threads, submitted = self.tasks["thread"], self.tasks["submit_ns"].astype(np.int64)
        result = np.zeros(len(self.handles), bool)
        if (threads == threads[:1]).all():
            return result
        # StarPU has a task before its thread submits the next one, and before the task is ready or starts.
        has = np.full(len(threads), np.iinfo(np.int64).max)
        order = np.argsort(threads, kind="stable")
        is_next = np.flatnonzero(threads[order][1:] == threads[order][:-1])
        has[order[is_next]] = submitted[order[is_next + 1]]
        for times in (self.times(READY), self.times(START)):
            has = np.where(times >= 0, np.minimum(has, times), has)
        latest: dict[int, dict[tuple[int, bool], int]] = {}  # by handle: by thread and whether it writes
        task, writes = self.task_of_access, (self.accesses["mode"] & (MODE_WRITE | MODE_REDUX)) != 0
        counts = (self.tasks["flags"][task] & INTERNAL) == 0  # StarPU orders its own by itself
        columns = self.accesses["handle"], writes, threads[task], submitted[task], has[task]
        accesses = zip(*(column[counts].tolist() for column in columns), strict=True)
        for handle, does_write, thread, since, until in accesses:
            others = {key: had for key, had in latest.get(handle, {}).items() if had > since}
            result[handle] |= any(other != thread and (wrote or does_write) for other, wrote in others)
            latest[handle] = {**others, (thread, does_write): until}
        return result

    def hashes_of_accesses(self, time: int) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """Return the hash of each access, `BEFORE` or `AFTER` its task, and whether there is one."""
        return self._of_accesses("hash", time)

    def poison_left(self, time: int) -> NDArray[np.uint64]:
        """Return how many bytes of each access were poison, `BEFORE` or `AFTER` its task; with `WAS_FILLED`."""
        return self._of_accesses("poison_left", time)[0]

    def _of_accesses(self, member: str, time: int) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        values, known = np.zeros(len(self.accesses), np.uint64), np.zeros(len(self.accesses), bool)
        mine = self.hashes[self.hashes["time"] == time]
        index = (self.tasks["first_access"][mine["task"]] + mine["access"]).astype(np.int64)
        values[index], known[index] = mine[member], True
        return values, known

    @cached_property
    def _place_of_contents(self) -> dict[int, tuple[int, int]]:
        columns = (self.contents[member].tolist() for member in ("hash", "offset", "bytes"))
        return {value: (offset, size) for value, offset, size in zip(*columns, strict=True)}

    def bytes_of(self, contents: int) -> bytes | None:
        """Return contents by their hash: the bytes of their elements; None if they weren't recorded."""
        if contents not in self._place_of_contents:
            return None
        offset, size = self._place_of_contents[contents]
        with reading(self.folder / "bytes") as (file, _):
            if (length := file_size(file)) < offset + size:
                raise FormatError(f"{self.folder}/bytes: found {length} bytes, expected {offset + size}")
            file.seek(offset)
            return file.read(size)

    def are_mapped(self, addresses: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which numbers were addresses of mapped memory when contents were recorded."""
        with reading(self.folder / "maps") as (file, _):
            ranges = {line.split()[0] for line in file.read().splitlines()}
        pairs = sorted(tuple(int(end, 16) for end in pair.split(b"-")) for pair in ranges)
        starts, ends = np.array([(0, 0), *pairs], np.uint64).T
        return np.asarray(addresses < ends[np.searchsorted(starts, addresses, "right") - 1])

    def times(self, kind: int) -> NDArray[np.int64]:
        """Return when each task was ready, started or ended; -1 if it never was."""
        return self.of_tasks("time_ns", kind)

    @cached_property
    def workers(self) -> NDArray[np.int64]:
        """The worker on which each task ran; -1 if it never started."""
        return self.of_tasks("worker", START)

    def of_tasks(self, member: str, kind: int) -> NDArray[np.int64]:
        """Return a member of each task's event of a kind; -1 if there is none."""
        values = np.full(len(self.tasks), -1, np.int64)
        mine = self.events[self.events["kind"] == kind]
        values[mine["task"].astype(np.int64)] = mine[member]
        return values


def read_probe_log(folder: Path) -> ProbeLog:
    """Read a log, also of a process that was killed."""
    header = _read_header(folder / "header")
    arrays = {
        name: _read_stream(folder / name, RECORDS[name], int(count))
        for name, count in zip(_STREAMS, header["counts"], strict=True)
    }
    with reading(folder / "stack") as (file, _):
        stack = file.read().decode(errors="replace")
    names = tuple(text.decode(errors="replace") for text in arrays.pop("names")["text"].tolist())
    log = ProbeLog(folder=folder, header=header, names=names, stack=stack, **arrays)
    return _checked(log)


def _read_header(path: Path) -> np.void:
    with reading(path) as (file, _):
        content = file.read(HEADER.itemsize)
    if len(content) < HEADER.itemsize:
        raise FormatError(f"{path}: found {len(content)} bytes, expected at least {HEADER.itemsize}")
    header: np.void = np.frombuffer(content, HEADER)[0]
    if header["magic"] != MAGIC:
        raise FormatError(f"{path}: found magic {bytes(header['magic'])!r}, expected {MAGIC!r}: not a log of the probe")
    if header["format"] != FORMAT:
        raise FormatError(f"{path}: found format {header['format']}, expected {FORMAT}")
    return header


def _read_stream(path: Path, dtype: np.dtype[np.void], count: int) -> NDArray[np.void]:
    with reading(path) as (file, _):
        # Before NumPy allocates memory for so many: a damaged header counts more than any machine can hold.
        found = file_size(file) // dtype.itemsize
        if found < count:
            raise FormatError(f"{path}: found {found} records, expected the {count} that the header counts")
        return np.fromfile(file, dtype, count)


def _checked(log: ProbeLog) -> ProbeLog:
    """Drop accesses of a task that was cut off, and refuse records that refer to what isn't there."""
    ends = log.tasks["first_access"] + log.tasks["num_accesses"]
    used = int(ends[-1]) if len(ends) else 0
    if len(log.tasks) and (
        int(log.tasks["first_access"][0]) != 0 or (ends[:-1] != log.tasks["first_access"][1:]).any()
    ):
        raise FormatError(f"{log.folder}/tasks: the accesses of the tasks don't follow each other")
    limits = (
        ("tasks", "codelet", log.tasks["codelet"], len(log.names)),
        ("tasks", "name", log.tasks["name"], len(log.names)),
        ("accesses", "handle", log.accesses["handle"][:used], len(log.handles)),
        ("events", "task", log.events["task"], len(log.tasks)),
        ("hashes", "task", log.hashes["task"], len(log.tasks)),
        ("header", "signal_task", log.header["signal_task"].reshape(1), len(log.tasks) + 1),
    )
    for stream, member, values, limit in limits:
        if len(values) and int(values.max()) >= limit:
            raise FormatError(f"{log.folder}/{stream}: found {member} {values.max()}, expected less than {limit}")
    if used > len(log.accesses):
        raise FormatError(f"{log.folder}/accesses: found {len(log.accesses)} records, expected {used}")
    if (log.hashes["access"] >= log.tasks["num_accesses"][log.hashes["task"]]).any():
        raise FormatError(f"{log.folder}/hashes: found an access that its task doesn't have")
    if used < len(log.accesses):
        return replace(log, accesses=log.accesses[:used])
    return log
