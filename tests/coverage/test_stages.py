"""The parts into which the stages of the coverage measurement are cut; nothing is run."""

from __future__ import annotations

import re
from pathlib import Path

from starpullm.checks.check import all_checks
from starpullm.golden.records import SHIPPED_RECORDS

from .stages import TITLES, parts

ROOT = Path(__file__).parents[2]


def test_every_part_has_a_name_and_a_stage() -> None:
    found = parts(Path("/build"))
    assert len({part.name for part in found}) == len(found)
    assert list(dict.fromkeys(part.stage for part in found)) == list(TITLES)


def test_every_family_of_checks_and_every_ctest_is_in_a_part() -> None:
    texts = [" ".join(part.command) for part in parts(Path("/build"))]
    families = {check.family for check in all_checks().values()}
    assert {family for family in families if any(f"-m starpullm_{family} " in text for text in texts)} == families
    declared = re.findall(r"add_test\(NAME (\w+)", (ROOT / "native" / "tests" / "CMakeLists.txt").read_text("utf-8"))
    patterns = [re.compile(text.rpartition(" ")[2]) for text in texts if text.startswith("ctest ")]
    assert [name for name in declared if not any(pattern.search(name) for pattern in patterns)] == []
    quick = [record for record in SHIPPED_RECORDS if record != "gpt2-124m"]
    assert [record for record in quick if not any(record in text for text in texts)] == []
