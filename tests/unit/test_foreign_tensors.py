"""``parity --tensors``: what equal, different and unusable files of another program give.

tests/native/test_numpy_gpt2.py has a program that writes them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from starpullm.checks.foreign_tensors import ForeignTensors
from starpullm.checks.references import plain_model, plain_steps
from starpullm.checks.result import Outcome, Result
from starpullm.errors import FileError, FormatError
from starpullm.files.safetensors import header_of
from starpullm.golden.records import GoldenRecord, split_layers

Tensors = dict[str, Any]
Change = Callable[[list[Tensors]], object]
NAN = np.float32(np.nan)


@pytest.fixture
def compare(strict: tuple[GoldenRecord, Path], tmp_path: Path) -> Callable[..., Result]:
    """Return a function that compares two steps of the plain model's tensors, some of them changed."""
    record, checkpoint = strict
    shutil.copy(checkpoint, tmp_path / "model.bin")

    def run(change: Change = len, limit: float = 0, suffix: str = ".npz") -> Result:
        plain = plain_model(record, checkpoint)
        steps: list[Tensors] = []
        for loss in plain_steps(record, plain):
            groups = {group: split_layers(dict(tensors)) for group, tensors in plain.groups.items()}
            step = {f"{group}/{name}": values.copy() for group, tensors in groups.items() for name, values in tensors}
            steps.append({**step, "loss/mean_loss": np.array(loss)})
        change(steps)
        for number, step in enumerate(steps):
            path = tmp_path / f"step-{number}{suffix}"
            if suffix == ".npz":
                np.savez(path, allow_pickle=True, **step)
            elif step:
                header = header_of({name: values.shape for name, values in step.items()})
                path.write_bytes(header + b"".join(values.tobytes() for values in step.values()))
        return ForeignTensors().compare(record, tmp_path, limit)

    return run


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_equal_bits(compare: Callable[..., Result], suffix: str) -> None:
    """A step has 190 tensors and a loss."""
    result = compare(suffix=suffix)
    assert (result.outcome, result.compared, result.findings) == (Outcome.PASSED, 382, ())
    assert result.sentence == "382 tensors compared; 2 steps against plain model, at most 0 ULPs off"


def test_the_first_in_the_order_of_execution_comes_first(compare: Callable[..., Result]) -> None:
    def change(steps: list[Tensors]) -> None:
        steps[0]["params/wte"][3, 4] *= np.float32(1.001)
        steps[0]["activations/att[1]"][1, 0, 5, 2] *= np.float32(1.5)
        steps[1]["loss/mean_loss"] += np.float32(1e-6)

    result = compare(change)
    assert (result.outcome, result.count) == (Outcome.FAILED, 3)
    sentences = [str(finding) for finding in result.findings]
    assert sentences[0].startswith("differs  step 0, activations/att[1]  1 of 256 elements differ, ")
    assert [finding.where for finding in result.findings[1:]] == ["step 0, params/wte", "step 1, loss/mean_loss"]
    assert result.findings[0].evidence["first element"] == "170, [1, 0, 5, 2]"
    assert compare(change, limit=1e7).outcome is Outcome.PASSED


def ulp_of_largest(steps: list[Tensors]) -> None:
    values = steps[1]["grads/lnfb"]
    index = int(np.abs(values).argmax())
    values.view(np.uint32)[index] += 2


def test_the_unit_is_the_ulp_of_the_largest_value(compare: Callable[..., Result]) -> None:
    assert compare(ulp_of_largest, limit=2).outcome is Outcome.PASSED
    [finding] = compare(ulp_of_largest, limit=1.9).findings
    assert str(finding) == "differs  step 1, grads/lnfb  1 of 16 elements differ, 2 ULPs"


def test_a_zero_of_the_other_sign_differs_unless_a_distance_is_allowed(compare: Callable[..., Result]) -> None:
    def change(steps: list[Tensors]) -> None:
        steps[0]["activation_grads/probs"][0, 0, 0] = np.float32(-0.0)

    assert compare(change).count == 1
    assert compare(change, limit=1).count == 0


def test_what_is_not_finite_fails(compare: Callable[..., Result]) -> None:
    def change(steps: list[Tensors]) -> None:
        steps[0]["m/wpe"][0, 0] = NAN

    result = compare(change, limit=1e30)
    assert [str(finding) for finding in result.findings] == [
        "differs  step 0, m/wpe  1 of 256 elements differ, inf ULPs"
    ]


def test_above_the_diagonal_nothing_is_compared(compare: Callable[..., Result]) -> None:
    def change(steps: list[Tensors]) -> None:
        for name in ("activations/preatt[0]", "activation_grads/att[1]"):
            steps[0][name][..., 0, 1] = NAN

    assert compare(change).outcome is Outcome.PASSED


def test_groups_may_be_left_out(compare: Callable[..., Result]) -> None:
    def change(steps: list[Tensors]) -> None:
        for step in steps:
            for name in [name for name in step if not name.startswith(("grads", "loss"))]:
                del step[name]

    result = compare(change)
    assert (result.outcome, result.compared) == (Outcome.PASSED, 58)
    assert result.sentence.endswith(", without activations, activation_grads, params, m, v")


def test_gradients_that_are_always_zero_may_be_left_out(compare: Callable[..., Result]) -> None:
    names = ("ln1_mean[0]", "ln2_rstd[1]", "lnf_mean", "probs")
    result = compare(lambda steps: [steps[1].pop(f"activation_grads/{name}") for name in names])
    assert (result.outcome, result.compared) == (Outcome.PASSED, 378)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda steps: steps[0].pop("m/qkvw[1]"), r"step 0: found no m/qkvw\[1\]$"),
        (lambda steps: steps[1].clear(), "step 1: found no activations/encoded, "),
        (lambda steps: [step.clear() for step in steps], "step 0: found no tensor$"),
        (lambda steps: steps.pop(), r"expected step-1\.npz or \.safetensors, found neither$"),
        (
            lambda steps: steps[0].update({"grads/wte": steps[0]["grads/wte"].T}),
            r"step-0\.npz, tensor grads/wte: expected float32 \(64, 16\), found float32 \(16, 64\)$",
        ),
        (
            lambda steps: steps[1].update({"v/wpe": steps[1]["v/wpe"].astype(float)}),
            r"step-1\.npz, tensor v/wpe: expected float32 \(16, 16\), found float64 \(16, 16\)$",
        ),
        (
            lambda steps: steps[0].update({"v/wpe": steps[0]["v/wpe"].astype(">f4")}),
            r"expected float32 \(16, 16\), found >f4 \(16, 16\)$",
        ),
        (
            lambda steps: steps[0].update({"grads/qkvw": NAN}),
            r"tensor grads/qkvw: expected a name of docs/formats\.md and step 0, found float32 \(\)$",
        ),
        (
            lambda steps: steps[0].update({"v/wpe": np.array({}, object)}),
            r"step-0\.npz: expected a NumPy archive, found ",
        ),
    ],
)
def test_refusals(compare: Callable[..., Result], change: Change, sentence: str) -> None:
    with pytest.raises(FormatError, match=sentence):
        compare(change)


def test_a_group_that_only_a_later_step_has(compare: Callable[..., Result]) -> None:
    def change(steps: list[Tensors]) -> None:
        del steps[0]["loss/mean_loss"]

    with pytest.raises(FormatError, match=r"step-1\.npz, tensor loss/mean_loss: expected a name of .* and step 0"):
        compare(change)


def written(folder: Path, content: bytes) -> Change:
    """Return a change after which the first step's file has this content."""

    def change(steps: list[Tensors]) -> None:
        (folder / "step-0.safetensors").write_bytes(content)
        steps[0].clear()

    return change


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "expected a safetensors file, found an empty file"),
        (b"text", "expected a safetensors file, found text"),
        (b"\x08\0\0\0\0\0\0\0[1, 2   ", "byte 8: expected JSON"),
        (header_of({"m/wte": (2, 3)}).replace(b"F32", b"I32") + bytes(24), "tensor m/wte: expected F32, found I32"),
    ],
)
def test_files_of_another_kind(compare: Callable[..., Result], tmp_path: Path, content: bytes, found: str) -> None:
    with pytest.raises(FormatError, match=found):
        compare(written(tmp_path, content), suffix=".safetensors")


def test_damaged_archives(strict: tuple[GoldenRecord, Path], compare: Callable[..., Result], tmp_path: Path) -> None:
    compare()
    whole = (tmp_path / "step-0.npz").read_bytes()
    for content in (whole[:-100], whole.replace(b"float", b"fload").replace(b"descr", b"desxr"), b"text"):
        (tmp_path / "step-0.npz").write_bytes(content)
        with pytest.raises(FormatError, match=r"step-0\.npz: expected a NumPy archive, found "):
            ForeignTensors().compare(strict[0], tmp_path, 0)
    (tmp_path / "step-0.safetensors").touch()
    with pytest.raises(FormatError, match=r"expected step-0\.npz or \.safetensors, found both"):
        ForeignTensors().compare(strict[0], tmp_path, 0)


def test_a_folder_of_another_run(strict: tuple[GoldenRecord, Path], tmp_path: Path) -> None:
    record, checkpoint = strict
    with pytest.raises(FileError, match=r"model\.bin: can't be read: No such file"):
        ForeignTensors().compare(record, tmp_path, 0)
    (tmp_path / "model.bin").write_bytes(checkpoint.read_bytes()[:-4] + bytes(4))
    with pytest.raises(FormatError, match=r"model\.bin: expected the model of .*strict\.json, found another one"):
        ForeignTensors().compare(record, tmp_path, 0)
