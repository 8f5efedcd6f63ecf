"""What a run leaves out, and why: the entries of ``not_checked``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starpullm.golden.records import SHIPPED_RECORDS
from starpullm.options import REDUCTIONS


@dataclass(frozen=True)
class LeftOut:
    """Something that wasn't checked, why, and the tests of it that were collected."""

    what: str
    reason: str
    tests: list[str] = field(default_factory=list)


def not_chosen(
    machine: Mapping[str, Any], ranks: int, chosen: Mapping[str, Sequence[str]], how: Mapping[str, str]
) -> Iterator[LeftOut]:
    """Yield the shipped records, and the partitions, schedulers and reductions of the machine, that weren't chosen.

    ``how`` says how each of them is chosen, by the same names as ``chosen``.
    """
    if ranks == 1:
        yield LeftOut("several ranks", f"one process; {how['ranks']} runs over ranks")
    for what, known in (
        ("record", SHIPPED_RECORDS),
        ("partition", machine["partitions"]),
        ("scheduler", machine["schedulers"]),
        ("reduction", REDUCTIONS),
    ):
        names = [name for name in known if name not in chosen[f"{what}s"]]
        if names:
            yield LeftOut(f"{what}{'s' if len(names) > 1 else ''} {', '.join(names)}", f"not chosen; {how[f'{what}s']}")
    yield beyond(machine["cores"], ranks)


def beyond(cores: int, ranks: int) -> LeftOut:
    """Return the entry for larger machines; over ranks, ``cores`` are those of each rank."""
    counted = f"{cores} core{'s' if cores > 1 else ''}"
    return LeftOut(
        f"partitions of more than {counted}", f"{'each rank' if ranks > 1 else 'this machine'} has {counted}"
    )
