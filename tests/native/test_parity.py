"""Bitwise parity with llm.c over partitions, schedulers, sub-batches and topologies, through the command line.

Exit statuses on bad records are in test_cli_parity.py.
"""

from __future__ import annotations

import re
import resource
from pathlib import Path

import pytest

from starpullm.checks.cases import Case
from starpullm.checks.execution_order import execution_order
from starpullm.checks.parity import Parity
from starpullm.checks.references import record_trainer
from starpullm.data.generator import generate_checkpoint, generate_tokens
from starpullm.golden.records import shipped_record
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer

from .children import TWO_CORES, run_cli, run_function

EIGHT_CORES = {"HWLOC_SYNTHETIC": "core:8 pu:1"}
SMALL_RECORDS = tuple(shipped_record(name).path for name in ("tiny", "odd", "small", "deep"))
"""All records, on every level of kernels, are in test_thresholds.py."""


def test_all_sub_batch_counts() -> None:
    """With every number of sub-batches that divides the batch; the suite does so by lws with all records.

    A command of docs/reference.md has two workers and another scheduler.
    """
    place = ("--partition", "1x2", "--scheduler", "eager")
    run = run_cli("parity", *SMALL_RECORDS[:2], *place, "--sub-batches", "all", timeout=100)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.splitlines()[-1] == "parity: 3300 tensors over 14 steps, 0 differ"


def test_a_worker_for_each_sequence() -> None:
    """On a topology of 8 cores, unbound."""
    place = ("--partition", "8x1", "--sub-batches", 8)
    run = run_cli("parity", SMALL_RECORDS[2], *place, timeout=110, environment=EIGHT_CORES)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.splitlines()[-1] == "parity: 1400 tensors over 4 steps, 0 differ"


LLMC_RESIDENT_BYTES = 2.6e9
"""Of llm.c in a step of gpt2-124m's record."""


def train_gpt2_124m(directory: str) -> tuple[int, list[str]]:
    """Return the peak of memory after a step, and the verdict of parity."""
    record, checkpoint = shipped_record("gpt2-124m"), Path(directory, "model.bin")
    generate_checkpoint(checkpoint, record.model, record.seed)
    B, T = record.batch_size, record.seq_len
    with Runtime("2x1") as runtime:
        with Trainer(runtime, checkpoint, batch_size=B, seq_len=T, sub_batches=2) as trainer:
            trainer.step(*generate_tokens(record.seed, 0, B, T, record.model.vocab_size))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        verdict = Parity().compare(record, runtime, checkpoint, Case(record.name, sub_batches=2, reduction="ordered"))
    checkpoint.unlink()
    return peak, verdict.lines()


@pytest.mark.timeout(300)
def test_gpt2_124m(tmp_path: Path) -> None:
    """The real size: the bits of llm.c, with less memory."""
    peak, [verdict] = run_function(train_gpt2_124m, tmp_path, timeout=280, environment=TWO_CORES)
    assert peak < LLMC_RESIDENT_BYTES, f"peak {peak / 1e9:.2f} GB"
    assert verdict.startswith("parity: passed: 1,980 tensors compared; 2 steps against golden record")


def last_writers(checkpoint: str) -> dict[str, list[str]]:
    """Operation, layer and sub-batch of the last writers of every tensor, in a child."""
    record = shipped_record("tiny")
    with (
        Runtime("2x1") as runtime,
        record_trainer(runtime, record, Path(checkpoint), sub_batches=2, trace=True) as trainer,
    ):
        trainer.step(*generate_tokens(record.seed, 0, 2, 8, record.model.vocab_size))
        trace = trainer.trace()
    writers = {}
    for group, tensor, layer in execution_order(record.model.num_layers):
        name = f"{group}/{tensor}" if layer is None else f"{group}/{tensor}[{layer}]"
        tasks = trace.last_writers(name)
        assert all(task.worker in (0, 1) for task in tasks.values())
        writers[name] = [f"{task.operation} {task.layer} {task.sub_batch}" for task in tasks.values()]
    return writers


def test_every_tensor_has_its_last_writers(tiny_checkpoint: Path) -> None:
    """But for gradients that nothing is added to, and that of the loss, which is constant."""
    writers = run_function(last_writers, tiny_checkpoint, environment=TWO_CORES)
    constant = re.compile(r"activation_grads/(losses|probs|ln\w+_(mean|rstd)).*")
    assert all((not tasks) == bool(constant.fullmatch(name)) for name, tasks in writers.items())
    assert writers["activations/att[1]"] == ["attention_forward 1 0", "attention_forward 1 1"]
    assert writers["activation_grads/residual3[0]"] == [f"layernorm_backward_input 1 {s}" for s in (0, 1)]
    assert writers["grads/wte"] == ["encoder_backward -1 1"]
    assert writers["grads/fcw[0]"] == ["matmul_backward_weight 0 1"]
    assert writers["v/lnfb"] == ["adamw_update -1 -1"]
