"""Which results belong on one line of a chart of throughput."""

from __future__ import annotations

from starpullm.report.charts import Point, panels


def point(partition: str, batch_size: int, *, ranks: int = 1, speed: float = 1.0) -> Point:
    return Point(partition, ranks, batch_size, speed, limit=100.0)


POINTS = [
    *(point(partition, batch_size) for batch_size in (8, 16) for partition in ("1x1", "2x1", "1x2", "4x1")),
    point("1x1", 8, ranks=2),
]


def partitions(kind: str) -> dict[str, dict[str, list[str]]]:
    """Return the partitions on each line of each panel."""
    return {
        title: {label: [each.partition for each in line.values()] for label, line in series.items()}
        for title, series in panels(kind, POINTS).items()
    }


def test_strong_scaling() -> None:
    """A panel for each batch size; a line needs two numbers of cores."""
    assert partitions("strong") == {
        "B = 8": {
            "ranks of 1x1": ["1x1", "1x1"],
            "workers of 1 thread": ["1x1", "2x1", "4x1"],
            "one worker": ["1x1", "1x2"],
        },
        "B = 16": {"workers of 1 thread": ["1x1", "2x1", "4x1"], "one worker": ["1x1", "1x2"]},
    }


def test_weak_scaling() -> None:
    """A panel for each batch size per core."""
    assert partitions("weak") == {
        "B = 4 per core": {"workers of 1 thread": ["2x1", "4x1"]},
        "B = 8 per core": {"workers of 1 thread": ["1x1", "2x1"], "one worker": ["1x1", "1x2"]},
    }


def test_partitions() -> None:
    """A panel for each number of cores, by batch size."""
    assert panels("partitions", POINTS)["2 cores"]["2 ranks of 1x1"] == {8: POINTS[-1]}
    assert partitions("partitions")["1 core"] == {"1x1": ["1x1", "1x1"]}


def test_the_fastest_point_of_a_place() -> None:
    points = [point("1x1", 8), point("2x1", 8, speed=0.2), point("2x1", 8, speed=0.3), point("2x1", 8, speed=0.1)]
    (series,) = panels("strong", points).values()
    assert series["workers of 1 thread"][2] == points[2]
