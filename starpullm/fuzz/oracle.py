"""The oracle: carries out a program's operations one after another, and says what each of them must see.

It takes any operations: one that isn't allowed where it stands becomes one that is, or nothing. So operations can be
left out of a program, and what is left is a program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partialmethod

VERSION = 1
"""Of the text of programs; as in native/fuzz/interpreter.c, which also says what an operation's numbers are."""

R, W, RW, SCRATCH, REDUX, MPI_REDUX, COMMUTE = "R", "W", "RW", "SCRATCH", "REDUX", "MPI_REDUX", "COMMUTE"
VARIABLE, VECTOR, MATRIX, SPARSE = range(4)
"""What is sparse keeps its structure: a task would have to write that too, so it only changes the content."""
_WAITABLE, _SYNCHRONOUS, _TAGGED, _WITHOUT_CONSISTENCY = 1, 2, 4, 8
_WAITED_BEFORE, _PARALLEL, _SYNCHRONOUS_SENDS = 16, 32, 64
_SEQUENTIAL, _WITHOUT_REDUCTION = 1, 2
_BY_OWNERS, _ON_NODE, _ON_DATA = range(3)
_AT_ONCE, _IN_CALLBACK, _HELD = range(3)
_MASK = (1 << 64) - 1
_MAX_TASKS, _MAX_HANDLES, _MAX_CHILDREN, _MAX_DEPTH, _MAX_CONTEXTS = 900, 240, 16, 3, 3

MODES = (R, RW, W, COMMUTE, R, RW, REDUX, W, R, RW, COMMUTE, REDUX)
"""A byte of an operation chooses one; the first is the simplest."""
_PRIORITIES = (0, 1, -1, 2, -2, (1 << 31) - 1, -(1 << 31))


def _mix(x: int, y: int) -> int:
    x = ((x ^ y) * 0x9E3779B97F4A7C15) & _MASK
    return x ^ x >> 29


@dataclass(eq=False)
class _Partition:
    parent: _Handle
    is_plan: bool
    """StarPU applies a plan when a task accesses parts or the whole; of one handle there may be several."""
    parts: list[_Handle] = field(default_factory=list)


@dataclass(eq=False)
class _Handle:
    number: int
    shape: tuple[int, int, int]
    """Kind, columns and rows."""
    places: list[int]
    """Of its elements among the values of the program; one without elements has a place for whether it is written."""
    home: int | None = 0
    """The rank where it has a home."""
    sequential: bool = True
    scratch: bool = False
    reducible: bool = True
    prefetched: bool = False
    part_of: _Partition | None = None
    partitions: list[_Partition] = field(default_factory=list)
    alive: bool = True
    owner: int = 0
    """The rank that has its content."""
    contributed: bool = False
    """Whether ranks may have contributions to a reduction that the owner hasn't."""
    reduced: bool = False
    """Whether StarPU may not have ended a reduction of it."""
    in_callback: bool = False
    """Whether a callback that has acquired it may not have run."""
    mode: str = R
    """Of the last access."""
    writer: list[int] = field(default_factory=list)
    readers: list[int] = field(default_factory=list)
    """Without sequential consistency: the last task that writes, and those that read since then."""

    @property
    def above(self) -> list[_Handle]:
        """Those of which it is a part."""
        return [self.part_of.parent, *self.part_of.parent.above] if self.part_of else []

    @property
    def in_plan(self) -> bool:
        """Whether it is a part of a plan, or has plans."""
        return any(partition.is_plan for partition in [*self.partitions, *filter(None, [self.part_of])])

    @property
    def ordered(self) -> bool:
        """Whether StarPU orders its accesses, and it has a content."""
        return self.sequential and not self.scratch

    @property
    def size(self) -> int:
        """Number of its elements."""
        return self.shape[1] * self.shape[2]

    @property
    def is_whole(self) -> bool:
        return self.alive and not self.part_of and not self.partitions


class Oracle:
    """A program under construction; `text` is complete after `end`."""

    def __init__(self, unit: int, ranks: int = 1) -> None:
        self._ranks = ranks
        self._modes = MODES if ranks == 1 else (*MODES[:-1], MPI_REDUX)
        self._lines = [[f"starpullm-fuzz {VERSION} {unit}"]]
        """Each with those before it of tasks that its callback submits."""
        self.tasks = 0
        self._handles: list[_Handle] = []
        self._values: list[int | None] = []
        self._held: list[_Handle] = []
        self._paused = False
        self._contexts: list[int] = []
        self._parallel = False
        """Whether a parallel task may not have ended."""
        self._in_parallel_workers = False
        """Whether StarPU gives tasks to parallel workers, one at a time to each."""
        self._waitable: list[int] = []
        self._parents: dict[int, tuple[int, list[str]]] = {}
        """Tasks whose callbacks may submit others, with their contexts and lines."""

    def text(self) -> str:
        """Return the program as the interpreter reads it."""
        return "\n".join([*(line for lines in self._lines for line in lines), "end", ""])

    # ---- What StarPU allows ----

    def _emit(self, *words: object, rank: int | None = None) -> None:
        """Add an operation, of one rank alone if it is named."""
        alone = [] if rank is None or self._ranks == 1 else [rank]
        self._lines.append([" ".join(map(str, [*alone, *words]))])

    def _new_number(self) -> int:
        self.tasks += 1
        return self.tasks - 1

    def _settle(self) -> None:
        """Let what blocks the program end: while it is paused or holds data, it may wait for nothing."""
        if self._paused:
            self._paused = False
            self._emit("resume")
        for handle in self._held:
            self._emit("release", handle.number, rank=handle.owner)
        self._held.clear()

    def _usable(self, byte: int, *, whole: bool = False, ordered: bool = False) -> _Handle | None:
        """Return a handle that can be accessed now; ``whole`` ones are also ordered, without parts, and not held."""
        handles = [handle for handle in self._handles if handle.alive and all(cut.is_plan for cut in handle.partitions)]
        if whole:
            handles = [handle for handle in handles if handle.is_whole and handle not in self._held]
        if whole or ordered:
            handles = [handle for handle in handles if handle.ordered]
        return handles[byte % len(handles)] if handles else None

    def _defined(self, handle: _Handle) -> bool:
        return all(self._values[place] is not None for place in handle.places)

    def _allowed(self, handle: _Handle, mode: str) -> str:
        """Return the mode, or the one in its place that the handle can be accessed in now."""
        if handle.scratch:
            return SCRATCH
        if not handle.sequential and mode in (COMMUTE, REDUX):
            return RW
        if handle.shape[0] == SPARSE and mode == W:
            return RW
        if not handle.reducible and mode in (REDUX, MPI_REDUX):
            mode = COMMUTE
        undefined = [self._values[place] is None for place in handle.places]
        if mode in (REDUX, MPI_REDUX) and handle.is_whole:
            return W if any(undefined) and not all(undefined) else mode
        # 1.4.10 may run two tasks at once that commute, if one of them ends a reduction.
        if mode in (REDUX, MPI_REDUX) or (mode == COMMUTE and handle.mode in (REDUX, MPI_REDUX)):
            mode = RW
        return W if any(undefined) else mode

    @staticmethod
    def _together(handle: _Handle, others: Sequence[_Handle]) -> bool:
        """Whether a task can access the handle beside others: not the same data, nor parts of different plans."""
        for other in others:
            if [handle, *handle.above][-1] is [other, *other.above][-1] and (handle.in_plan or other.in_plan):
                if handle.part_of is not other.part_of or handle is other:
                    return False
            elif not set(handle.places).isdisjoint(other.places):
                return False
        return True

    # ---- What operations do ----

    def _digest(self, handle: _Handle) -> int:
        places = handle.places[: handle.size]
        return sum((2 * i + 1) * (self._values[place] or 0) for i, place in enumerate(places)) & _MASK

    def _run(self, number: int, accesses: Sequence[tuple[_Handle, str]]) -> list[object]:
        """Carry out the accesses of a task; return handle, mode and expected digest of each."""
        words, read = list[object](), number
        for handle, mode in accesses:
            expected = self._digest(handle) if mode in (R, RW) else 0
            read = _mix(read, expected) if mode in (R, RW) else read
            words += [handle.number, mode, f"{expected:#x}"]
        for handle, mode in accesses:
            handle.mode = mode
            handle.contributed = mode in (REDUX, MPI_REDUX)
            handle.reduced |= handle.contributed
            for i, place in enumerate(handle.places):
                if mode in (REDUX, MPI_REDUX, COMMUTE):
                    self._values[place] = ((self._values[place] or 0) + read) & _MASK
                elif mode in (W, RW):
                    old = self._values[place] if mode == RW else 0
                    self._values[place] = _mix(old or 0, (read + i) & _MASK)
        return words

    def _dependencies(self, number: int, accesses: Sequence[tuple[_Handle, str]]) -> list[int]:
        """Return the tasks that a task must wait for where there is no sequential consistency."""
        tasks: list[int] = []
        for handle, mode in accesses:
            if not handle.sequential:
                tasks += handle.writer if mode == R else handle.writer + handle.readers
                if mode == R:
                    handle.readers.append(number)
                else:
                    handle.writer, handle.readers = [number], []
        return sorted(set(tasks) - {number})

    def _rank_of(self, accesses: Sequence[tuple[_Handle, str]], selection: int, drawn: int) -> int:
        """Return the rank that executes a task, as StarPU-MPI selects it."""
        if selection in (_ON_NODE, _ON_DATA):
            return drawn if selection == _ON_NODE else accesses[0][0].owner
        owners = {handle.owner for handle, mode in accesses if mode in (W, RW, COMMUTE, REDUX)}
        if len(owners) == 1:
            return owners.pop()
        moved = [0] * self._ranks
        for handle, mode in accesses:
            moved[handle.owner] += handle.size * ((mode in (R, RW, COMMUTE)) + (mode in (W, RW, COMMUTE)))
        return moved.index(max(moved))

    def task(self, r: bytes) -> None:
        """Submit a task, sometimes several alike, as readers or contributions to a reduction are."""
        for _ in range(1 + max(0, r[14] - 192) // 8):
            self._task(r[0], r[1:9], *r[9:14])

    def _task(self, count: int, chosen: bytes, kind: int, priority: int, where: int, how: int, pause: int) -> None:
        """Pairs of bytes choose handles and modes, the other bytes how the task is submitted."""
        accesses: list[tuple[_Handle, str]] = []
        by_callback = kind >= 225 and self._parents
        for byte, mode in zip(chosen[: 2 + 2 * (count % 4) : 2], chosen[1::2], strict=False):
            handle = self._usable(byte)
            if handle is None or (by_callback and handle.ordered):
                continue
            wanted = handle, self._allowed(handle, self._modes[mode % len(MODES)])
            twice = wanted[1] == R and wanted in accesses and not handle.in_plan and self._ranks == 1
            if twice or self._together(handle, [other for other, _ in accesses]):
                accesses.append(wanted)
        if self.tasks >= _MAX_TASKS or not accesses:
            return
        parent = list(self._parents)[how % len(self._parents)] if by_callback else -1
        flags = _WAITABLE * (140 <= kind < 180) | _SYNCHRONOUS * (180 <= kind < 190)
        flags |= _WAITED_BEFORE * (140 <= kind < 150)
        # Among more ranks 1.4.10 may lose one, and a detached one too.
        if self._ranks == 2 and kind % 4 == 1 and not any(handle.reducible for handle, _ in accesses):
            flags |= _SYNCHRONOUS_SENDS
        if flags & _SYNCHRONOUS:
            self._settle()
        number = self._new_number()
        dependencies = self._dependencies(number, accesses)
        if dependencies or kind >= 210 or any(not handle.sequential for handle, _ in accesses):
            flags |= _TAGGED
            if kind % 2 and not any(handle.ordered for handle, _ in accesses):
                flags |= _WITHOUT_CONSISTENCY
        workers, worker = (0, 0) if where < 150 else (1 + where % 3, where // 3)
        context = self._contexts[where % len(self._contexts)] if self._contexts and where < 100 else 0
        if by_callback:
            context = self._parents[parent][0]
            workers = 0 if context else workers
        if self._in_parallel_workers:
            workers = 0
        if priority >= 224 and workers in (0, 3) and not (self._contexts or self._in_parallel_workers):
            flags |= _PARALLEL
            self._parallel = True
        # StarPU looks at the first implementation alone if it is told the worker.
        implementation = how % 2 if 100 <= how < 150 and workers != 1 else -1
        selection = priority // 7 % 3
        rank = self._rank_of(accesses, selection, priority // 21 % self._ranks)
        for written, access in accesses:
            if access == W or (access in (REDUX, MPI_REDUX) and not written.contributed):
                self._gather(written, writes=access != W)
        words = [number, flags, _PRIORITIES[priority % 7], workers, worker, implementation, parent]
        self._emit(
            *(["mpi_task", selection, rank] if self._ranks > 1 else ["context_task", context] if context else ["task"]),
            *words,
            pause * (pause < 100),
            len(accesses),
            *self._run(number, accesses),
            len(dependencies),
            *dependencies,
        )
        lines = self._lines[-1]
        if by_callback:
            # Before the task that submits it, which is submitted with its callback.
            lines = self._parents[parent][1]
            lines[:0] = self._lines.pop()
            if len(lines) > _MAX_CHILDREN:
                del self._parents[parent]
        if flags & _WAITABLE:
            self._waitable.append(number)
        # 1.4.10 doesn't wait for what they submit from a parallel worker.
        if not flags & _SYNCHRONOUS and self._ranks == 1 and not self._in_parallel_workers:
            self._parents[number] = context, lines

    def wait(self, r: bytes) -> None:
        """Wait for a task that is to be waited for."""
        if self._waitable:
            self._settle()
            self._emit("wait", self._waitable.pop(r[0] % len(self._waitable)))

    def wait_for_all(self, _: bytes = b"") -> None:
        """Wait for all tasks. No callback before it submits what stands after it."""
        self._settle()
        # 1.4.10 doesn't wait for a task that it gives to a parallel worker meanwhile.
        for _twice in range(1 + self._in_parallel_workers):
            self._emit("wait_for_all" if self._ranks == 1 else "mpi_wait_for_all")
        self._parents.clear()
        self._parallel = False
        for handle in self._handles:
            handle.writer, handle.readers = [], []
            handle.contributed = False

    def context(self, r: bytes) -> None:
        """Make a scheduling context of some workers with a scheduler, or delete one whose tasks have ended."""
        if self._in_parallel_workers:
            return
        if r[0] % 2 and len(self._contexts) < _MAX_CONTEXTS:
            if self._parallel:
                self.wait_for_all()  # with peager 1.4.10 hangs otherwise
            number = next(n for n in range(1, _MAX_CONTEXTS + 1) if n not in self._contexts)
            self._contexts.append(number)
            self._emit("context", number, *r[1:4])
            self._parents.clear()  # their callbacks may submit before it is there
        elif self._contexts:
            self.wait_for_all()
            self._emit("delete_context", self._contexts.pop(0))

    def parallel_workers(self, r: bytes) -> None:
        """Make parallel workers of all workers, or end them."""
        if not self._contexts and self._ranks == 1:
            self.wait_for_all()
            self._in_parallel_workers = not self._in_parallel_workers
            self._emit("parallel_workers", 1 + r[0] if self._in_parallel_workers else 0)

    def pause(self, r: bytes) -> None:
        """Pause the workers, or let them resume."""
        if self._paused:
            self._emit("resume")
            self._paused = False
        elif r[0] % 2:
            self._emit("pause")
            self._paused = True

    def handle(self, r: bytes) -> None:
        """Register data."""
        kind, nx, ny, home = r[0] % (4 if self._ranks == 1 else 3), *r[1:4]
        columns = 1 if kind == VARIABLE else (4, 6, 8, 2, 1)[nx % 5]
        rows = (2, 4, 3, 1)[ny % 4] if kind in (MATRIX, SPARSE) else 1
        columns = 0 if nx >= 240 else columns
        sequential, scratch = self._ranks > 1 or not 200 <= home < 240, home >= 240 and kind != SPARSE
        reducible = r[0] < 192 and kind != SPARSE
        flags = _SEQUENTIAL * sequential | _WITHOUT_REDUCTION * (not reducible)
        at_home = (home % 2 == 0 or not sequential or kind == SPARSE) and not scratch
        number, size = len(self._handles), columns * rows
        if number >= _MAX_HANDLES:
            return
        places = list(range(len(self._values), len(self._values) + max(size, 1)))
        self._values += [_mix(0, number + i) if at_home else None for i in range(len(places))]
        owner = r[0] // 3 % self._ranks
        where = owner if at_home else None
        handle = _Handle(number, (kind, columns, rows), places, where, sequential, scratch, reducible, owner=owner)
        self._handles.append(handle)
        for rank in range(self._ranks):
            self._emit("handle", number, kind, columns, rows, int(rank == where), flags, rank=rank)
        if self._ranks > 1:
            self._emit("owner", number, owner)
        if not sequential or scratch:
            self._parents.clear()  # their callbacks may submit before it is registered

    def acquire(self, r: bytes) -> None:
        """Access data outside of a task: at once, in a callback, or for some operations."""
        byte, mode, how, pause = r[:4]
        handle = self._usable(byte, ordered=True)
        if handle is None or handle in self._held or self.tasks >= _MAX_TASKS:
            return
        allowed = self._allowed(handle, MODES[mode % len(MODES)])
        allowed = RW if allowed in (REDUX, COMMUTE) else allowed
        how = how % 3 if not handle.in_plan else _AT_ONCE
        if how != _IN_CALLBACK:
            self._settle()
        self._gather(handle, writes=allowed != R)
        self._acquire(handle, allowed, how, pause * (pause < 100), handle.owner)
        handle.in_callback = how == _IN_CALLBACK or (handle.in_callback and allowed == R)
        if how != _IN_CALLBACK:
            handle.reduced = False
        if how == _HELD:
            self._held.append(handle)

    def _acquire(self, handle: _Handle, mode: str, how: int, pause: int, rank: int) -> None:
        number = self._new_number()
        self._emit("acquire", number, how, pause, *self._run(number, [(handle, mode)]), rank=rank)

    def release(self, _: bytes) -> None:
        """Release what was acquired first."""
        if self._held:
            held = self._held.pop(0)
            self._emit("release", held.number, rank=held.owner)

    def _to_node(self, name: str, r: bytes) -> None:
        """Prefetch or fetch data to a memory node, asynchronously, or evict them from it."""
        handle = self._usable(r[0], whole=True)
        # What isn't written yet can't be fetched: StarPU would have to initialise it.
        fetched = handle is not None and handle.reducible and not handle.reduced and self._defined(handle)
        if handle is not None and (name == "evict" or fetched):
            handle.prefetched = True
            self._emit(name, handle.number, r[1], 1, rank=handle.owner)

    prefetch = partialmethod(_to_node, "prefetch")
    idle_prefetch = partialmethod(_to_node, "idle_prefetch")
    fetch = partialmethod(_to_node, "fetch")
    evict = partialmethod(_to_node, "evict")

    def synchronise(self, r: bytes) -> None:
        """Wait for a task without a codelet that accesses data."""
        handle = self._usable(r[0], ordered=True)
        if handle is not None and handle not in self._held and self._defined(handle):
            self._settle()
            self._gather(handle, writes=True)
            handle.reduced = False
            mode = (R, RW)[r[1] % 2]
            self._emit("synchronise", handle.number, mode, f"{self._digest(handle):#x}", rank=handle.owner)

    def copy(self, r: bytes) -> None:
        """Copy data of the same shape."""
        first = self._usable(r[0], whole=True)
        if first is None:
            return
        alike = [h for h in self._handles if h.is_whole and h.ordered and h.shape == first.shape]
        second = alike[r[1] % len(alike)]
        if second is first or not self._defined(second):
            return
        asynchronous = r[2] % 2
        if not asynchronous:
            self._settle()
        self._gather(first, writes=True)
        self._gather(second)
        if first.owner == second.owner:
            self._emit("copy", first.number, second.number, asynchronous, rank=first.owner)
        elif r[3] % 2:
            number = self._new_number()
            synchronous = r[4] % 2 if self._ranks == 2 else 0
            self._emit("send", number, first.number, first.owner, second.number, second.owner, synchronous)
        else:
            self.wait_for_all()  # other messages of the data that it writes may be taken for its message
            self._emit("mpi_copy", first.number, second.number, asynchronous)
            self.wait_for_all()
        for place, other in zip(first.places, second.places, strict=True):
            self._values[place] = self._values[other]

    def _gather(self, handle: _Handle, *, writes: bool = False) -> None:
        """Over ranks: end a reduction, and drop copies before another than a task changes the owner's content."""
        if self._ranks > 1:
            self._emit("reduce", handle.number, self.tasks % 7, self.tasks % 4)
            handle.contributed = False
            if writes:
                self._emit("flush", handle.number)

    def gather(self, r: bytes) -> None:
        """End a reduction over ranks, or drop the copies of data too."""
        if handle := self._usable(r[0], whole=True):
            self._gather(handle, writes=r[1] % 2 == 1)

    def migrate(self, r: bytes) -> None:
        """Give data another owner."""
        handle = self._usable(r[0], whole=True)
        if handle is not None and self._defined(handle) and not handle.reduced:
            self._gather(handle)
            handle.owner = r[1] % self._ranks
            self._emit("migrate", handle.number, handle.owner)

    def get(self, r: bytes) -> None:
        """Give a rank a copy of data, and look at it there."""
        handle = self._usable(r[0], whole=True)
        if handle is None or not self._defined(handle) or self.tasks >= _MAX_TASKS:
            return
        self._settle()
        self._gather(handle)
        self._emit("get_detached" if r[2] % 2 else "get", handle.number, r[1] % self._ranks)
        self._acquire(handle, R, _AT_ONCE, 0, r[1] % self._ranks)

    def invalidate(self, r: bytes) -> None:
        """Say that the content of data isn't needed."""
        handle = self._usable(r[0], whole=True)
        if handle is not None and handle.shape[0] != SPARSE:
            if r[1] % 2:
                self._gather(handle, writes=True)
                self._emit("invalidate_submit", handle.number)
            else:
                self._settle()
                self._gather(handle, writes=True)
                self._emit("invalidate", handle.number, int(handle.home is None and not handle.prefetched))
            for place in handle.places:
                self._values[place] = None

    def unregister(self, r: bytes) -> None:
        """Unregister data."""
        if handle := self._usable(r[0], whole=True):
            self._gather(handle)
            ended = not handle.in_callback and (self._ranks == 1 or not handle.reduced)
            if r[1] % 2 and handle.home is None and ended:
                self._emit("unregister_submit", handle.number)
                handle.alive = False
            else:
                self._settle()
                self._unregister(handle)

    def _unregister(self, handle: _Handle) -> None:
        known = handle.home == handle.owner and self._defined(handle)
        digest = self._digest(handle) if known else 0
        self._emit("unregister", handle.number, int(known), f"{digest:#x}")
        handle.alive = False

    def partition(self, r: bytes) -> None:
        """Cut data into parts: at once, or by a plan that StarPU applies when a task accesses parts or the whole."""
        byte, parts, by_rows, plan = r[0], r[1], r[2] % 2, r[3] % 2
        handle = self._usable(byte, ordered=True)
        if handle is None or handle in self._held or not self._defined(handle) or handle.reduced or handle.home is None:
            return
        kind, columns, rows = handle.shape
        by_rows = int(kind == SPARSE or (by_rows and kind == MATRIX))
        length = rows if by_rows else columns
        fitting = [n for n in range(2, length + 1) if length % n == 0 and handle.size]
        is_plan = handle.in_plan or plan == 1
        inside = handle.part_of is not None and handle.part_of.is_plan != is_plan
        full = len(handle.above) == _MAX_DEPTH or len(self._handles) >= _MAX_HANDLES - 8
        if not fitting or inside or full:
            return
        self._settle()
        partition, count = _Partition(handle, is_plan), fitting[parts % len(fitting)]
        size = length // count
        nx, ny = (columns, size) if by_rows else (size, rows)
        first = len(self._handles)
        for start in range(0, length, size):
            x0, y0 = (0, start) if by_rows else (start, 0)
            places = [handle.places[(y0 + y) * columns + x0 + x] for y in range(ny) for x in range(nx)]
            part = _Handle(len(self._handles), (kind, nx, ny), places, part_of=partition)
            partition.parts.append(part)
            self._handles.append(part)
        handle.partitions.append(partition)
        self._emit("partition", handle.number, by_rows, count, first, int(is_plan))

    def unpartition(self, r: bytes) -> None:
        """Put the parts of data together that were cut at once, or end a plan."""
        found = [cut for handle in self._handles if handle.alive for cut in handle.partitions]
        innermost = [cut for cut in found if not any(part.partitions for part in cut.parts)]
        if not innermost:
            return
        self._settle()
        partition = innermost[r[0] % len(innermost)]
        parent, parts = partition.parent, partition.parts
        if partition.is_plan:
            self._emit("clean", parent.number, parts[0].number, len(parts))
        else:
            self._emit("unpartition", parent.number, r[1])
        parent.partitions.remove(partition)
        for part in parts:
            part.alive = False

    def end(self) -> None:
        """Wait for everything, compare all contents, and unregister all data."""
        self._settle()
        while self._waitable:
            self.wait(b"\0")
        self.wait_for_all()
        if self._in_parallel_workers:
            self.parallel_workers(b"")
        while self._contexts:
            self.context(b"\0")
        while any(handle.alive and handle.partitions for handle in self._handles):
            self.unpartition(bytes(2))
        for handle in self._handles:
            if handle.alive:
                if not handle.scratch and self._defined(handle):
                    self._acquire(handle, R, _AT_ONCE, 0, handle.owner)
                self._unregister(handle)
