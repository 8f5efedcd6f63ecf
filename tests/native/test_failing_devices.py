"""Devices that fail, by a preloaded library: a failure is one sentence, and saved states stay whole."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from .children import Finished, run_cli
from .test_cross import HERE, NATIVELY
from .test_devices import ON_CPUS, found_devices

LOST = "-5"
"""Out of resources."""

NO_MEMORY = "-4"
"""Of an object."""

SIZES = ("--batch-size", 2, "--seq-len", 8)


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, str]]:
    """Compile fail_device.c; return an environment in which calls fail."""
    if not found_devices(ON_CPUS):
        pytest.skip("there is no OpenCL device that StarPU can use")
    directory = tmp_path_factory.mktemp("failing")
    library = directory / "fail_device.so"
    linked = ("-shared", "-fPIC", "-Wl,--no-as-needed", "-lOpenCL", "-ldl")
    NATIVELY.compile(directory, HERE / "fail_device.c", *linked, "-o", library)
    return lambda **how: {**ON_CPUS, "LD_PRELOAD": str(library), **how}


def test_kernels_that_do_not_compile(failing: Callable[..., dict[str, str]]) -> None:
    environment = failing(FAIL_CALL="clCreateProgramWithSource", FAIL_ERROR="0")
    run = run_cli("parity", "tiny", "--devices", 1, environment=environment).check(4)
    assert run.stdout == ""
    assert re.search(r"Error: device .+: its compiler refuses the kernels \(error -11\): error: .+not", run.stderr), run


def test_memory_runs_out_in_a_step(failing: Callable[..., dict[str, str]]) -> None:
    """The device has less than it says, and hardly more than the largest task takes: StarPU evicts."""
    environment = failing(FAIL_BYTES="6500000", FAIL_ERROR=NO_MEMORY)
    run = run_cli("parity", "small", "--devices", 1, environment=environment).check()
    assert run.stdout.splitlines()[-1].endswith(", 0 differ")


@pytest.mark.parametrize("call", ["clEnqueueNDRangeKernel", "clEnqueueReadBuffer"])
def test_lost(
    failing: Callable[..., dict[str, str]], tiny_checkpoint: Path, tiny_tokens: Path, tmp_path: Path, call: str
) -> None:
    """No loss is printed that isn't right, and a run goes on from its last state. StarPU aborts if it can't copy.

    A state is written beside the steps that follow it, so the first one is that of a run which ends.
    """
    start = ("train", "--checkpoint", tiny_checkpoint)
    training = ("--tokens", tiny_tokens, *SIZES, "--save-every", 1, "--state-dir", tmp_path / "states")
    resume = ("train", "--resume", tmp_path / "states", *training)
    before = run_cli(*start, *training, "--steps", 1).check()
    environment = failing(FAIL_CALL=call, FAIL_AFTER="120", FAIL_ERROR=LOST)
    lost = run_cli(*resume, "--steps", 10**6, "--devices", 1, environment=environment)
    if call == "clEnqueueNDRangeKernel":
        [sentence] = lost.check(4).stderr.splitlines()
        assert re.fullmatch(rf"Error: device .+: \w+ failed \(error {LOST}\).*", sentence)
    else:
        assert f"({LOST})" in lost.check(-signal.SIGABRT).stderr
    last = len(losses(lost)) + 4
    again = run_cli(*resume, "--steps", last).check()
    whole = run_cli(*start, "--tokens", tiny_tokens, *SIZES, "--steps", last).check()
    assert len(losses(lost)) > 0
    assert len(losses(again)) >= 3
    assert losses(before).items() | losses(lost).items() | losses(again).items() == losses(whole).items()


def losses(run: Finished) -> dict[str, str]:
    """Return the losses that a run has printed, by step."""
    return dict(re.findall(r"^step (\d+)/\d+: loss ([\d.]+),", run.stdout, re.MULTILINE))
