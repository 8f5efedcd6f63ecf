"""Tensors that another program has written, a file for each step, compared with the plain model's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.bits import compare_bits
from starpullm.checks.check import Check
from starpullm.checks.execution_order import CONSTANT, execution_order
from starpullm.checks.references import plain_model, plain_steps
from starpullm.checks.result import Finding, Result
from starpullm.errors import FormatError
from starpullm.files.arrays import DAMAGED_ARCHIVE
from starpullm.files.header import reading
from starpullm.files.model import num_elements
from starpullm.files.safetensors import read_values, stored_tensors
from starpullm.golden.records import TENSOR_GROUPS, GoldenRecord, layer_name, step_results


class ForeignTensors(Check):
    """Compare a program's tensors with the plain model's; whole groups of them may be missing."""

    family, unit = "parity", "tensors"
    claim = "every tensor that the program has written is the plain model's"
    fault = "tensors are not the plain model's"

    def compare(self, record: GoldenRecord, folder: Path, limit: float) -> Result:
        """Compare all steps; tensors may be off by so many ULPs of their largest value, 0: all bits have to be equal.

        `FormatError` is raised for files that aren't complete, or of another run than the record's.
        """
        checkpoint = folder / "model.bin"
        with reading(checkpoint) as (file, _):
            if hashlib.file_digest(file, "sha256").hexdigest() != record.checkpoint_sha256:
                raise FormatError(f"{checkpoint}: expected the model of {record.path}, found another one")
        plain, order = plain_model(record, checkpoint), execution_order(record.model.num_layers)
        losses = plain_steps(record, plain)
        tensors = {f"{key[0]}/{layer_name(*key[1:])}": plain.tensor(*key) for key in order}
        tensors["loss/mean_loss"] = loss = np.zeros((), np.float32)
        findings, groups, compared, furthest = list[Finding](), set[str](), 0, 0.0
        for step in range(record.num_steps):
            found = _read_step(folder, step, tensors)
            groups = groups or {name.partition("/")[0] for name in found}
            tensors = {name: values for name, values in tensors.items() if name.partition("/")[0] in groups}
            missing = [name for name in tensors if name not in found and name.partition("[")[0] not in CONSTANT]
            if missing or not found:
                raise FormatError(f"{folder}, step {step}: found no {', '.join(missing) or 'tensor'}")
            loss[...] = next(losses)
            results = step_results(np.float32(loss), plain.groups)
            if any(results[group] != record.steps[step].digests[group] for group in TENSOR_GROUPS):
                raise FormatError(f"{record.path}, step {step}: expected the plain model's results, found others")
            for name in filter(found.__contains__, tensors):
                values = np.tril(found[name]) if name.partition("[")[0].endswith("att") else found[name]
                difference, ulps = compare_bits(tensors[name], values), _distance(tensors[name], values)
                compared, furthest = compared + 1, max(furthest, ulps)
                if (difference and not limit) or not ulps <= limit:  # NaN isn't
                    differing = f"{difference.differing if difference else 0} of {values.size} elements differ"
                    evidence = difference.evidence() if difference and not findings else {}
                    where = f"step {step}, {name}"
                    findings.append(Finding(f"{differing}, {ulps:.3g} ULPs", evidence, where, "differs"))
        left_out = ", ".join(group for group in (*TENSOR_GROUPS, "loss") if group not in groups)
        left_out = f", without {left_out}" if left_out else ""
        note = f"{record.num_steps} steps against plain model, at most {furthest:.3g} ULPs off{left_out}"
        result = self.result(compared=compared, findings=findings, note=note, steps=record.num_steps)
        return replace(result, findings=tuple(findings[: len(tensors)]), where=str(folder))


def _distance(expected: NDArray[np.float32], found: NDArray[np.float32]) -> float:
    """Return the largest distance in ULPs of the largest expected value; infinite if a value found isn't finite."""
    with np.errstate(all="ignore"):
        ulps = np.abs(found - expected.astype(np.float64)).max() / np.spacing(np.abs(expected).max())
    return float(ulps) if np.isfinite(found).all() else float("inf")


def _read_step(folder: Path, step: int, expected: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float32]]:
    """Return the tensors of a step by name; `FormatError` is raised for one that isn't float32 with its shape."""
    found = [path for suffix in (".npz", ".safetensors") if (path := folder / f"step-{step}{suffix}").exists()]
    if len(found) != 1:
        raise FormatError(f"{folder}: expected step-{step}.npz or .safetensors, found {'both' if found else 'neither'}")
    tensors = dict(_arrays(found[0]))
    for name, array in tensors.items():
        wanted = f"float32 {expected[name].shape}" if name in expected else "a name of docs/formats.md and step 0"
        if f"{array.dtype} {array.shape}" != wanted:
            raise FormatError(f"{found[0]}, tensor {name}: expected {wanted}, found {array.dtype} {array.shape}")
    return tensors


def _arrays(path: Path) -> Iterator[tuple[str, NDArray[np.float32]]]:
    if path.suffix == ".npz":
        with reading(path, "a NumPy archive") as (file, where):
            try:
                archive = np.lib.npyio.NpzFile(file, allow_pickle=False)
                yield from ((name, np.asarray(array)) for name, array in archive.items())
            except DAMAGED_ARCHIVE as error:
                raise FormatError(f"{where}: expected a NumPy archive, found {error}") from error
        return
    for name, stored in stored_tensors(path).items():
        if stored.dtype != "F32":
            raise FormatError(f"{path}, tensor {name}: expected F32, found {stored.dtype}")
        yield name, read_values(stored, 0, num_elements(stored.shape)).reshape(stored.shape)
