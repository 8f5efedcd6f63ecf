"""The results of a test's checks as properties, which pytest writes into JUnit XML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from starpullm.pytest_plugin.items import Entry, configuration_of, family_of

PREFIX = "starpullm."
"""Of the names of all properties of the plugin."""


def properties_of(item: pytest.Item, entry: Entry) -> Iterator[tuple[str, object]]:
    """Yield names and values: family, placement and reruns of the test; verdict and numbers of each of its checks."""
    yield f"{PREFIX}family", family_of(item)
    yield f"{PREFIX}placement", entry.configuration or configuration_of(item)
    if entry.reruns:
        yield f"{PREFIX}reruns", entry.reruns
    names: list[str] = []
    for result in entry.results:
        name = str(result["name"]).replace(" ", "_")
        names.append(name)
        check = f"{PREFIX}{name}" + (f".{names.count(name)}" if names.count(name) > 1 else "")
        yield f"{check}.verdict", result["outcome"]
        for number in ("compared", "measured", "limit"):
            if result.get(number) is not None:
                yield f"{check}.{number}", result[number]
        differences = list(_bit_differences(result))
        if differences:
            yield f"{check}.ulps_of_first", "NaN" if differences[0]["ulps"] is None else differences[0]["ulps"]
            # They are counted in classes between powers of two.
            largest = (count["largest"] for bits in differences for count in bits["ulp_counts"])
            yield f"{check}.ulps_at_most", max(largest, default=0)
    if entry.failure:
        yield f"{PREFIX}verdict", "no result"


def _bit_differences(value: object) -> Iterator[Mapping[str, Any]]:
    """Yield each `BitDifference` in the JSON values of a result, in their order."""
    if isinstance(value, Mapping):
        if "ulp_counts" in value:
            yield value
        else:
            for entry in value.values():
                yield from _bit_differences(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _bit_differences(entry)
