"""The vector versions of libm's functions, as `doctor` shows and compares them; and what is done on an unknown libm.

Collected by pytest; every command is a child process. The comparison itself is in native/tests/kernels/test_libm.c.
"""

from __future__ import annotations

import json
import re

import pytest

from .children import TWO_CORES, run_cli, simd_levels

FUNCTIONS = ["expf", "tanhf", "coshf"]

WITHOUT_FMA = {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA"}
"""An environment in which glibc on x86-64 calls another expf."""


@pytest.fixture(scope="module")
def levels() -> list[str]:
    found = simd_levels()[1:]
    assert found, "every processor has a level of 16-byte vectors"
    return found


def test_doctor_names_those_in_use() -> None:
    machine = json.loads(run_cli("doctor", "--json", environment=TWO_CORES).check().stdout)
    assert list(machine["vector_libm"]) == FUNCTIONS
    used = [name for name, vector in machine["vector_libm"].items() if vector["used"]]
    assert all(re.fullmatch(r"[0-9a-f]{16}", vector["fingerprint"]) for vector in machine["vector_libm"].values())
    lines = run_cli("doctor", environment=TWO_CORES).check().stdout.splitlines()
    assert f"{'vector functions':<19}{', '.join(used) or 'none'}" in lines
    assert any("vector versions of" in line for line in lines) == (used != FUNCTIONS)


def test_an_unknown_libm_is_called() -> None:
    known, other = (
        json.loads(run_cli("doctor", "--json", environment={**TWO_CORES, **environment}).check().stdout)["vector_libm"]
        for environment in ({}, WITHOUT_FMA)
    )
    if known["expf"] == other["expf"]:
        pytest.skip("this libm has one expf")
    assert not other["expf"]["used"]
    assert not other["coshf"]["used"]
    assert known["tanhf"] == other["tanhf"]
    run = run_cli("doctor", environment={**TWO_CORES, **WITHOUT_FMA}).check()
    [note] = [line for line in run.stdout.splitlines() if "vector versions" in line]
    assert note.startswith("note: the vector versions of expf, coshf aren't used")


@pytest.mark.usefixtures("levels")
def test_prove_libm(levels: list[str]) -> None:
    run = run_cli("doctor", "--prove-libm", "--every", 2048).check()
    lines = run.stdout.splitlines()
    pairs = [(function, level) for function in FUNCTIONS for level in levels]
    assert len(lines) == len(pairs) + len(FUNCTIONS)
    for (function, level), line in zip(pairs, lines, strict=False):
        assert re.fullmatch(
            rf"{function} of {level}: inconclusive: 2,097,152 of 4,294,967,296 inputs have the same bits, \d+\.\d s",
            line,
        )
    for function, line in zip(FUNCTIONS, lines[len(pairs) :], strict=True):
        assert re.match(rf"this libm's {function}: fingerprint [0-9a-f]{{16}}, (known|unknown), ", line)
    assert run.stderr == ""


def test_prove_libm_json(levels: list[str]) -> None:
    results = json.loads(run_cli("doctor", "--prove-libm", "--every", 16384, "--json").check().stdout)
    assert [result["check"] for result in results] == [
        f"{function} of {level}" for function in FUNCTIONS for level in levels
    ]
    for result in results:
        assert (result["outcome"], result["measured"], result["facts"]["first_difference"]) == ("inconclusive", 0, None)
        assert result["compared"] == 2**18
        assert result["facts"]["seconds"] > 0
