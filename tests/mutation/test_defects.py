"""Every seeded defect is caught, by the check that is to catch it; and no other build has one.

Collected by pytest; ``-m mutation`` tries all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from starpullm.binding.library import find_library

from .expected import EXPECTED, SPREAD
from .laboratory import CHECKS, TIME_LIMIT_CATCH, Laboratory, hunt
from .table import Row, Table

pytestmark = [pytest.mark.mutation, pytest.mark.timeout(400)]

READ_TABLE = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
table = []
for column in ("name", "kind", "sentence"):
    function = library[f"starpullm_defect_{column}"]
    function.restype, function.argtypes = ctypes.c_char_p, [ctypes.c_size_t]
    table.append([text.decode() for text in iter(map(function, range(10**6)).__next__, None)])
print(json.dumps(list(zip(*table, strict=True))))
"""


@cache
def defects(library: Path) -> dict[str, tuple[str, str]]:
    """Return kind and sentence of each defect, as the library has them."""
    run = subprocess.run(
        [sys.executable, "-c", READ_TABLE, library], capture_output=True, text=True, timeout=60, check=True
    )
    return {name: (kind, sentence) for name, kind, sentence in json.loads(run.stdout)}


def test_every_defect_has_an_expected_check(defective_library: Path) -> None:
    assert set(defects(defective_library)) == set(EXPECTED)
    assert set(EXPECTED.values()) <= {*CHECKS, TIME_LIMIT_CATCH}
    assert set(SPREAD) <= set(EXPECTED)


def test_no_other_build_has_defects(defective_library: Path) -> None:
    """Neither names nor the variable are in the installed library."""
    installed = find_library()
    if installed == defective_library:
        pytest.skip("the library with defects is the one that is used")
    sentences = [sentence for _, sentence in defects(defective_library).values()]
    texts = [text.encode() for text in (*EXPECTED, *sentences, "STARPULLM_DEFECT")]
    assert [text for text in texts if text not in defective_library.read_bytes()] == []
    assert [text for text in texts if text in installed.read_bytes()] == []


def test_an_unknown_defect_is_refused(defective_library: Path) -> None:
    code = "from starpullm import Runtime\nwith Runtime('1x1'): pass"
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "STARPULLM_LIB": str(defective_library), "STARPULLM_DEFECT": "no_such"},
    )
    assert run.returncode == 1
    assert 'STARPULLM_DEFECT: found "no_such", expected a seeded defect' in run.stderr


@pytest.mark.parametrize("defect", EXPECTED)
def test_defect_is_caught(defect: str, defective_library: Path, table: Table, tmp_path: Path) -> None:
    with Laboratory(defective_library, defect, tmp_path) as laboratory:
        found = hunt(laboratory, EXPECTED[defect])
    kind, sentence = defects(defective_library)[defect]
    first, finding = (found.first.check, found.first.finding) if found.first else (None, "")
    table.add(Row(defect, kind, sentence, EXPECTED[defect], first, finding, found.by_expected, found.seconds))
    assert found.first is not None, f"{defect}: {sentence}; no check caught it"
    assert found.by_expected, f"{defect}: {sentence}; {EXPECTED[defect]} didn't catch it, {found.first} did"
