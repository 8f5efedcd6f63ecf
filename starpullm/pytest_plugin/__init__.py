"""The pytest plugin: options, markers, fixtures, and what a run says about itself at its beginning and at its end.

pytest loads it with every run. Importing it loads nothing else of the package, and a run that uses none of its fixtures
and markers sees nothing of it but its options.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from starpullm.pytest_plugin.fixtures import (
    Checker,
    golden,
    reference,
    starpu_runtime,
    starpullm_check,
    starpullm_configuration,
    starpullm_validation,
    task_trace,
    trainer,
)
from starpullm.pytest_plugin.items import FIXTURES, MARKERS
from starpullm.pytest_plugin.options import pytest_addoption
from starpullm.pytest_plugin.run import VALIDATION, Validation, validation_of
from starpullm.pytest_plugin.throughput import Gate, choose_throughput_tests, starpullm_gate

__all__ = [
    "FIXTURES",
    "MARKERS",
    "Checker",
    "Gate",
    "Validation",
    "golden",
    "pytest_addoption",
    "reference",
    "starpu_runtime",
    "starpullm_check",
    "starpullm_configuration",
    "starpullm_gate",
    "starpullm_validation",
    "task_trace",
    "trainer",
    "validation_of",
]


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and refuse options that can't be served."""
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning} (starpullm)")
    validation = config.stash[VALIDATION] = Validation(config)
    config.pluginmanager.register(validation, "starpullm-validation")
    validation.choose_library()
    if validation.has_options and not config.option.help:
        validation.check_options()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of throughput unless they were asked for."""
    choose_throughput_tests(config, items)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing running, and the environment as it was."""
    if VALIDATION in config.stash:
        config.stash[VALIDATION].close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise the fixtures by the options; tests with the same runtime come one after the other."""
    validation = validation_of(metafunc.config)
    if "starpullm_configuration" in metafunc.fixturenames:
        configurations = validation.configurations
        metafunc.parametrize(
            "starpullm_configuration",
            configurations,
            indirect=True,
            scope="session",
            ids=["-".join(configuration) for configuration in configurations],
        )
    if "golden" in metafunc.fixturenames:
        metafunc.parametrize("golden", validation.records, indirect=True, scope="session", ids=_record_id)


def _record_id(record: str) -> str:
    return Path(record).stem
