"""Mistakes in the elementary functions, each of which `test_elementary.c` finds. Needs the checkout and a compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"

COMPILER = "cc -O2 -std=c11 -D_GNU_SOURCE".split()


def try_functions(directory: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Compile the copy of the scalar functions in the directory, and compare a sample of arguments with the oracle."""
    (directory / "levels.def").touch()
    (directory / "none.c").write_text(
        "#include <stddef.h>\n"
        "const char *starpullm_simd_level_name(size_t index);\n"
        "const char *starpullm_simd_level_name(size_t index)\n{\n    return index ? NULL : NULL;\n}\n"
    )
    program = directory / "test_elementary"
    sources = [str(NATIVE / "tests/kernels/test_elementary.c"), str(directory / "none.c")]
    where = [f"-I{folder}" for folder in (directory, NATIVE / "src", NATIVE / "include")]
    subprocess.run([*COMPILER, *flags, *where, *sources, "-o", str(program), "-lm", "-pthread"], check=True, timeout=60)
    return subprocess.run([program, "16411"], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    """A folder with a copy of the functions that the compiler takes before the project's."""
    shutil.copytree(NATIVE / "src/kernels/elementary", tmp_path / "kernels/elementary")
    return tmp_path


@pytest.mark.parametrize("flags", ["-O0", "-O3 -march=native"])
def test_optimisation_does_not_matter(functions: Path, flags: str) -> None:
    run = try_functions(functions, *flags.split(), "-ffp-contract=off")
    assert (run.returncode, ", 0 wrong, " in run.stdout) == (0, True), run.stdout


def test_contraction_left_on(functions: Path) -> None:
    if "fma" not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip("this processor has no fused multiply-add that the compiler would take")
    run = try_functions(functions, "-march=native", "-ffp-contract=fast")
    assert (run.returncode, ", 0 wrong, " in run.stdout) == (1, False), run.stdout


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        pytest.param("fast.h", "c4 = 0x1.3b2b", "c4 = 0x1.3f2b", id="a digit of a coefficient"),
        pytest.param("fast.h", "SELECT(x < -110.0f, ALL(0.0f), small)", "small", id="no case of underflow"),
        pytest.param("fast.h", "x == -0x1.65cf3p+6f", "x == 1e30f", id="a boundary among denormal results"),
        pytest.param("fast.h", "COPY_SIGN(SELECT(ABS(x) > 10.0f", "(SELECT(ABS(x) > 10.0f", id="no sign"),
        pytest.param("table.h", "ERROR_BITS = 8", "ERROR_BITS = 1", id="an error bound that does not hold"),
        pytest.param("exact.h", "TERMS = 26", "TERMS = 9", id="too few terms"),
        pytest.param("scalar.h", "power.low = 0.0;", "(void)power.low;", id="no ties"),
        pytest.param("scalar.h", "if (x == -1.0f && isinf(y))", "if (x == -2.0f && isinf(y))", id="a special value"),
    ],
)
def test_mistakes(functions: Path, name: str, right: str, wrong: str) -> None:
    file = functions / "kernels/elementary" / name
    text = file.read_text()
    assert text.count(right) == 1
    file.write_text(text.replace(right, wrong))
    run = try_functions(functions, "-ffp-contract=off")
    assert (run.returncode, ", 0 wrong, " in run.stdout) == (1, False), run.stdout
