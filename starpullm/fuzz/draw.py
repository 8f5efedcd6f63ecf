"""Programs as Hypothesis draws them: records of bytes, which it shrinks to zeros, and which the oracle makes legal."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from starpullm.fuzz.oracle import Oracle

_RECORD = 16
_BLOCK = 8
_SHARES = (
    *("nothing", *["task"] * 24, "handle", "acquire", "acquire", "acquire", "release", "wait", "wait_for_all"),
    *("partition", "partition", "unpartition", "prefetch", "idle_prefetch", "fetch", "nothing", "evict", "copy"),
    *("invalidate", "unregister", "pause"),
)
"""A byte chooses one; nothing is the simplest."""


@dataclass(frozen=True)
class Program:
    """A program for the interpreter, and how many tasks it has."""

    text: str
    tasks: int


def _apply(oracle: Oracle, record: bytes) -> None:
    r = record
    match _SHARES[r[0] % len(_SHARES)]:
        case "task":
            # Sometimes several alike, as readers or contributions to a reduction are.
            for _ in range(1 + max(0, r[15] - 192) // 8):
                oracle.task(r[1], r[2:10], r[10], r[11], r[12], r[13], r[14])
        case "handle":
            oracle.handle(*r[1:5])
        case "acquire":
            oracle.acquire(*r[1:5])
        case "release":
            oracle.release()
        case "wait":
            oracle.wait(r[1])
        case "wait_for_all":
            oracle.wait_for_all()
        case "partition":
            oracle.partition(*r[1:5])
        case "unpartition":
            oracle.unpartition(*r[1:3])
        case "prefetch" | "idle_prefetch" | "fetch" as name:
            oracle.on_node(name, *r[1:3])
        case "evict":
            oracle.evict(*r[1:3])
        case "copy":
            oracle.copy(*r[1:4])
        case "invalidate":
            oracle.invalidate(*r[1:3])
        case "unregister":
            oracle.unregister(*r[1:3])
        case "pause":
            oracle.pause(r[1])


def build(handles: list[bytes], records: list[bytes], unit: int) -> Program:
    """Return the program of these records; each element of its data is ``unit`` numbers."""
    oracle = Oracle(unit)
    for handle in handles:
        oracle.handle(*handle)
    for record in records:
        _apply(oracle, record)
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
