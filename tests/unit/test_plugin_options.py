"""The defaults and limits of the plugin's options, which it states without importing what they belong to."""

from __future__ import annotations

from pathlib import Path

import pytest

from starpullm.options import MAX_SECONDS
from starpullm.pytest_plugin import plugin_options
from starpullm.pytest_plugin.plugin_options import OPTIONS
from starpullm.speed.gate import BUDGET
from starpullm.speed.interleaved_rounds import ROUNDS
from starpullm.speed.speed_verdict import EQUIVALENCE_MARGIN


def test_defaults_are_those_of_the_package() -> None:
    assert {name: OPTIONS[name].default for name in ("blocks", "budget")} == {"blocks": ROUNDS, "budget": BUDGET}
    assert plugin_options.MAX_BUDGET == EQUIVALENCE_MARGIN


@pytest.mark.parametrize("name", ["time_limit", "wait_limit"])
@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "1e9", "x"])
def test_a_limit_is_a_number_of_seconds_that_a_child_can_have(name: str, text: str) -> None:
    read = OPTIONS[name].read
    assert read("0.5", Path()) == 0.5
    assert read(f"{MAX_SECONDS:.0f}", Path()) == MAX_SECONDS
    with pytest.raises(ValueError, match=f'found "?{text}"?, expected a positive number of seconds, at most 604800'):
        read(text, Path())
