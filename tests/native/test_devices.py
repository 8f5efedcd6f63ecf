"""OpenCL devices: the kernels alone, which need no StarPU, and what is refused.

The suite's check "devices" trains with one. On Debian, pocl-opencl-icd makes a device of the CPU, and the headers are
in ocl-icd-opencl-dev.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from starpullm import Runtime, Trainer
from starpullm.binding.kernels import Kernel, level_name
from starpullm.checks.kernels.draw_case import Draw
from starpullm.checks.kernels.guard_pages import GuardPages
from starpullm.checks.kernels.kernel_bits import Function, compare_levels
from starpullm.checks.kernels.kernel_cases import CASES, Sizes, declared_kernels, make_case, product_kernels
from starpullm.checks.result import Finding
from starpullm.data.generator import generate_checkpoint
from starpullm.errors import InvalidArgumentError, OutOfMemoryError
from starpullm.golden.records import shipped_record
from starpullm.instruments import Instruments
from starpullm.options import ARITHMETICS

from .children import TWO_CORES, Reply, assert_command_refused, assert_refused, attempt, run_cli, run_function
from .test_cross import HERE, KINDS_OF_CASES, NATIVE, NATIVELY, Elsewhere

ON_CPUS = {**TWO_CORES, "STARPU_OPENCL_ON_CPUS": "1"}
NO_DEVICE = 3
"""Exit status of call_device."""


# ---- The kernels ----


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile call_device.c and the text of the kernels."""
    directory = tmp_path_factory.mktemp("device")
    includes = ["cc", "-E", "-include", "CL/cl.h", "-xc", "/dev/null"]
    if subprocess.run(includes, check=False, capture_output=True, timeout=60).returncode:
        pytest.skip("OpenCL's headers aren't installed")
    text = directory / "devices" / "program_text.h"
    text.parent.mkdir()
    script = NATIVE / "cmake" / "DeviceProgram.cmake"
    subprocess.run(["cmake", f"-DSOURCES={NATIVE / 'src'}", f"-DTEXT={text}", "-P", script], check=True, timeout=60)
    sources = [HERE / "call_device.c", NATIVE / "src" / "devices" / "device.c", NATIVE / "src" / "status.c"]
    NATIVELY.compile(
        directory,
        f"-I{NATIVE / 'tests' / 'kernels'}",
        *sources,
        "-lOpenCL",
        "-lpthread",
        "-o",
        directory / "call_device",
    )
    alone = subprocess.run([directory / "call_device"], check=False, stdin=subprocess.DEVNULL, timeout=100)
    if alone.returncode == NO_DEVICE:
        pytest.skip("there is no OpenCL device")
    return directory / "call_device"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_kernels(program: Path, arithmetic: str) -> None:
    """Each kernel on the device, compared with the plain ones of the installed library; the device is the team."""
    kernels = CASES if arithmetic == ARITHMETICS[0] else product_kernels()
    assert found_differing(program, arithmetic, dict.fromkeys(kernels, KINDS_OF_CASES)) == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_edges_of_tiles(program: Path, arithmetic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matmuls of sizes that are parts of the tiles of 64 x 64 outputs and 16 terms, and a bit more or less."""
    edges = (1, 2, 7, 15, 16, 17, 31, 63, 64, 65, 97, 131)

    def sizes(draw: Draw) -> Sizes:
        N, C, OC = (edges[draw.below(len(edges))] for _ in range(3))
        first = draw.below(OC)
        return {"N": N, "C": C, "OC": OC, "first": first, "rows": 1 + draw.below(OC - first)}

    kernels = [kernel for kernel in CASES if kernel.startswith("matmul")]
    for kernel in kernels:
        monkeypatch.setitem(CASES, kernel, CASES[kernel]._replace(sizes=sizes))
    assert found_differing(program, arithmetic, dict.fromkeys(kernels, 120)) == []


def found_differing(program: Path, arithmetic: str, numbers: Mapping[str, int]) -> list[Finding]:
    """Compare kernels in so many cases each."""
    pages, found, plain = GuardPages(), [], level_name("ref", arithmetic)
    with subprocess.Popen([program, arithmetic], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for kernel, number in numbers.items():
            parameters = declared_kernels()[kernel]
            kinds = "".join("v" if of.shape is None else "a" for of in parameters)
            outputs = [of.name for of in parameters if not of.is_input and of.shape is not None]
            levels: dict[str, Function] = {plain: Kernel(plain, kernel), "opencl": Elsewhere(process, kinds, kernel, 0)}
            for case in (replace(make_case(kernel, 1, of), threads=1) for of in range(number)):
                elements, of_case = compare_levels(case, levels, outputs, pages)
                assert elements > 0
                found += of_case
    assert process.returncode == 0
    return found


# ---- In a runtime ----


def found_devices(environment: dict[str, str]) -> list[dict[str, object]]:
    machine = json.loads(run_cli("doctor", "--json", environment=environment).check().stdout)
    return list(machine["devices"])


@pytest.fixture
def a_device() -> None:
    if not found_devices(ON_CPUS):
        pytest.skip("there is no OpenCL device that StarPU can use")


def started(**options: object) -> Reply:
    return attempt(lambda: Runtime(**options).close())  # type: ignore[arg-type]


def start(options: dict[str, object]) -> Reply:
    return started(**options)


@pytest.mark.parametrize("devices", [-1, "many", "", 2**31])
def test_no_number(devices: object) -> None:
    assert_refused(run_function(start, {"devices": devices}), InvalidArgumentError, "devices: ")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"partition": "1x2"}, "partition 1x2"),
        ({"platform_functions": True}, "the platform's functions"),
        ({"offload": "/var/tmp", "memory_limit": "1G"}, "offload"),
    ],
)
def test_what_has_no_devices(options: dict[str, object], found: str) -> None:
    reply = run_function(start, {**options, "devices": 1}, environment=TWO_CORES)
    assert_refused(reply, InvalidArgumentError, f"devices: found {found}, expected")


def test_too_many() -> None:
    reply = run_function(start, {"devices": 9}, environment=ON_CPUS)
    number = len(found_devices(ON_CPUS))
    assert_refused(reply, InvalidArgumentError, f"devices: found {number} OpenCL devices", "expected 9")


def test_none_for_all() -> None:
    if found_devices(TWO_CORES):
        pytest.skip("there is an OpenCL device that is no CPU")
    run = run_cli("parity", "tiny", "--devices", "all", environment=TWO_CORES)
    assert_command_refused(run, "devices: found 0 OpenCL devices that StarPU can use, expected 1")


def platforms_of_start() -> bool:
    """Whether a start loads the platform of CPUs."""
    started()
    return "/libpocl" in Path("/proc/self/maps").read_text()


def test_start_without_devices_loads_no_platform(a_device: None) -> None:
    assert not run_function(platforms_of_start, environment=ON_CPUS)


def train(model: str, options: dict[str, int], instruments: dict[str, bool]) -> Reply:
    def attempted() -> None:
        with Runtime(**options) as runtime:  # type: ignore[arg-type]
            sizes = {"batch_size": 4, "seq_len": 64}
            Trainer(runtime, model, trace=True, instruments=Instruments(**instruments), **sizes)  # type: ignore[arg-type]

    return attempt(attempted)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    record, path = shipped_record("small"), tmp_path_factory.mktemp("model") / "small.bin"
    generate_checkpoint(path, record.model, record.seed)
    return path


@pytest.mark.parametrize("instrument", ["audit", "poison"])
def test_memory_is_not_watched(a_device: None, small: Path, instrument: str) -> None:
    reply = run_function(train, small, {"devices": 1}, {instrument: True}, environment=ON_CPUS)
    assert_refused(reply, InvalidArgumentError, "instruments: found audit or poison beside devices, expected none")


def test_draws_need_devices(small: Path) -> None:
    reply = run_function(train, small, {}, {"device_percent": 50}, environment=TWO_CORES)
    assert_refused(reply, InvalidArgumentError, "instruments: found tasks for devices on a runtime without any")


def test_too_little_memory(a_device: None, small: Path) -> None:
    environment = {**ON_CPUS, "STARPU_LIMIT_OPENCL_MEM": "1"}
    reply = run_function(train, small, {"devices": 1}, {}, environment=environment)
    assert_refused(reply, OutOfMemoryError, "devices: found 1048576 bytes", "for the largest task")


@pytest.mark.timeout(200)
def test_commands(a_device: None, tmp_path: Path) -> None:
    parity = run_cli("parity", "tiny", "odd", "--devices", "all", environment=ON_CPUS, timeout=90).check()
    assert parity.stdout.splitlines()[-1].endswith(", 0 differ")
    again = run_cli("bench", "--model", "tiny", "--devices", "1", "--json", environment=ON_CPUS, timeout=90).check()
    assert np.isfinite(json.loads(again.stdout)[0]["tokens_per_ms"])
