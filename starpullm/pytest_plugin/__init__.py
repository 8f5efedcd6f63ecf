"""The pytest plugin: its hooks, which connect options, fixtures, ranks and results.

pytest loads it in every run. So importing it imports nothing else of the package, and a run that uses none of its
fixtures and markers is changed only by its options.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from starpullm.options import RuntimeConfiguration
from starpullm.pytest_plugin.entries import FAMILIES, FIXTURES, RANK_MARKERS, uses_plugin
from starpullm.pytest_plugin.fixtures import Checker
from starpullm.pytest_plugin.plugin_options import UnknownMachineError
from starpullm.pytest_plugin.quiet import keep_coverage_apart, write_nothing
from starpullm.pytest_plugin.ranked_run import RankedRun, names_suite, rank_and_size
from starpullm.pytest_plugin.throughput import Gate
from starpullm.pytest_plugin.validation import VALIDATION, Validation, validation_of

SHORT_OPTIONS = {"--benchmark": "--starpullm-benchmark", "--with-mpi": "--starpullm-over-ranks"}
"""What the suite's options may also be called, in a run in which nobody else calls one so."""

__all__ = ["FIXTURES", "Checker", "Gate", "Validation", "validation_of"]

pytest_plugins = [f"starpullm.pytest_plugin.{name}" for name in ("plugin_options", "fixtures", "throughput")]


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, None, None]:
    """Give each rank a coverage file of its own before pytest-cov chooses one; translate the suite's short options.

    They aren't defined, because any other plugin or conftest.py may define an option of such a name. So a short name is
    the plugin's only in a run of the suite or over ranks, and only if nobody else has defined it.
    """
    rank, size = rank_and_size(early_config, args)
    if rank > 0:
        keep_coverage_apart(early_config, rank)
    yield
    if names_suite(early_config) or size > 1:
        _, unknown = parser.parse_known_and_unknown_args(args)
        args[:] = [SHORT_OPTIONS.get(word, word) if word in unknown else word for word in args]


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Let only rank 0 write; other plugins have to know this before they are configured."""
    rank, _ = rank_and_size(config)
    if rank > 0:
        write_nothing(config, rank)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and connect the ranks."""
    for name, text in {**{f"starpullm_{name}": text for name, text in FAMILIES.items()}, **RANK_MARKERS}.items():
        if name != "mpi" or not config.pluginmanager.has_plugin("pytest_mpi"):
            config.addinivalue_line("markers", f"{name}: {text} (starpullm)")
    validation = config.stash[VALIDATION] = Validation(config)
    config.pluginmanager.register(validation, "starpullm-validation")
    if validation.ranks > 1:
        # After the other plugin, whose reports it compares.
        config.pluginmanager.register(
            RankedRun(config, validation.time_limit, validation.results.notes), "starpullm-ranks"
        )


def pytest_unconfigure(config: pytest.Config) -> None:
    """End all processes, and restore the environment."""
    if VALIDATION in config.stash:
        config.stash[VALIDATION].close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise the fixtures by the options; tests with the same configuration follow one after the other."""
    if not uses_plugin(metafunc.definition) and FIXTURES.isdisjoint(metafunc.fixturenames):
        return
    validation = validation_of(metafunc.config)
    validation.require_options()
    is_marked = any(metafunc.definition.get_closest_marker(name) for name in RANK_MARKERS)
    ranks = validation.ranks if is_marked else 1
    if _is_ours(metafunc, "starpullm_configuration"):
        places: Sequence[RuntimeConfiguration | UnknownMachineError]
        try:
            with validation.refusing():
                places = validation.configurations(ranks)
        except UnknownMachineError as error:  # without a library the test fails, and everything else runs
            places = [error]
        metafunc.parametrize(
            "starpullm_configuration", places, indirect=True, scope="session", ids=[place.id for place in places]
        )
    if _is_ours(metafunc, "starpullm_golden"):
        records = [record for record in validation.records if validation.sub_batches(record, ranks)]
        metafunc.parametrize(
            "starpullm_golden", records, indirect=True, scope="session", ids=lambda path: Path(path).stem
        )


def _is_ours(metafunc: pytest.Metafunc, fixture: str) -> bool:
    """Return whether a test requests a fixture and doesn't parametrise it itself."""
    marks = metafunc.definition.iter_markers("parametrize")
    named = [mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0] for mark in marks if mark.args]
    return fixture in metafunc.fixturenames and not any(fixture == name.strip() for names in named for name in names)
