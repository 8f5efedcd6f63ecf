"""Programs as Hypothesis draws them: records of bytes, which it shrinks to zeros, and which the oracle makes legal."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from starpullm.fuzz.oracle import Oracle

_RECORD = 16
_BLOCK = 8
_SHARES = {
    **{"": 2, "task": 24, "handle": 1, "acquire": 3, "release": 1, "wait": 1, "wait_for_all": 1},
    **{"partition": 2, "unpartition": 1, "prefetch": 1, "idle_prefetch": 1, "fetch": 1, "evict": 1, "copy": 1},
    **{"invalidate": 1, "unregister": 1, "pause": 1},
}
_OPERATIONS = [name for name, share in _SHARES.items() for _ in range(share)]
"""A byte chooses one of the oracle's; none is the simplest."""


class Program(NamedTuple):
    """A program for the interpreter, and how many tasks it has."""

    text: str
    tasks: int

    @property
    def size(self) -> tuple[int, int]:
        """By which programs are compared."""
        return self.tasks, len(self.text)


def build(handles: list[bytes], records: list[bytes], unit: int) -> Program:
    """Return the program of these records; each element of its data is ``unit`` numbers."""
    oracle = Oracle(unit)
    for handle in handles:
        oracle.handle(handle)
    for record in records:
        if name := _OPERATIONS[record[0] % len(_OPERATIONS)]:
            getattr(oracle, name)(record[1:])
    oracle.end()
    return Program(oracle.text(), oracle.tasks)


@st.composite
def _block(draw: st.DrawFn) -> list[bytes]:
    """Draw some records; Hypothesis makes all of them zeros at once if it can."""
    return [draw(st.binary(min_size=_RECORD, max_size=_RECORD)) for _ in range(_BLOCK)]


@st.composite
def programs(draw: st.DrawFn, unit: int, operations: int) -> Program:
    """Draw a program of at most so many operations, to which those are added that make it legal and compare its end."""
    handles = [draw(st.binary(min_size=4, max_size=4)) for _ in range(draw(st.integers(1, 6)))]
    blocks = [draw(_block()) for _ in range(draw(st.integers(1, operations // _BLOCK)))]
    return build(handles, [record for block in blocks for record in block], unit)
