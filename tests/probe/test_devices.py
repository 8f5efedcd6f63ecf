"""Programs whose tasks run on OpenCL devices, too: what perturbed schedules draw, and mistakes that only these show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from starpullm.checks.result import Outcome
from starpullm.errors import InvalidArgumentError
from starpullm.probe.findings import Fault
from starpullm.probe.probe_schedules import number_of_devices

from ..native.test_devices import ON_CPUS, found_devices
from .conftest import Compile, probe

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def devices(compiled: Compile) -> Iterator[Path]:
    if not found_devices(ON_CPUS):
        pytest.skip("there is no OpenCL device that StarPU can use")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STARPU_OPENCL_ON_CPUS", "1")
        yield compiled("devices")


@pytest.mark.parametrize("name", ["right", "right_on_devices_only", "right_asynchronous"])
def test_no_false_alarm(devices: Path, name: str) -> None:
    """All implementations have run, or the lines of what wasn't seen would say so."""
    result = probe([str(devices), name], runs=2, workers=2, devices="all")
    assert (result.outcome, result.findings, result.unseen) == (Outcome.PASSED, (), ()), result.lines()
    assert result.different == 0 < result.compared


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("other_result", Fault.OUTPUT_DIFFERS, "by its implementation 0 for devices than by 0 for CPUs"),
        ("unsynchronised", Fault.NOT_WAITED, "returns before what it has started on the device ends"),
        ("wrong_mode", Fault.READ_WRITTEN, "changes data that it declares to read only"),
    ],
)
def test_a_mistake_that_is_seen_on_a_device_only(devices: Path, name: str, kind: Fault, words: str) -> None:
    command = [str(devices), name]
    result = probe(command, runs=1, workers=2, devices=1)
    (finding,) = result.findings
    assert (finding.kind, finding.codelet) == (kind, "smooth"), result.lines()
    assert "on a device" in finding.where
    assert words in finding.sentence
    assert "--devices 1 " in finding.evidence["again"]
    without = probe(command, runs=1, workers=2, poison=False)
    assert without.outcome is Outcome.PASSED, without.lines()


def test_a_device_may_round_otherwise_within_a_tolerance(devices: Path) -> None:
    command = [str(devices), "other_rounding"]
    result = probe(command, runs=1, workers=2, devices=1, tolerance="8ulp")
    assert (result.outcome, result.findings) == (Outcome.PASSED, ()), result.lines()
    assert 0 < result.tolerated <= result.different
    (finding,) = probe([str(devices), "other_result"], runs=1, workers=2, devices=1, tolerance="8ulp").findings
    assert (finding.kind, finding.codelet) == (Fault.BEYOND_TOLERANCE, "smooth")


@pytest.mark.parametrize("asked", ["some", "-1", "1000"])
def test_a_number_that_there_is_not(asked: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"^devices: found \d+, expected {asked}; starpullm doctor "):
        number_of_devices(asked)
