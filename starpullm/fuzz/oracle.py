"""The oracle: carries out a program's operations one after another, and says what each of them must see.

It takes any operations: one that isn't allowed where it stands becomes one that is, or nothing. So operations can be
left out of a program, and what is left is a program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

VERSION = 1
"""Of the text of programs; as in native/fuzz/interpreter.c, which also says what an operation's numbers are."""

R, W, RW, SCRATCH, REDUX, COMMUTE = 1, 2, 3, 4, 8, 16 | 3
VARIABLE, VECTOR, MATRIX = range(3)
_WAITABLE, _SYNCHRONOUS, _TAGGED, _WITHOUT_CONSISTENCY = 1, 2, 4, 8
_AT_ONCE, _IN_CALLBACK, _HELD = range(3)
_ONCE = 1
_MASK = (1 << 64) - 1
_MAX_TASKS, _MAX_HANDLES, _MAX_CHILDREN, _MAX_PLANS, _MAX_DEPTH = 900, 240, 16, 64, 3

MODES = (R, RW, W, COMMUTE, R, RW, REDUX, W, R, RW, COMMUTE, REDUX)
"""A byte of an operation chooses one; the first is the simplest."""


def _mix(x: int, y: int) -> int:
    x = ((x ^ y) * 0x9E3779B97F4A7C15) & _MASK
    return x ^ x >> 29


@dataclass(eq=False)
class _Handle:
    number: int
    kind: int
    nx: int
    ny: int
    places: list[int]
    """Of its elements among the values of the program."""
    home: bool = True
    sequential: bool = True
    scratch: bool = False
    siblings: list[_Handle] = field(default_factory=list)
    parent: _Handle | None = None
    planned: bool = False
    """Whether it is a part of a plan."""
    parts: list[_Handle] = field(default_factory=list)
    """While it is partitioned at once."""
    plans: dict[int, list[_Handle]] = field(default_factory=dict)
    alive: bool = True
    reduced: bool = False
    """Whether StarPU may not have ended a reduction of it."""
    in_callback: bool = False
    """Whether a callback that has acquired it may not have run."""
    writer: list[int] = field(default_factory=list)
    readers: list[int] = field(default_factory=list)
    """Without sequential consistency: the last task that writes, and those that read since then."""

    @property
    def root(self) -> _Handle:
        return self.parent.root if self.parent else self

    @property
    def depth(self) -> int:
        return self.parent.depth + 1 if self.parent else 0

    @property
    def is_whole(self) -> bool:
        return not self.parent and not self.parts and not self.plans


class Oracle:
    """A program under construction; `text` is complete after `end`."""

    def __init__(self, unit: int) -> None:
        self.lines: list[str] = [f"starpullm-fuzz {VERSION} {unit}"]
        self.tasks = 0
        self._handles: list[_Handle] = []
        self._values: list[int | None] = []
        self._plans: dict[int, _Handle] = {}
        self._num_plans = 0
        self._held: list[_Handle] = []
        self._paused = False
        self._waitable: list[int] = []
        self._parents: dict[int, str] = {}
        """Tasks whose callbacks may submit others, and their lines."""
        self._children: dict[int, int] = {}

    def text(self) -> str:
        """Return the program as the interpreter reads it."""
        return "\n".join([*self.lines, "end", ""])

    # ---- What StarPU allows ----

    def _emit(self, name: str, *numbers: int) -> None:
        self.lines.append(" ".join([name, *map(str, numbers)]))

    def _settle(self) -> None:
        """Let what blocks the program end: while it is paused or holds data, it may wait for nothing."""
        if self._paused:
            self._paused = False
            self._emit("resume")
        for handle in self._held:
            self._emit("release", handle.number)
        self._held.clear()

    def _usable(self, byte: int, *, whole: bool = False, ordered: bool = False) -> _Handle | None:
        """Return a handle that can be accessed now: one that isn't partitioned, or one with sequential consistency."""
        handles = [handle for handle in self._handles if handle.alive and not handle.parts]
        if whole:
            handles = [handle for handle in handles if handle.is_whole and handle not in self._held]
        if whole or ordered:
            handles = [handle for handle in handles if handle.sequential and not handle.scratch]
        return handles[byte % len(handles)] if handles else None

    def _defined(self, handle: _Handle) -> bool:
        return all(self._values[place] is not None for place in handle.places)

    def _allowed(self, handle: _Handle, mode: int) -> int:
        """Return the mode, or the one in its place that the handle can be accessed in now."""
        if handle.scratch:
            return SCRATCH
        if not handle.sequential and mode in (COMMUTE, REDUX):
            return RW
        undefined = [self._values[place] is None for place in handle.places]
        if mode == REDUX and handle.is_whole:
            return W if any(undefined) and not all(undefined) else REDUX
        mode = RW if mode == REDUX else mode
        return W if any(undefined) else mode

    @staticmethod
    def _together(handle: _Handle, others: Sequence[_Handle]) -> bool:
        """Whether a task can access the handle beside others: not the same data, nor parts of different plans."""
        for other in others:
            same_root = handle.root is other.root
            if same_root and (handle.planned or other.planned or handle.plans or other.plans):
                if handle.siblings is not other.siblings or handle is other:
                    return False
            elif not set(handle.places).isdisjoint(other.places):
                return False
        return True

    # ---- What operations do ----

    def _digest(self, handle: _Handle) -> int:
        return sum((2 * i + 1) * (self._values[place] or 0) for i, place in enumerate(handle.places)) & _MASK

    def _run(self, number: int, accesses: Sequence[tuple[_Handle, int]]) -> list[int]:
        """Carry out the accesses of a task; return handle, mode and expected digest of each."""
        numbers, read = [], number
        for handle, mode in accesses:
            expected = self._digest(handle) if mode in (R, RW) else 0
            read = _mix(read, expected) if mode in (R, RW) else read
            numbers += [handle.number, mode, expected]
        for handle, mode in accesses:
            handle.reduced |= mode == REDUX
            for i, place in enumerate(handle.places):
                if mode in (REDUX, COMMUTE):
                    self._values[place] = ((self._values[place] or 0) + read) & _MASK
                elif mode in (W, RW):
                    old = self._values[place] if mode == RW else 0
                    self._values[place] = _mix(old or 0, (read + i) & _MASK)
        return numbers

    def _dependencies(self, number: int, accesses: Sequence[tuple[_Handle, int]]) -> list[int]:
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

    def task(self, count: int, chosen: bytes, kind: int, priority: int, where: int, how: int, pause: int) -> None:
        """Submit a task; pairs of bytes choose handles and modes, the other bytes how it is submitted."""
        accesses: list[tuple[_Handle, int]] = []
        by_callback = kind >= 225 and self._parents
        for i in range(1 + count % 4):
            handle = self._usable(chosen[2 * i])
            if handle is None or not self._together(handle, [other for other, _ in accesses]):
                continue
            if by_callback and handle.sequential and not handle.scratch:
                continue
            accesses.append((handle, self._allowed(handle, MODES[chosen[2 * i + 1] % len(MODES)])))
        if self.tasks >= _MAX_TASKS or not accesses:
            return
        number, parent, flags = self.tasks, -1, 0
        self.tasks += 1
        if by_callback:
            parent = list(self._parents)[how % len(self._parents)]
        elif 140 <= kind < 180:
            flags |= _WAITABLE
        if 180 <= kind < 190 and parent < 0:
            self._settle()
            flags |= _SYNCHRONOUS
        dependencies = self._dependencies(number, accesses)
        if dependencies or kind >= 210 or any(not handle.sequential for handle, _ in accesses):
            flags |= _TAGGED
            if kind % 2 and all(not handle.sequential or handle.scratch for handle, _ in accesses):
                flags |= _WITHOUT_CONSISTENCY
        workers, worker = (0, 0) if where < 150 else (1 + where % 2, where // 2)
        # StarPU looks at the first implementation alone if it is told the worker.
        implementation = how % 2 if 100 <= how < 150 and workers != 1 else -1
        expected = self._run(number, accesses)
        pause = pause if pause < 100 else 0
        numbers = [number, _ONCE, flags, priority % 7 - 3 if priority else 0, workers, worker, implementation]
        numbers += [parent, pause, len(accesses), *expected, len(dependencies), *dependencies]
        line = " ".join(["task", *map(str, numbers)])
        if parent < 0:
            self.lines.append(line)
        else:
            # Before the task that submits it, which is submitted with its callback.
            self.lines.insert(self.lines.index(self._parents[parent]), line)
            self._children[parent] = self._children.get(parent, 0) + 1
            if self._children[parent] == _MAX_CHILDREN:
                del self._parents[parent]
        if flags & _WAITABLE:
            self._waitable.append(number)
        if not flags & _SYNCHRONOUS:
            self._parents[number] = line

    def wait(self, byte: int) -> None:
        """Wait for a task that is to be waited for."""
        if self._waitable:
            self._settle()
            self._emit("wait", self._waitable.pop(byte % len(self._waitable)))

    def wait_for_all(self) -> None:
        """Wait for all tasks. No callback before it submits what stands after it."""
        self._settle()
        self._emit("wait_for_all")
        self._parents.clear()
        for handle in self._handles:
            handle.writer, handle.readers = [], []

    def pause(self, byte: int) -> None:
        """Pause the workers, or let them resume."""
        if self._paused:
            self._emit("resume")
            self._paused = False
        elif byte % 2:
            self._emit("pause")
            self._paused = True

    def handle(self, kind: int, nx: int, ny: int, home: int) -> None:
        """Register data."""
        kind = kind % 3
        columns = 1 if kind == VARIABLE else (4, 6, 8, 2, 1)[nx % 5]
        rows = (2, 4, 3, 1)[ny % 4] if kind == MATRIX else 1
        sequential, scratch = not 200 <= home < 240, home >= 240
        at_home = (home % 2 == 0 or not sequential) and not scratch
        number, size = len(self._handles), columns * rows
        if number >= _MAX_HANDLES:
            return
        places = list(range(len(self._values), len(self._values) + size))
        self._values += [_mix(0, number + i) if at_home else None for i in range(size)]
        self._handles.append(_Handle(number, kind, columns, rows, places, at_home, sequential, scratch))
        self._emit("handle", number, kind, columns, rows, int(at_home), int(sequential))
        if not sequential or scratch:
            self._parents.clear()  # their callbacks may submit before it is registered

    def acquire(self, byte: int, mode: int, how: int, pause: int) -> None:
        """Access data outside of a task: at once, in a callback, or for some operations."""
        handle = self._usable(byte, ordered=True)
        if handle is None or handle in self._held or self.tasks >= _MAX_TASKS:
            return
        allowed = self._allowed(handle, MODES[mode % len(MODES)])
        allowed = RW if allowed in (REDUX, COMMUTE) else allowed
        how = how % 3 if not handle.planned and not handle.plans else _AT_ONCE
        if how != _IN_CALLBACK:
            self._settle()
        number = self.tasks
        self.tasks += 1
        self._emit("acquire", number, how, pause if pause < 100 else 0, *self._run(number, [(handle, allowed)]))
        handle.in_callback = how == _IN_CALLBACK or (handle.in_callback and allowed == R)
        if how != _IN_CALLBACK:
            handle.reduced = False
        if how == _HELD:
            self._held.append(handle)

    def release(self) -> None:
        """Release what was acquired first."""
        if self._held:
            self._emit("release", self._held.pop(0).number)

    def on_node(self, name: str, byte: int, node: int) -> None:
        """Prefetch or fetch data to a memory node, asynchronously."""
        handle = self._usable(byte, whole=True)
        if handle is not None and self._defined(handle) and not handle.reduced:
            self._emit(name, handle.number, node, 1)

    def evict(self, byte: int, node: int) -> None:
        """Evict data from a memory node."""
        if handle := self._usable(byte, whole=True):
            self._emit("evict", handle.number, node)

    def copy(self, to: int, source: int, asynchronous: int) -> None:
        """Copy data of the same shape."""
        first = self._usable(to, whole=True)
        if first is None:
            return
        shape = (first.kind, first.nx, first.ny)
        alike = [h for h in self._handles if h.alive and h.is_whole and h.sequential and (h.kind, h.nx, h.ny) == shape]
        second = alike[source % len(alike)]
        if second is first or second.scratch or not self._defined(second):
            return
        if not asynchronous % 2:
            self._settle()
        self._emit("copy", first.number, second.number, asynchronous % 2)
        for place, other in zip(first.places, second.places, strict=True):
            self._values[place] = self._values[other]

    def invalidate(self, byte: int, asynchronous: int) -> None:
        """Say that the content of data isn't needed."""
        if handle := self._usable(byte, whole=True):
            if not asynchronous % 2:
                self._settle()
            self._emit("invalidate_submit" if asynchronous % 2 else "invalidate", handle.number)
            for place in handle.places:
                self._values[place] = None

    def unregister(self, byte: int, asynchronous: int) -> None:
        """Unregister data."""
        if handle := self._usable(byte, whole=True):
            if asynchronous % 2 and not handle.home and not handle.in_callback:
                self._emit("unregister_submit", handle.number)
                handle.alive = False
            else:
                self._settle()
                self._unregister(handle)

    def _unregister(self, handle: _Handle) -> None:
        known = handle.home and self._defined(handle)
        digest = self._digest(handle) if known else 0
        self._emit("unregister", handle.number, handle.nx, handle.ny, int(known), digest)
        handle.alive = False

    def partition(self, byte: int, parts: int, rows: int, plan: int) -> None:
        """Cut data into parts: at once, or by a plan that StarPU applies when a task accesses parts or the whole."""
        handle = self._usable(byte, ordered=True)
        if handle is None or handle.kind == VARIABLE or handle in self._held or not self._defined(handle):
            return
        by_rows = handle.kind == MATRIX and rows % 2 == 1
        length = handle.ny if by_rows else handle.nx
        fitting = [n for n in range(2, length + 1) if length % n == 0]
        is_plan = bool(handle.planned or handle.plans) or plan % 2 == 1
        if is_plan and handle.parent and not handle.planned:
            return
        if not fitting or handle.depth == _MAX_DEPTH or len(self._handles) >= _MAX_HANDLES - 8:
            return
        if is_plan and self._num_plans >= _MAX_PLANS:
            return
        if handle.reduced or not handle.home:
            return
        self._settle()
        count = fitting[parts % len(fitting)]
        first, size, siblings = len(self._handles), length // count, list[_Handle]()
        nx, ny = (handle.nx, size) if by_rows else (size, handle.ny)
        for i in range(count):
            x0, y0 = (0, i * size) if by_rows else (i * size, 0)
            places = [handle.places[(y0 + y) * handle.nx + x0 + x] for y in range(ny) for x in range(nx)]
            part = _Handle(first + i, handle.kind, nx, ny, places, handle.home, siblings=siblings, parent=handle)
            part.planned = is_plan
            siblings.append(part)
        self._handles += siblings
        if is_plan:
            handle.plans[self._num_plans] = siblings
            self._plans[self._num_plans] = handle
        else:
            handle.parts = siblings
        self._emit("partition", handle.number, int(by_rows), count, first, self._num_plans if is_plan else -1)
        self._num_plans += is_plan

    def unpartition(self, byte: int, node: int) -> None:
        """Put the parts of data together that were cut at once, or end a plan."""
        ready = [h for h in self._handles if h.alive and h.parts and all(not p.parts for p in h.parts)]
        plans = [n for n, h in self._plans.items() if all(not part.plans for part in h.plans[n])]
        if byte % 2 and plans:
            self._settle()
            number = plans[byte // 2 % len(plans)]
            self._emit("clean", number)
            siblings = self._plans.pop(number).plans.pop(number)
        elif ready:
            self._settle()
            handle = ready[byte // 2 % len(ready)]
            self._emit("unpartition", handle.number, node)
            siblings, handle.parts = handle.parts, []
        else:
            return
        for part in siblings:
            part.alive = False

    def end(self) -> None:
        """Wait for everything, compare all contents, and unregister all data."""
        self._settle()
        while self._waitable:
            self.wait(0)
        self.wait_for_all()
        while self._plans or any(handle.alive and handle.parts for handle in self._handles):
            self.unpartition(int(bool(self._plans)), 0)
        for handle in self._handles:
            if handle.alive:
                if not handle.scratch and self._defined(handle):
                    self._emit("acquire", self.tasks, _AT_ONCE, 0, *self._run(self.tasks, [(handle, R)]))
                    self.tasks += 1
                self._unregister(handle)
