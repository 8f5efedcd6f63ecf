"""The vector versions of libm's functions, as `doctor` shows and compares them; and what is done on an unknown libm.

The suite compares random ranges of inputs.
"""

from __future__ import annotations

import json
import math
import re
from itertools import product

import numpy as np
import pytest

from starpullm.binding import prototypes
from starpullm.checks.kernels.check import KernelBits
from starpullm.checks.kernels.libm import NUM_INPUTS, vector_levels

from .children import TWO_CORES, run_cli, run_function, simd_levels

FUNCTIONS = ["expf", "tanhf", "coshf"]

WITHOUT_FMA = {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA"}
"""An environment in which glibc on x86-64 calls another expf."""

FMA_MATTERS = (0x4202422F, 0xC27C65D9)
"""The two inputs at which glibc's expf depends on whether multiply and add are fused."""

ENDS = (9, 10, 20, 22, 88, 89, 103.278, 103.972, 104)
OF_LN2 = (0.5, 0.75, 1, 1.25, 1.5, 1.75, 27, 56, 128, 129)
"""Where the functions or their vector versions change their way; of the second, multiples of ln 2."""


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


USERS = ("softmax_forward", "attention_forward", "gelu_forward", "gelu_backward")
"""The kernels that use a function of which there is a vector version."""


def compare_users() -> tuple[list[bool], list[int], list[str]]:
    """Return whether the vector functions are used, how much of each kernel was compared, and what is wrong."""
    used = [prototypes.vector_libm(name)[0] for name in FUNCTIONS]
    results = [KernelBits().of(kernel, seed=0) for kernel in USERS]
    return used, [of.compared for of in results], [finding.sentence for of in results for finding in of.findings]


def test_kernels_on_an_unknown_libm() -> None:
    """They call its own functions, and have the bits of the plain kernels."""
    used, compared, wrong = run_function(compare_users, environment=WITHOUT_FMA)
    if all(used):
        pytest.skip("this libm has one expf")
    assert all(compared)
    assert wrong == []


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


def differences_at_boundaries() -> dict[str, int]:
    """Return how many inputs differ at both ends of every binade, and around where a function changes its way."""
    ends = np.array([*ENDS, *(part * math.log(2) for part in OF_LN2)], np.float32)
    places = [(top << 23, 64) for top in range(512)] + [(pattern, 1) for pattern in FMA_MATTERS]
    places += [(pattern, 2048) for pattern in np.concatenate([ends, -ends]).view(np.uint32).tolist()]
    ranges = [(max(0, middle - around), min(middle + around, NUM_INPUTS)) for middle, around in places]
    used = [name for name in FUNCTIONS if prototypes.vector_libm(name)[0]]
    return {
        f"{function} of {level}": sum(prototypes.prove_libm(level, function, *each)[0] for each in ranges)
        for function, level in product(used, vector_levels())
    }


def test_boundaries(levels: list[str]) -> None:
    found = run_function(differences_at_boundaries)
    if not found:
        pytest.skip("this libm is unknown")
    assert len(found) % len(levels) == 0
    assert set(found.values()) <= {0}


def differences_where_fma_matters() -> list[list[int | None]]:
    return [
        list(prototypes.prove_libm(level, "expf", pattern, pattern + 1))
        for level, pattern in product(vector_levels(), FMA_MATTERS)
    ]


def test_a_difference_is_found(levels: list[str]) -> None:
    """By the comparison itself, of a function that rounds otherwise at two inputs."""
    expected: list[list[int | None]] = [[1, pattern] for _, pattern in product(levels, FMA_MATTERS)]
    same: list[list[int | None]] = [[0, None]] * len(expected)
    known, other = (run_function(differences_where_fma_matters, environment=of) for of in ({}, WITHOUT_FMA))
    if known == other:
        pytest.skip("this libm has one expf")
    assert (known, other) == (same, expected)
