"""Programs of records of bytes, which the oracle makes legal: with fewer of them, or with zeros, they are simpler."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import NamedTuple

from starpullm.fuzz.configuration import Configuration
from starpullm.fuzz.oracle import Oracle

_HANDLE, _OPERATION = 4, 16
"""Bytes of a record: of data that are there at the beginning, and of an operation."""
_SHARES = {
    **{"": 2, "task": 24, "handle": 1, "acquire": 3, "release": 1, "wait": 1, "wait_for_all": 1},
    **{"partition": 2, "unpartition": 1, "prefetch": 1, "idle_prefetch": 1, "fetch": 1, "evict": 1, "copy": 1},
    **{"invalidate": 1, "unregister": 1, "pause": 1, "synchronise": 1, "context": 1},
}
_OPERATIONS = [name for name, share in _SHARES.items() for _ in range(share)]
"""A byte chooses one of the oracle's; none is the simplest."""
_RANK_OPERATIONS = [name for name in _OPERATIONS if "partition" not in name and name != "context"]
_RANK_OPERATIONS += ["get", "get", "migrate", "migrate", "gather", "gather"]


class Program(NamedTuple):
    """A program for the interpreter; the smaller one of two has fewer tasks, or else a shorter text."""

    tasks: int
    length: int
    text: str


def random_records(random: Random, operations: int) -> list[bytes]:
    """Draw some data, and so many operations."""
    sizes = [_HANDLE] * random.randint(1, 6) + [_OPERATION] * operations
    return [random.randbytes(size) for size in sizes]


def build(records: Iterable[bytes], configuration: Configuration) -> Program:
    """Return the program of these records for a configuration."""
    oracle = Oracle(configuration.unit, configuration.ranks)
    operations = _OPERATIONS if configuration.ranks == 1 else _RANK_OPERATIONS
    operations = operations + ["parallel_workers"] * configuration.parallel_workers
    for record in records:
        if len(record) == _HANDLE:
            oracle.handle(record)
        elif name := operations[record[0] % len(operations)]:
            getattr(oracle, name)(record[1:])
    oracle.end()
    text = oracle.text()
    return Program(oracle.tasks, len(text), text)


def random_program(seed: int, operations: int, ranks: int = 1) -> Program:
    """Return the program of a seed, the same everywhere, with one number in each element of its data."""
    return build(random_records(Random(seed), operations), Configuration(ranks=ranks))
