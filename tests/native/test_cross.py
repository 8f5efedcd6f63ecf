"""The elementary functions, the kernels and the plain model have the same bits with another C library and processor.

They are compiled for musl, and for aarch64, whose programs an emulator runs. On Debian these are musl-tools,
gcc-aarch64-linux-gnu and qemu-user.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from starpullm.binding.kernels import Kernel, level_name
from starpullm.checks.kernels.guard_pages import GuardPages
from starpullm.checks.kernels.kernel_bits import Function, compare_levels
from starpullm.checks.kernels.kernel_cases import CASES, Parameter, declared_kernels, make_case, product_kernels
from starpullm.data.generator import generate_parameters, generate_tokens
from starpullm.golden.plain import PlainModel, Settings, new_state
from starpullm.golden.records import shipped_record
from starpullm.options import ARITHMETICS

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "native"
KERNELS = NATIVE / "src" / "kernels"

# As native/CMakeLists.txt has them.
FLAGS = "-std=c11 -O3 -Wall -Wextra -Werror -D_GNU_SOURCE -ffp-contract=off -fno-math-errno -fno-trapping-math".split()

TYPES = {"float": "f4", "adamw_options": "f4", "int32_t": "i4", "sum_start": "i4", "int64_t": "i8", "size_t": "u8"}
L2_CACHE = 256 << 10


KINDS_OF_CASES = 42
"""So many cases of a kernel have each kind of size. The suite runs all of them where the level is the machine's."""


class System(NamedTuple):
    """A compiler, what runs its programs, and the vector level of all its processors.

    The level's options are those of strict sums, then those that differ for fused ones.
    """

    compiler: str
    emulator: tuple[str, ...]
    level: str
    options: str
    strict: str = ""
    fused: str = ""

    def compiled(self, directory: Path, *sources: Path, options: tuple[str, ...] = ()) -> list[str]:
        """Compile a program; return the command that runs it."""
        for tool in (self.compiler, *self.emulator):
            if shutil.which(tool) is None:
                pytest.skip(f"{tool} isn't installed")
        program = directory / f"{sources[0].stem}-{self.level}"
        self.compile(directory, *options, "-static", *sources, "-lm", "-lpthread", "-ldl", "-o", program)
        return [*self.emulator, str(program)]

    def compile(self, directory: Path, *arguments: str | Path) -> None:
        include = [f"-I{folder}" for folder in (NATIVE, NATIVE / "src", NATIVE / "include", directory)]
        subprocess.run([self.compiler, *FLAGS, *include, *arguments], cwd=directory, check=True, timeout=200)


NATIVELY = System("cc", (), "native", "")
MUSL = System(
    "musl-gcc",
    (),
    "sse2",
    "-DSIMD_BYTES=16 -DSIMD_REGISTERS=16 -DSIMD_ROWS=3",
    "-DSIMD_VECTORS=4 -DFUSED_ROWS=3 -DFUSED_VECTORS=1",
    "-DSIMD_VECTORS=1",
)
AARCH64 = System(
    "aarch64-linux-gnu-gcc",
    ("qemu-aarch64",),
    "neon",
    "-DSIMD_BYTES=16 -DSIMD_REGISTERS=32 -DSIMD_ROWS=8 -DSIMD_VECTORS=3",
    "-DFUSED_ROWS=8 -DFUSED_VECTORS=3",
    "-include arm_neon.h -DSIMD_FMA(a,b,sum)=vfmaq_f32(sum,a,b)",
)
OTHERS = pytest.mark.parametrize("system", [MUSL, AARCH64], ids=["musl", "aarch64"])


@OTHERS
def test_functions(system: System, tmp_path: Path) -> None:
    """2^24 arguments with musl; fewer where an emulator computes."""
    bits = "22" if system.emulator else "24"
    source = HERE / "call_functions.c"
    programs = [compiler.compiled(tmp_path, source) for compiler in (NATIVELY, system)]
    for function in ("expf", "tanhf", "coshf", "logf", "powf"):
        expected, found = (
            subprocess.run([*program, function, bits], stdout=subprocess.PIPE, check=True, timeout=100).stdout
            for program in programs
        )
        assert len(expected) == 17
        assert found == expected, function


@OTHERS
def test_plain_model(system: System, tmp_path: Path) -> None:
    record, settings, steps = shipped_record("tiny"), Settings(), 3
    sizes = (record.batch_size, record.seq_len)
    state = new_state(record.model, dict(generate_parameters(record.model, record.seed)))
    model = PlainModel(record.model, state, *sizes, settings)
    batches = [generate_tokens(record.seed, step, *sizes, record.model.vocab_size) for step in range(steps)]
    tensors = [
        tensor
        for group in ("params", "grads", "activations", "activation_grads", "m", "v")
        for tensor in model.groups[group].values()
    ]
    config = record.model
    of_model = (config.channels, config.num_heads, config.num_layers, config.vocab_size, config.padded_vocab_size)
    numbers = np.array([*sizes, *of_model, steps, *(tensor.size for tensor in tensors)], np.uint64)
    parameters = b"".join(tensor.tobytes() for tensor in model.groups["params"].values())
    request = numbers.tobytes() + parameters + np.array(batches, np.int32).tobytes()
    losses = np.array([model.step(*batch) for batch in batches], np.float32)
    command = system.compiled(tmp_path, HERE / "train_plain.c")
    done = subprocess.run(command, input=request, stdout=subprocess.PIPE, check=True, timeout=100)
    assert len(set(losses)) == steps
    assert done.stdout == losses.tobytes() + b"".join(tensor.tobytes() for tensor in tensors)


def test_reads_and_writes_are_told_apart(tmp_path: Path) -> None:
    """Each kind of load and store of aarch64, where the emulator doesn't say which of them a memory fault was."""
    sources = (HERE / "fault_kinds.c", NATIVE / "src" / "instrument" / "fault_aarch64.c")
    command = AARCH64.compiled(tmp_path, *sources, options=("-march=armv8.3-a+sve",))
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60, text=True)
    accesses = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    assert len(accesses) > 40
    assert [instruction for expected, found, instruction in accesses if found != expected] == []


def compiled_kernels(system: System, directory: Path) -> list[str]:
    """Compile call_kernels.c, the kernels and those of the level once more for it."""
    once = KERNELS / "simd" / "scratch.c"
    once_per_level = [path for path in (KERNELS / "simd").glob("*.c") if path != once]
    others = [once, *(path for folder in (".", "ref", "blas") for path in (KERNELS / folder).glob("*.c"))]
    calls = [
        f"case {number}: kernels->{name}({', '.join(map(expression, count(), parameters))}, team); break;\n"
        for number, (name, parameters) in enumerate(declared_kernels().items())
    ]
    directory.joinpath("calls.def").write_text("".join(calls))
    options = system.options.split()
    system.compile(directory, *options, *system.strict.split(), f"-DSIMD_LEVEL={system.level}", "-c", *once_per_level)
    fused = directory / "fused"
    fused.mkdir()
    options += [*system.fused.split(), "-DARITHMETIC=fused", f"-DSIMD_LEVEL={system.level}_fused"]
    no_products = ("gelu", "layernorm", "level", "shared_with_ref")
    system.compile(fused, *options, "-c", *(path for path in once_per_level if path.stem not in no_products))
    objects = sorted(directory.rglob("*.o"))
    sources = [HERE / "call_kernels.c", *others, NATIVE / "src" / "status.c", *objects]
    return system.compiled(directory, *sources, options=(f"-DSTARPULLM_BASELINE={system.level}",))


def is_pointer(parameter: Parameter) -> bool:
    return parameter.shape is not None or parameter.type == "adamw_options"


def expression(number: int, parameter: Parameter) -> str:
    kind = "enum sum_start" if parameter.type == "sum_start" else parameter.type
    return f"argument[{number}]" if is_pointer(parameter) else f"*({kind} *)argument[{number}]"


class Elsewhere:
    """A kernel of a level of the other system's program."""

    def __init__(self, process: subprocess.Popen[bytes], level: str, kernel: str, l2_cache: int) -> None:
        self.process, self.level, self.kernel, self.l2_cache = process, level.encode(), kernel, l2_cache

    def __call__(self, arguments: Mapping[str, Any], *, thread: int, threads: int) -> None:
        parameters = declared_kernels()[self.kernel]
        number = list(declared_kernels()).index(self.kernel)
        requests, answers = self.process.stdin, self.process.stdout
        assert requests is not None
        assert answers is not None
        requests.write(struct.pack("16sq4i", self.level, self.l2_cache, number, len(parameters), thread, threads))
        for parameter in parameters:
            value = arguments[parameter.name]
            data = b"" if value is None else np.asarray(value, TYPES[parameter.type]).tobytes()
            requests.write(struct.pack("q", -1 if value is None else len(data)) + data)
        requests.flush()
        for parameter in parameters:
            value = arguments[parameter.name]
            if value is not None:
                kept = np.asarray(value, TYPES[parameter.type])
                left = np.frombuffer(answers.read(kept.nbytes), kept.dtype).reshape(kept.shape)
                if isinstance(value, np.ndarray):
                    value[...] = left


@pytest.mark.timeout(500)
@OTHERS
def test_kernels(system: System, tmp_path: Path) -> None:
    """The plain kernels and those of the level, compared with the plain ones of the installed library."""
    guard_pages, found, compared = GuardPages(), [], 0
    command = compiled_kernels(system, tmp_path)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        total, term = np.array([1, 2, 3], np.float32), np.array([1, 2, 4], np.float32)
        Elsewhere(process, system.level, "gradient_add", L2_CACHE)(
            {"sum": total, "term": term, "count": 3}, thread=0, threads=1
        )
        assert total.tolist() == [2, 4, 7]
        for kernel in CASES:
            outputs = [
                parameter.name
                for parameter in declared_kernels()[kernel]
                if not parameter.is_input and parameter.shape is not None
            ]
            for number in range(KINDS_OF_CASES):
                case = make_case(kernel, 1, number)
                l2_cache = case.l2_cache or L2_CACHE
                for arithmetic in ARITHMETICS if kernel in product_kernels() else ARITHMETICS[:1]:
                    ref, level = (level_name(name, arithmetic) for name in ("ref", system.level))
                    levels: dict[str, Function] = {ref: Kernel(ref, kernel)}
                    levels |= {f"{name} elsewhere": Elsewhere(process, name, kernel, l2_cache) for name in (ref, level)}
                    elements, of_case = compare_levels(case, levels, outputs, guard_pages)
                    found += of_case
                    compared += elements
    assert found == []
    assert compared > 0
    assert process.returncode == 0
