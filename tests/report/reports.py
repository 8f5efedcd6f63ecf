"""Reports to make pages from: of a run that passed, of one that failed in every way, and of one that was killed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from starpullm.checks.check import Check
from starpullm.checks.dependencies.runtime_graph import RuntimeGraph
from starpullm.checks.parity import Parity
from starpullm.checks.reduction import GradientBounds, TensorError
from starpullm.checks.result import Finding
from starpullm.checks.same_bits import BitStability
from starpullm.report.document import new_document

OPERATIONS = [
    "encoder_forward",
    "matmul_forward",
    "attention_forward",
    "crossentropy_forward",
    "crossentropy_softmax_backward",
    "matmul_backward_weight",
    "attention_backward",
    "encoder_backward",
    "adamw_update",
]
MACHINE = {
    "version": "0.1.0",
    "library": "/opt/starpullm/lib/libstarpullm.so",
    "compiler": "gcc 14",
    "compiler_flags": "-O3",
    "build_type": "Release",
    "starpu_version": "1.4.10",
    "starpu_built_against": "1.4.10",
    "starpu_prefix": "/opt/starpu",
    "starpu_library": "/opt/starpu/lib/libstarpu-1.4.so.9.0.0",
    "starpu_max_workers": 64,
    "starpu_max_contexts": 10,
    "starpu_max_nodes": 8,
    "starpu_handle_bytes": 2776,
    "devices": [],
    "schedulers": ["lws", "eager"],
    "processor": "some processor",
    "cores": 4,
    "processing_units": 4,
    "numa_nodes": 1,
    "synthetic_topology": False,
    "partitions": ["1x4", "2x2", "4x1"],
    "simd_level": "avx2",
    "l2_cache": 1048576,
    "mpirun": "",
    "blas": "",
    "float_environment": "",
    "findings": [{"is_problem": True, "sentence": "this machine has a problem"}],
}


def parity(partition: str, sub_batches: int = 1, scheduler: str = "lws", *, fails: bool = False) -> dict[str, Any]:
    """A result of the parity check."""
    rows = {"found": "0x3f800003 (1.0000004), 3 ULP off", "written last by": "matmul_backward_weight (step 1, layer 1)"}
    findings = [Finding("step 1, grads/qkvw[1]", rows), Finding("step 1, grads/<script>alert(1)</script>")]
    facts = {"partition": partition, "ranks": 1, "scheduler": scheduler, "sub_batches": sub_batches}
    return result(
        Parity(),
        570,
        findings if fails else [],
        record="tiny",
        reference="golden record",
        reduction="ordered",
        first="step 1, grads/qkvw[1]" if fails else "",
        **facts,
    )


def gradients(*ratios: float) -> dict[str, Any]:
    """A result on one gradient for each layer."""
    errors = [
        TensorError(f"fcw[{layer}]", 9, int(ratio > 1), (0, layer), 1.0, 1.0, 0.0, 1.0, ratio)
        for layer, ratio in enumerate(ratios)
    ]
    return GradientBounds().of_errors(errors, 9 * len(errors)).as_json()


def result(check: Check, compared: int, findings: Sequence[Finding] = (), **facts: Any) -> dict[str, Any]:
    """What a check says."""
    return check.result(compared=compared, findings=findings, **facts).as_json()


def entry(
    name: str, family: str, outcome: str, *results: dict[str, Any], message: str = "", ending: str = ""
) -> dict[str, Any]:
    return {
        "test": f"starpullm/suite/test_{family}.py::{name}",
        "family": family,
        "configuration": "2x1 lws",
        "outcome": outcome,
        "ending": ending or outcome,
        "seconds": 0.25,
        "message": message,
        "results": list(results),
    }


def recording(layers: int = 2, sub_batches: int = 2, steps: int = 2, workers: int = 2) -> dict[str, Any]:
    """Steps of a model: each task waits for the one before it, with a handle of each class in turn."""
    tasks: dict[str, list[int]] = {
        name: [] for name in ("operation", "step", "sub_batch", "layer", "rank", "worker", "start", "end")
    }

    def add(operation: str, step: int, sub_batch: int, layer: int) -> None:
        number = len(tasks["step"])
        values = (OPERATIONS.index(operation), step, sub_batch, layer, 0, number % workers, number * 1000)
        for name, value in zip(tasks, (*values, number * 1000 + 900), strict=True):
            tasks[name].append(value)

    for step in range(steps):
        for sub_batch in range(sub_batches):
            add("encoder_forward", step, sub_batch, -1)
            for layer in range(layers):
                add("matmul_forward", step, sub_batch, layer)
                add("attention_forward", step, sub_batch, layer)
            add("crossentropy_forward", step, sub_batch, -1)
        for sub_batch in range(sub_batches):
            add("crossentropy_softmax_backward", step, sub_batch, -1)
            for layer in reversed(range(layers)):
                add("attention_backward", step, sub_batch, layer)
                add("matmul_backward_weight", step, sub_batch, layer)
            add("encoder_backward", step, sub_batch, -1)
        for layer in (*range(layers), -1):
            add("adamw_update", step, -1, layer)
    return {
        "name": f"{layers} layers",
        "configuration": "2x1 lws",
        "operations": OPERATIONS,
        "tasks": tasks,
        "critical_path": list(range(0, len(tasks["step"]), 3)),
    }


def passing() -> dict[str, Any]:
    """Everything that a report can have, and no failure."""
    document = new_document("pytest", ["--pyargs", "starpullm.suite"], seed=1)
    document.update(
        state="ended",
        exit_status=0,
        environment=MACHINE,
        selection={"partitions": ["1x1", "2x1"], "sub_batches": ["tiny: 1, 2"]},
        isolation={"processes": 2, "served": 9},
        notes=["a note"],
        tests=[
            *(
                entry(f"test_bits[{place}-{count}]", "parity", "passed", parity(place, count))
                for place in ("1x1", "2x1")
                for count in (1, 2)
            ),
            entry("test_bounds[tiny-2-tree]", "reduction", "passed", gradients(0.0, 0.5)),
        ],
        not_checked=[
            {"what": "throughput", "reason": "only with --starpullm-benchmark", "tests": ["test_throughput.py::test_a"]}
        ],
        recordings=[recording(layers=12)],
    )
    return document


def failing() -> dict[str, Any]:
    """Failures of every kind, skips, and tests that weren't reached."""
    document = passing()
    graph = result(RuntimeGraph(), 40, [Finding("missing: attention_backward → matmul_backward_weight")])
    same = result(BitStability(), 20, [Finding("wte of 2x1 lws, compared with 1x1 lws", {"found": "0x7fc00000 (nan)"})])
    different = parity("2x1", 2, "eager", fails=True)
    parity_text = "parity: failed: 570 tensors\n  first: <b>step 1</b>"
    beyond = gradients(0.2, 3.0, math.inf)
    document["tests"] += [
        entry("test_bits[2x1-2-eager]", "parity", "failed", different, message=parity_text),
        entry("test_graph[tiny]", "dependencies", "failed", graph, message="runtime graph: failed: 1 missing"),
        entry("test_stable[tiny]", "reduction", "failed", same, message="bit stability: failed"),
        entry("test_bounds[</script><i>]", "reduction", "failed", beyond, message="gradient error: failed"),
        entry("test_lost[tiny]", "memory", "failed", message="the check was ended by SIGSEGV\nstacks of it",
              ending="lost its process"),
        entry("test_elsewhere", "parity", "skipped", {**parity("2x2"), "outcome": "not comparable"},
                   message="parity: not comparable: matmuls by blas, expected strict ones", ending="not comparable"),
    ]  # fmt: skip
    document.update(exit_status=1, failed=True)
    return document


def killed() -> dict[str, Any]:
    """The last state of a run that was killed in a test."""
    document = passing()
    document.update(
        state="running", exit_status=None, running=["test_hangs.py::test_it"], recordings=[], isolation=None
    )
    return document
