"""The vector kernels of aarch64 have the reference's bits.

Collected by pytest. They are cross-compiled and run by an emulator where both are installed: on Debian
gcc-aarch64-linux-gnu and qemu-user.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
KERNELS = NATIVE / "src" / "kernels"
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"

# As native/CMakeLists.txt has them.
FLAGS = "-std=c11 -O3 -Wall -Wextra -Werror -D_GNU_SOURCE -ffp-contract=off -fno-math-errno -fno-trapping-math".split()
NEON = "-DSIMD_LEVEL=neon -DSIMD_BYTES=16 -DSIMD_REGISTERS=32 -DSIMD_ROWS=8 -DSIMD_VECTORS=3".split()


def run(*command: str | Path, directory: Path) -> str:
    completed = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=400, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


@pytest.mark.timeout(500)
def test_neon_kernels_have_the_references_bits(tmp_path: Path) -> None:
    for tool in (COMPILER, EMULATOR):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} isn't installed")
    once = KERNELS / "simd" / "scratch.c"
    once_per_level = [path for path in (KERNELS / "simd").glob("*.c") if path != once]
    others = [once, *(path for folder in (".", "ref", "blas") for path in (KERNELS / folder).glob("*.c"))]
    tests = [NATIVE / "tests" / "kernels" / name for name in ("cases.c", "test_kernels.c")]
    include = [f"-I{NATIVE / folder}" for folder in ("src", "include")]
    run(COMPILER, *FLAGS, *NEON, *include, "-c", *once_per_level, directory=tmp_path)
    program = tmp_path / "test_kernels"
    sources = [*others, NATIVE / "src" / "status.c", *tests]
    libraries = ["-static", "-lm", "-lpthread", "-ldl"]
    objects = sorted(tmp_path.glob("*.o"))
    options = [*FLAGS, "-DSTARPULLM_BASELINE=neon", *include]
    run(COMPILER, *options, *sources, *objects, *libraries, "-o", program, directory=tmp_path)
    lines = run(EMULATOR, program, "--level", "neon", directory=tmp_path).splitlines()
    operations = run(EMULATOR, program, "--list", directory=tmp_path).splitlines()
    assert [line.split()[0] for line in lines] == operations
    assert len(operations) > 10
    assert all(line.endswith("the same bits (neon)") for line in lines[1:])
