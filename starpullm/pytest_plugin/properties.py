"""The results of a test's checks as properties, which pytest writes into JUnit XML."""

from __future__ import annotations

from collections.abc import Iterator

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
        name = str(result["check"]).replace(" ", "_")
        names.append(name)
        check = f"{PREFIX}{name}" + (f".{names.count(name)}" if names.count(name) > 1 else "")
        yield f"{check}.verdict", result["outcome"]
        numbers = {name: result[name] for name in ("compared", "measured", "limit")} | result["facts"]
        for number, value in numbers.items():
            if isinstance(value, int | float | str):
                yield f"{check}.{number}", value
    if entry.failure:
        yield f"{PREFIX}verdict", "no result"
