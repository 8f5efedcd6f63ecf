"""safetensors files: what the package of that name writes is read, damaged ones are refused with a sentence."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from starpullm.errors import FormatError
from starpullm.files.safetensors import header_of, read_values, stored_tensors

from .hugging_face_files import float32, safetensors_bytes, with_header

ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def test_files_of_the_package(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    random = np.random.default_rng(1)
    arrays: dict[str, NDArray[Any]] = {
        "a": random.standard_normal((3, 5), np.float32),
        "half": random.standard_normal(7).astype(np.float16),
        "mask": np.ones((2, 2), np.uint8),
    }
    safetensors.numpy.save_file(arrays, path, {"format": "pt"})
    stored = stored_tensors(path)
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in stored.items()} == {
        "a": ("F32", (3, 5)),
        "half": ("F16", (7,)),
        "mask": ("U8", (2, 2)),
    }
    assert read_values(stored["a"], 0, 15).tobytes() == arrays["a"].tobytes()
    assert read_values(stored["a"], 4, 3).tolist() == arrays["a"].reshape(-1)[4:7].tolist()
    assert read_values(stored["half"], 2, 5).tolist() == arrays["half"][2:].tolist()
    with pytest.raises(FormatError, match=r"tensor mask: expected dtype F32, F16, BF16, found U8$"):
        read_values(stored["mask"], 0, 1)


def test_headers_are_the_package_s(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    arrays = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.array([-0.0, np.inf], np.float32)}
    content = b"".join(array.tobytes() for array in arrays.values())
    path.write_bytes(header_of({name: array.shape for name, array in arrays.items()}) + content)
    read = safetensors.numpy.load_file(path)
    assert {name: read[name].tobytes() for name in read} == {name: array.tobytes() for name, array in arrays.items()}
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == {"format": "pt"}
    assert len(header_of({"a": (2,)})) % 8 == 0


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_every_value_of_sixteen_bits_is_kept(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "x.safetensors"
    patterns = np.arange(2**16, dtype="<u2")
    path.write_bytes(safetensors_bytes({"a": (dtype, (2**16,), patterns.tobytes())}))
    values = read_values(stored_tensors(path)["a"], 0, 2**16)
    assert values.dtype == np.float32
    if dtype == "F16":
        expected = np.array(struct.unpack(f"<{2**16}e", patterns.tobytes()))
        with np.errstate(invalid="ignore"):  # signalling NaN become quiet ones
            assert np.array_equal(values.astype(np.float64), expected, equal_nan=True)
        assert np.array_equal(np.signbit(values), patterns >= 2**15)
    else:
        assert values.tobytes() == b"".join(
            b"\0\0" + pattern for pattern in struct.unpack("2s" * 2**16, patterns.tobytes())
        )


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            (2**63).to_bytes(8, "little"),
            "byte 0: expected a safetensors header of at most 100000000 bytes, found 9223372036854775808",
        ),
        (with_header([1]), "byte 8: expected a JSON object, found list"),
        (with_header({"__metadata__": 3}), "byte 8: expected __metadata__ to be an object, found 3"),
        (with_header({"a": 1}), "tensor a: expected dtype, shape and data_offsets, found 1"),
        (with_header({"a": {**ENTRY, "x": 1}}), "tensor a: expected dtype, shape and data_offsets, found {"),
        (with_header({"a": {**ENTRY, "dtype": "F4"}}), "tensor a: expected dtype BOOL, U8, "),
        (with_header({"a": {**ENTRY, "shape": [-2]}}), "tensor a: expected a shape of sizes, found [-2]"),
        (with_header({"a": {**ENTRY, "shape": [2.0]}}), "tensor a: expected a shape of sizes, found [2.0]"),
        (with_header({"a": {**ENTRY, "shape": [1] * 65}}), "tensor a: expected a shape of sizes, found [1, 1"),
        (
            with_header({"a": {**ENTRY, "data_offsets": [8, 0]}}),
            "tensor a: expected data_offsets of begin and end, found [8, 0]",
        ),
        (with_header({"a": {**ENTRY, "data_offsets": [0, 2**70]}}), "data_offsets of begin and end, found [0, 118"),
        (with_header({"a": {**ENTRY, "data_offsets": [0, 4]}}), "tensor a: expected 8 bytes (F32 (2,)), found 4"),
        (with_header({"a": ENTRY}, bytes(7)), "byte 76: expected 77 bytes or more, found the end of the file in a"),
        (with_header({"a": ENTRY}, bytes(9)), "expected the end of the file, found 1 more bytes"),
        (
            with_header({"a": ENTRY, "b": {**ENTRY, "data_offsets": [4, 12]}}, bytes(12)),
            "expected the end of a before b, found that they overlap",
        ),
        (with_header({"a": ENTRY, "b": ENTRY}, bytes(8)), "expected the end of a before b, found that they overlap"),
        (
            with_header({"a": ENTRY, "b": {**ENTRY, "data_offsets": [12, 20]}}, bytes(20)),
            "expected b after a, found a gap of 4 bytes",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damage(tmp_path: Path, content: bytes, sentence: str) -> None:
    """The sentence names the file and what is wrong; the package refuses the file too."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(FormatError) as caught:
        stored_tensors(path)
    assert str(caught.value).startswith(f"{path}, ")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    if "expected dtype, shape" not in sentence and "shape of sizes" not in sentence:
        with pytest.raises(safetensors.SafetensorError):
            safetensors.numpy.load_file(path)


def test_every_truncation(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    content = safetensors_bytes({"a": float32(np.ones(2)), "b": float32(np.zeros((1, 3)))})
    for size in range(2, len(content)):  # before that, it is an empty file or text
        path.write_bytes(content[:size])
        with pytest.raises(FormatError, match=rf", byte {size}: expected .* found the end of the file"):
            stored_tensors(path)


def test_a_file_that_is_cut_after_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors_bytes({"a": float32(np.ones(2))}))
    tensor = stored_tensors(path)["a"]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"expected 2 values, found the end of the file"):
        read_values(tensor, 0, 2)
