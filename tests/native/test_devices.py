"""OpenCL devices: the kernels alone, which need no StarPU, and what is refused.

The suite's check "devices" trains with one. On Debian, pocl-opencl-icd makes a device of the CPU, and the headers are
in ocl-icd-opencl-dev.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from starpullm import Runtime, Trainer
from starpullm.binding.kernels import Kernel
from starpullm.checks.kernels.guard_pages import GuardPages
from starpullm.checks.kernels.kernel_bits import Function, compare_levels
from starpullm.checks.kernels.kernel_cases import CASES, declared_kernels, make_case
from starpullm.data.generator import generate_checkpoint
from starpullm.errors import InvalidArgumentError, OutOfMemoryError
from starpullm.golden.records import shipped_record
from starpullm.instruments import Instruments

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
    NATIVELY.compile(directory, *sources, "-lOpenCL", "-lpthread", "-o", directory / "call_device")
    alone = subprocess.run([directory / "call_device"], check=False, stdin=subprocess.DEVNULL, timeout=100)
    if alone.returncode == NO_DEVICE:
        pytest.skip("there is no OpenCL device")
    return directory / "call_device"


@pytest.mark.timeout(300)
def test_kernels(program: Path) -> None:
    """Each kernel on the device, compared with the plain ones of the installed library; the device is the team."""
    pages, found, compared = GuardPages(), [], 0
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for kernel in CASES:
            parameters = declared_kernels()[kernel]
            kinds = "".join("v" if of.shape is None else "a" for of in parameters)
            outputs = [of.name for of in parameters if not of.is_input and of.shape is not None]
            levels: dict[str, Function] = {"ref": Kernel("ref", kernel), "opencl": Elsewhere(process, kinds, kernel, 0)}
            for number in range(KINDS_OF_CASES):
                case = replace(make_case(kernel, 1, number), threads=1)
                elements, of_case = compare_levels(case, levels, outputs, pages)
                found += of_case
                compared += elements
    assert found == []
    assert compared > 0
    assert process.returncode == 0


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
