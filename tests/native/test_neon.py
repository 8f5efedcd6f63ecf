"""The vector kernels of aarch64 have the reference's bits.

They are cross-compiled and run by an emulator where both are installed: on Debian gcc-aarch64-linux-gnu and qemu-user.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from starpullm.checks.kernels.cases import CASES, Parameter, declared_kernels, make_case
from starpullm.checks.kernels.check import compare_levels
from starpullm.checks.kernels.fence import Fences

NATIVE = Path(__file__).parents[2] / "native"
KERNELS = NATIVE / "src" / "kernels"
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"

# As native/CMakeLists.txt has them.
FLAGS = "-std=c11 -O3 -Wall -Wextra -Werror -D_GNU_SOURCE -ffp-contract=off -fno-math-errno -fno-trapping-math".split()
NEON = "-DSIMD_LEVEL=neon -DSIMD_BYTES=16 -DSIMD_REGISTERS=32 -DSIMD_ROWS=8 -DSIMD_VECTORS=3".split()

TYPES = {"float": "f4", "adamw_options": "f4", "int32_t": "i4", "sum_start": "i4", "int64_t": "i8", "size_t": "u8"}
L2_CACHE = 256 << 10


def compiled(directory: Path) -> Path:
    """Compile call_kernels.c, the kernels and those of the level once more for it."""
    once = KERNELS / "simd" / "scratch.c"
    once_per_level = [path for path in (KERNELS / "simd").glob("*.c") if path != once]
    others = [once, *(path for folder in (".", "ref", "blas") for path in (KERNELS / folder).glob("*.c"))]
    include = [f"-I{folder}" for folder in (NATIVE / "src", NATIVE / "include", directory)]
    calls = [
        f"case {number}: kernels->{name}({', '.join(map(expression, range(len(of)), of))}, call->team); break;\n"
        for number, (name, of) in enumerate(declared_kernels().items())
    ]
    directory.joinpath("calls.def").write_text("".join(calls))
    program, source = directory / "call_kernels", Path(__file__).with_name("call_kernels.c")
    sources = [*others, NATIVE / "src" / "status.c", source]
    run = partial(subprocess.run, cwd=directory, check=True, timeout=200)
    run([COMPILER, *FLAGS, *NEON, *include, "-c", *once_per_level])
    options = [*FLAGS, "-DSTARPULLM_BASELINE=neon", *include]
    libraries = ["-static", "-lm", "-lpthread", "-ldl", "-o", program]
    run([COMPILER, *options, *sources, *sorted(directory.glob("*.o")), *libraries])
    return program


def is_pointer(parameter: Parameter) -> bool:
    return parameter.shape is not None or parameter.type == "adamw_options"


def expression(number: int, parameter: Parameter) -> str:
    kind = "enum sum_start" if parameter.type == "sum_start" else parameter.type
    return f"argument[{number}]" if is_pointer(parameter) else f"*({kind} *)argument[{number}]"


class Emulated:
    """A kernel of a level of the emulated program."""

    def __init__(self, process: subprocess.Popen[bytes], level: str, kernel: str, l2_cache: int) -> None:
        self.process, self.level, self.kernel, self.l2_cache = process, level.encode(), kernel, l2_cache

    def __call__(self, arguments: Mapping[str, Any], *, thread: int, threads: int) -> None:
        parameters = declared_kernels()[self.kernel]
        number = list(declared_kernels()).index(self.kernel)
        requests, answers = self.process.stdin, self.process.stdout
        assert requests is not None
        assert answers is not None
        requests.write(struct.pack("16sq4i", self.level, self.l2_cache, number, len(parameters), thread, threads))
        for of in parameters:
            value = arguments[of.name]
            data = b"" if value is None else np.asarray(value, TYPES[of.type]).tobytes()
            requests.write(struct.pack("q", -1 if value is None else len(data)) + data)
        requests.flush()
        for of in parameters:
            value = arguments[of.name]
            if value is not None:
                kept = np.asarray(value, TYPES[of.type])
                left = np.frombuffer(answers.read(kept.nbytes), kept.dtype).reshape(kept.shape)
                if isinstance(value, np.ndarray):
                    value[...] = left


@pytest.mark.timeout(500)
def test_neon_kernels_have_the_references_bits(tmp_path: Path) -> None:
    for tool in (COMPILER, EMULATOR):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} isn't installed")
    fences, found, compared = Fences(), [], 0
    command = [EMULATOR, str(compiled(tmp_path))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        total, term = np.array([1, 2, 3], np.float32), np.array([1, 2, 4], np.float32)
        Emulated(process, "neon", "gradient_add", L2_CACHE)(
            {"sum": total, "term": term, "count": 3}, thread=0, threads=1
        )
        assert total.tolist() == [2, 4, 7]
        for kernel, cases in CASES.items():
            outputs = [of.name for of in declared_kernels()[kernel] if not of.is_input and of.shape is not None]
            for number in range(cases.number):
                case = make_case(kernel, 1, number)
                levels = {name: Emulated(process, name, kernel, case.l2_cache or L2_CACHE) for name in ("ref", "neon")}
                elements, of_case = compare_levels(case, levels, outputs, fences)
                found += of_case
                compared += elements
    assert found == []
    assert compared > 0
    assert process.returncode == 0
