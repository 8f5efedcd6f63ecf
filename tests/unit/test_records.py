"""Tests of golden records: what is shipped, what is refused, and digests."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from starpullm.errors import FormatError, InvalidArgumentError
from starpullm.files.model import ModelConfig
from starpullm.golden.records import (
    SHIPPED_RECORDS,
    TENSOR_GROUPS,
    THRESHOLD_RECORDS,
    GoldenRecord,
    shipped_record,
    shipped_records,
    tensor_digest,
)

Json = dict[str, Any]


@pytest.fixture(scope="module")
def tiny() -> Path:
    """The smallest shipped record's file."""
    return shipped_record("tiny").path


@pytest.fixture
def content(tiny: Path) -> Json:
    """Its content, to be damaged."""
    loaded: Json = json.loads(tiny.read_bytes())
    return loaded


@pytest.fixture
def load(tmp_path: Path) -> Callable[[Json], GoldenRecord]:
    """Write a content to a file and load it."""

    def write_and_load(content: Json) -> GoldenRecord:
        path = tmp_path / "record.json"
        path.write_text(json.dumps(content))
        return GoldenRecord.load(path)

    return write_and_load


# ---- What is shipped ----


def test_shipped_records() -> None:
    """All are there, in order, each under its own name."""
    shipped = shipped_records()
    assert list(shipped) == list(SHIPPED_RECORDS)
    assert ("tiny", "odd", "small", "deep", *THRESHOLD_RECORDS, "gpt2-124m") == SHIPPED_RECORDS
    for name, record in shipped.items():
        assert record.name == name
        assert record.num_steps == len(record.steps) > 0
    assert shipped["gpt2-124m"].model == ModelConfig(1024, 50257, 12, 12, 768, 50304)
    assert shipped["odd"].weight_decay == 0.1


def test_record_that_is_not_shipped() -> None:
    """An unknown name is refused with those that there are."""
    with pytest.raises(InvalidArgumentError, match=r"expected tiny or odd or .*, found huge$"):
        shipped_record("huge")


def test_names_are_in_the_files_order(content: Json, tiny: Path) -> None:
    """Tensors keep the order of execution that the record has, so that the first difference is the first."""
    record = GoldenRecord.load(tiny)
    for step, raw in zip(record.steps, content["steps"], strict=True):
        assert list(step.digests) == list(TENSOR_GROUPS)
        for group in TENSOR_GROUPS:
            assert list(step.digests[group].items()) == list(raw[group].items())
        assert struct.pack(">f", step.mean_loss).hex() == step.mean_loss_bits


# ---- What is refused ----


CONFIG_KEYS = (
    *("name seed num_layers num_heads channels vocab_size padded_vocab_size max_seq_len batch_size seq_len".split()),
    *("steps learning_rate beta1 beta2 eps weight_decay".split()),
)
PATHS = [
    *(("config", key) for key in CONFIG_KEYS),
    ("config",),
    ("checkpoint_sha256",),
    ("tokens_sha256",),
    ("steps",),
    *(("steps", 1, key) for key in ("mean_loss", "mean_loss_bits", *TENSOR_GROUPS)),
    ("steps", 2, "grads", "qkvw[1]"),
    ("steps", 0, "activation_grads", "losses"),
]


def shown(path: tuple[str | int, ...]) -> str:
    """How a complaint names a key."""
    key = ""
    for part in path:
        key += f"[{part}]" if isinstance(part, int) else f".{part}"
    return key.removeprefix(".")


@pytest.mark.parametrize("path", PATHS, ids=shown)
def test_missing_key(content: Json, load: Callable[[Json], GoldenRecord], path: tuple[str | int, ...]) -> None:
    """The key is named with everything it is in."""
    *outer, last = path
    node: Any = content
    for part in outer:
        node = node[part]
    del node[last]
    with pytest.raises(FormatError) as caught:
        load(content)
    assert str(caught.value).endswith(f"record.json, key {shown(path)}: expected a value, found none")


@pytest.mark.parametrize("value", [None, True, [], "x" * 200])
@pytest.mark.parametrize("path", PATHS, ids=shown)
def test_wrong_value(
    content: Json, load: Callable[[Json], GoldenRecord], path: tuple[str | int, ...], value: object
) -> None:
    """The key is named with what it should hold and what it holds, in one short sentence."""
    if path == ("config", "name") and isinstance(value, str):
        return
    *outer, last = path
    node: Any = content
    for part in outer:
        node = node[part]
    node[last] = value
    with pytest.raises(FormatError) as caught:
        load(content)
    sentence = str(caught.value)
    assert f"key {shown(path)}: expected " in sentence
    assert "found " in sentence
    assert len(sentence.partition("key ")[2]) < 200


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("batch_size", 2**31, "an integer from 1 to 44739242"),  # times 2 * 8 * 3 tokens is less than 2^31
        ("num_layers", 10**4000, "an integer from 0 to 2147483647"),
        ("steps", 10**18, "an integer from 1 to 1000000"),
        ("seed", 2**63, "an integer from 0 to 9223372036854775807"),
        ("learning_rate", 10**400, "a number that fits into binary64"),
        ("seq_len", 2**31, "an integer from 1 to 16"),
    ],
    ids=["batch_size", "num_layers", "steps", "seed", "learning_rate", "seq_len"],
)
def test_large_number(content: Json, load: Callable[[Json], GoldenRecord], key: str, value: int, expected: str) -> None:
    """Python's integers have no limit; everything that they are used for has one."""
    content["config"][key] = value
    with pytest.raises(FormatError, match=f"key config.{key}: expected {expected}, found 1?[029]"):
        load(content)


def test_layers_without_tensors(content: Json, load: Callable[[Json], GoldenRecord]) -> None:
    """A large number of layers is refused at the first one without tensors, before names of all are made."""
    content["config"].update(num_layers=2**31 - 1, num_heads=1, channels=1)
    with pytest.raises(FormatError, match=r"key steps\[0\]\.activations\.ln1\[2\]: expected a value, found none"):
        load(content)


def test_sizes_that_no_model_has(content: Json, load: Callable[[Json], GoldenRecord]) -> None:
    """The model's own complaint is passed on."""
    content["config"]["num_heads"] = 3
    with pytest.raises(FormatError, match="key config: model config, channels: expected divisible by num_heads"):
        load(content)


def test_number_of_steps(content: Json, load: Callable[[Json], GoldenRecord]) -> None:
    """As many steps as announced."""
    del content["steps"][1]
    with pytest.raises(FormatError, match="key steps: expected 3 steps, found 2"):
        load(content)


def test_unknown_tensor(content: Json, load: Callable[[Json], GoldenRecord]) -> None:
    """A tensor that the model hasn't got would never be compared, so it is refused."""
    content["steps"][0]["grads"]["qkvw[2]"] = "0" * 32
    with pytest.raises(FormatError, match=r"key steps\[0\]\.grads: expected no tensor qkvw\[2\]"):
        load(content)


@pytest.mark.parametrize("loss", [4.1, 1e300, -0.0])
def test_loss_and_bits_disagree(content: Json, load: Callable[[Json], GoldenRecord], loss: float) -> None:
    """The loss is there twice, as a number and as bits."""
    content["steps"][1]["mean_loss"] = loss
    with pytest.raises(FormatError, match=r"key steps\[1\]\.mean_loss: expected the value of mean_loss_bits"):
        load(content)


# ---- Digests ----


def test_digest() -> None:
    """Half of the SHA-256 of the little-endian values, row by row, whatever the array's layout."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    expected = hashlib.sha256(struct.pack("<6f", *range(6))).hexdigest()[:32]
    for same in (array, np.asfortranarray(array), array.astype(">f4"), np.repeat(array, 2, axis=1)[:, ::2]):
        assert tensor_digest(same) == expected
    assert tensor_digest(-np.zeros(1, np.float32)) != tensor_digest(np.zeros(1, np.float32))
    assert tensor_digest(np.zeros(0, np.float32)) == hashlib.sha256().hexdigest()[:32]


@pytest.mark.parametrize("dtype", ["f8", "f2", "i4"])
def test_digest_of_other_types(dtype: str) -> None:
    """Converting would hash other bits than those that were computed."""
    array: NDArray[Any] = np.zeros(3, dtype)
    with pytest.raises(InvalidArgumentError, match="expected a float32 array"):
        tensor_digest(array)
