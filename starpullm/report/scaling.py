"""Which measurements belong on one line: strong scaling, weak scaling, and partitions by batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

KINDS = ("strong", "weak", "partitions")
TITLES = {"strong": "Strong scaling", "weak": "Weak scaling", "partitions": "Partitions by batch size"}


@dataclass(frozen=True)
class Point:
    """A measured configuration; ``limit`` is the speed of its matmuls alone, both in tokens per millisecond."""

    partition: str
    ranks: int
    batch_size: int
    """Sequences of all ranks together."""

    tokens_per_ms: float
    limit: float

    @property
    def workers(self) -> int:
        """The workers of a rank."""
        return int(self.partition.partition("x")[0])

    @property
    def threads(self) -> int:
        """The threads of a worker."""
        return int(self.partition.partition("x")[2])

    @property
    def cores(self) -> int:
        """The cores of all ranks."""
        return self.ranks * self.workers * self.threads


Series: TypeAlias = dict[str, dict[int, Point]]
"""The points with a label, by number of cores or by batch size."""


def panels(kind: str, points: Sequence[Point]) -> dict[str, Series]:
    """Return the series of each panel by its title, the smallest batch or number of cores first.

    ``"strong"`` is by cores, with a panel for each batch size. ``"weak"`` is by cores, with a panel for each batch size
    per core. ``"partitions"`` is by batch size, with a panel for each number of cores. A line by cores has at least two
    points. If several points are at the same place, the fastest counts.
    """
    found: dict[int, Series] = {}
    for point in points:
        if kind == "partitions":
            ranks = f"{point.ranks} ranks of " if point.ranks > 1 else ""
            panel, key, labels = point.cores, point.batch_size, [f"{ranks}{point.partition}"]
        else:
            panel, rest = divmod(point.batch_size, 1 if kind == "strong" else point.cores)
            key, labels = point.cores, _ways_to_add_cores(point) if not rest else []
        for label in labels:
            line = found.setdefault(panel, {}).setdefault(label, {})
            if key not in line or line[key].tokens_per_ms < point.tokens_per_ms:
                line[key] = point
    if kind == "partitions":
        return {f"{cores} core{'s' * (cores > 1)}": series for cores, series in sorted(found.items())}
    title = "B = {}" if kind == "strong" else "B = {} per core"
    lines = {
        title.format(batch): {label: dict(sorted(line.items())) for label, line in series.items() if len(line) > 1}
        for batch, series in sorted(found.items())
    }
    return {name: series for name, series in lines.items() if series}


def _ways_to_add_cores(point: Point) -> list[str]:
    """Return the labels of the lines that a point is on; along a line, cores are added in one way."""
    if point.ranks > 1:
        return [f"ranks of {point.partition}"]
    lines = [f"ranks of {point.partition}", f"workers of {point.threads} thread{'s' * (point.threads > 1)}"]
    return [*lines, "one worker"] if point.workers == 1 else lines
