"""The options with which tests start another pytest: the plugin is loaded, and plugins that nothing needs are not."""

from __future__ import annotations

import importlib.metadata

UNUSED = tuple(
    word for name in ("pytest_cov", "randomly", "rerunfailures", "hypothesispytest") for word in ("-p", f"no:{name}")
)
"""Plugins of the environment that most tests don't need: they take two thirds of a child's start, and one of them
shuffles its tests. tests/plugin/test_neighbours.py loads them."""


def load_plugin() -> tuple[str, ...]:
    """The options that load the plugin: the checkout's, if PYTHONPATH names it, isn't found by its entry point."""
    plugins = {entry.value for entry in importlib.metadata.entry_points(group="pytest11")}
    return () if "starpullm.pytest_plugin" in plugins else ("-p", "starpullm.pytest_plugin")
