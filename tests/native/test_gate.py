"""The throughput gate on measured rounds of two builds, also over ranks.

All measurements run in child processes. No test expects a certain speed of the machine.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import psutil

from starpullm.binding.library import find_library
from starpullm.checks.result import json_value
from starpullm.data.generator import generate_checkpoint
from starpullm.errors import InvalidArgumentError, RuntimeFailureError
from starpullm.golden.records import shipped_record
from starpullm.speed.gate import BUDGET
from starpullm.speed.interleaved_rounds import interleaved_rounds, with_control
from starpullm.speed.speed_verdict import SpeedVerdict
from starpullm.speed.variant import Variant
from starpullm.speed.workload import Workload

from .children import TWO_CORES, Reply, attempt, run_function

TIMEOUT = 110
RECORD = shipped_record("odd")


def workload(ranks: int = 1, **changes: Any) -> Workload:
    values = {
        "model": RECORD.name,
        "batch_size": RECORD.batch_size * ranks,
        "seq_len": RECORD.seq_len,
        "partition": "1x1",
        "ranks": ranks,
    }
    return Workload(**{**values, **changes})


def two_builds(directory: str, environment: dict[str, str], rounds: int) -> dict[str, Any]:
    checkpoint = Path(directory) / "model.bin"
    generate_checkpoint(checkpoint, RECORD.model, RECORD.seed)
    builds = with_control(Variant("new", environment=environment), Variant("baseline"))
    with interleaved_rounds(workload(), checkpoint, builds) as interleaved:
        for _ in range(rounds):
            assert interleaved.run_round() == interleaved.new.seconds[-1]["step"] > 0
        result = interleaved.decide(interleaved.finish(), BUDGET)
        return {
            "result": result.as_json(),
            "costs": interleaved.compare_costs().as_json(),
            "peaks": len(interleaved.peaks),
        }


def test_reference_kernels_are_slower_than_vectors(tmp_path: Path) -> None:
    """A large slowdown of the operations whose kernels differ; the task graph is the same."""
    told = run_function(two_builds, tmp_path, {"STARPULLM_SIMD": "ref"}, 16, timeout=TIMEOUT, environment=TWO_CORES)
    result = told["result"]
    slower = {change["name"] for change in result["facts"]["changes"] if change["verdict"] == SpeedVerdict.SLOWER.value}
    assert result["facts"]["verdict"] == SpeedVerdict.SLOWER.value
    assert result["outcome"] == "failed"
    assert {"step", "matmul_forward"} <= slower
    assert told["costs"]["outcome"] == "passed"
    assert told["costs"]["facts"]["now"] == told["costs"]["facts"]["baseline"]
    assert told["costs"]["facts"]["now"]["tasks"] > told["costs"]["facts"]["now"]["path_tasks"] > 0
    assert told["peaks"] == 18


def bits_of_two_builds(directory: str, other: str) -> list[Any]:
    checkpoint = Path(directory) / "model.bin"
    generate_checkpoint(checkpoint, RECORD.model, RECORD.seed)
    results = []
    for reduction, build in (
        ("tree", Variant("new", environment={"STARPULLM_SIMD": "ref"})),
        ("ordered", Variant("new", library=Path(other))),
        ("redux", Variant("new")),
    ):
        builds = with_control(build, Variant("baseline"))
        with interleaved_rounds(workload(reduction=reduction, sub_batches=3), checkpoint, builds) as interleaved:
            result = interleaved.compare_bits()
            results.append(None if result is None else result.as_json())
    return results


def test_builds_with_other_bits_are_found(tmp_path: Path) -> None:
    """One build has another coefficient of the exponential: other probabilities, and all that follows from them."""
    own, library = find_library().read_bytes(), tmp_path / "libstarpullm.so"
    right, wrong = (struct.pack("<d", float.fromhex(digits)) for digits in ("0x1.c6b08d70400d0p-20", "0x1.c0p-20"))
    assert right in own
    library.write_bytes(own.replace(right, wrong))
    same, other, not_fixed = run_function(bits_of_two_builds, tmp_path, library, timeout=TIMEOUT, environment=TWO_CORES)
    assert (same["outcome"], same["measured"]) == ("passed", 0)
    assert same["compared"] == other["compared"] > 100
    assert other["outcome"] == "failed"
    assert other["measured"] > 100
    assert other["findings"][0]["sentence"].startswith("grads/")
    assert not_fixed is None


def series(directory: str, ranks: int) -> dict[str, Any]:
    checkpoint = Path(directory) / "model.bin"
    generate_checkpoint(checkpoint, RECORD.model, RECORD.seed)
    with interleaved_rounds(workload(ranks), checkpoint, [Variant("own")]) as interleaved:
        steps = [interleaved.run_round() for _ in range(3)]
        speed = interleaved.finish()
        return {
            "steps": steps,
            "seconds": json_value(interleaved.new.seconds),
            "fraction": speed.fraction_of_limit,
            "cost": interleaved.new.first["cost"],
        }


def test_over_ranks(tmp_path: Path) -> None:
    """Two ranks send messages, which are no operation of a step."""
    told = run_function(series, tmp_path, 2, timeout=TIMEOUT, environment=TWO_CORES)
    assert told["cost"]["bytes_between_ranks"] > 0
    assert [round_["step"] for round_ in told["seconds"]] == told["steps"]
    assert all(seconds > 0 for round_ in told["seconds"] for seconds in round_.values())
    assert 0 < told["fraction"] < 1
    assert set(told["seconds"][0]) >= {"step", "matmul_forward", "adamw_update"}
    assert "transfer" not in told["seconds"][0]


def impossible(directory: str) -> Reply:
    checkpoint = Path(directory) / "model.bin"
    generate_checkpoint(checkpoint, RECORD.model, RECORD.seed)

    def run() -> None:
        with interleaved_rounds(workload(scheduler="none"), checkpoint, [Variant("own")]):
            pass

    return attempt(run)


def test_an_impossible_workload_is_reported_with_its_contender(tmp_path: Path) -> None:
    reply = run_function(impossible, tmp_path, timeout=TIMEOUT, environment=TWO_CORES)
    assert reply["raised"] == InvalidArgumentError.__name__
    assert reply["text"].startswith('own, 1x1, S = 1, ordered: scheduler: found "none", expected one that StarPU')


def killed(directory: str) -> Reply:
    checkpoint = Path(directory) / "model.bin"
    generate_checkpoint(checkpoint, RECORD.model, RECORD.seed)

    def run() -> None:
        with interleaved_rounds(workload(), checkpoint, [Variant("own")]) as interleaved:
            interleaved.run_round()
            psutil.Process().children(recursive=True)[-1].kill()
            interleaved.run_round()

    return attempt(run)


def test_a_process_that_dies_is_named(tmp_path: Path) -> None:
    reply = run_function(killed, tmp_path, timeout=TIMEOUT, environment=TWO_CORES)
    assert reply["raised"] == RuntimeFailureError.__name__
    assert "own, 1x1, S = 1, ordered: the process was ended by SIGKILL" in reply["text"]
