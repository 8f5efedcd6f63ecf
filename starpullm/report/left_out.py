"""What a run leaves out, and why: the entries of ``not_checked``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

NOT_REACHED = "tests that the run did not reach"
"""What the entry is called that has the tests which were selected and did not run."""


@dataclass(frozen=True)
class LeftOut:
    """Something that wasn't checked, why, and the tests of it that were collected."""

    what: str
    reason: str
    tests: list[str] = field(default_factory=list)


def others(what: str, known: Iterable[str], chosen: Sequence[str], how: str) -> Iterator[LeftOut]:
    """Yield an entry for the known names that weren't chosen, if there are any; ``how`` says how they are chosen."""
    names = [name for name in known if name not in chosen]
    if names:
        yield LeftOut(f"{what}{'s' if len(names) > 1 else ''} {', '.join(names)}", f"not chosen; {how}")


def beyond(cores: int, ranks: int) -> LeftOut:
    """Return the entry for larger machines; over ranks, ``cores`` are those of each rank."""
    counted = f"{cores} core{'s' if cores > 1 else ''}"
    return LeftOut(
        f"partitions of more than {counted}", f"{'each rank' if ranks > 1 else 'this machine'} has {counted}"
    )
