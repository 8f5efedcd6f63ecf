"""Writes models in Hugging Face's layout for tests, from its description alone: nothing of starpullm is used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]
"""Dtype, shape and bytes of each tensor by name."""


def safetensors_bytes(tensors: Tensors, *, metadata: Mapping[str, str] | None = None) -> bytes:
    """Return a file's bytes."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + len(content)]}
        position += len(content)
    return with_header(header, b"".join(content for _, _, content in tensors.values()))


def with_header(header: object, content: bytes = b"") -> bytes:
    """Return a file of this header, a JSON value or its text, and these bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content


def float32(array: NDArray[Any]) -> tuple[str, tuple[int, ...], bytes]:
    """Return an array as an F32 tensor."""
    return "F32", array.shape, np.ascontiguousarray(array, "<f4").tobytes()


def gpt2_tensors(parameters: Mapping[str, NDArray[np.float32]], vocab_size: int, prefix: str = "") -> Tensors:
    """Return llm.c's parameters as Hugging Face names, transposes and cuts them."""
    arrays = {"wte.weight": parameters["wte"][:vocab_size], "wpe.weight": parameters["wpe"]}
    for layer in range(len(parameters["ln1w"])):
        for name, parameter in LAYER_TENSORS.items():
            array = parameters[parameter][layer]
            arrays[f"h.{layer}.{name}"] = array.T if parameter in ("qkvw", "attprojw", "fcw", "fcprojw") else array
    arrays |= {"ln_f.weight": parameters["lnfw"], "ln_f.bias": parameters["lnfb"]}
    return {prefix + name: float32(array) for name, array in arrays.items()}


LAYER_TENSORS = {
    "ln_1.weight": "ln1w",
    "ln_1.bias": "ln1b",
    "attn.c_attn.weight": "qkvw",
    "attn.c_attn.bias": "qkvb",
    "attn.c_proj.weight": "attprojw",
    "attn.c_proj.bias": "attprojb",
    "ln_2.weight": "ln2w",
    "ln_2.bias": "ln2b",
    "mlp.c_fc.weight": "fcw",
    "mlp.c_fc.bias": "fcb",
    "mlp.c_proj.weight": "fcprojw",
    "mlp.c_proj.bias": "fcprojb",
}


def write_model(folder: Path, tensors: Tensors, sizes: tuple[int, int, int, int, int], **changes: Any) -> Path:
    """Write a folder with config.json and model.safetensors; sizes are maxT, V, L, NH, C."""
    folder.mkdir()
    write_config(folder, sizes, **changes)
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors, metadata={"format": "pt"}))
    return folder


def write_config(folder: Path, sizes: tuple[int, int, int, int, int], **changes: Any) -> None:
    """Write config.json; a change to None leaves the key out."""
    names = ("n_positions", "vocab_size", "n_layer", "n_head", "n_embd")
    values = {"model_type": "gpt2", **dict(zip(names, sizes, strict=True)), **changes}
    kept = {name: value for name, value in values.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))


def write_shards(folder: Path, tensors: Tensors, sizes: tuple[int, int, int, int, int]) -> dict[str, str]:
    """Write a folder with three files and their index; return which tensor is in which file."""
    folder.mkdir()
    write_config(folder, sizes)
    names = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    weight_map = {name: names[number % 3] for number, name in enumerate(tensors)}
    for file in names:
        own = {name: tensor for name, tensor in tensors.items() if weight_map[name] == file}
        (folder / file).write_bytes(safetensors_bytes(own))
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: Path, weight_map: object) -> None:
    """Write the index of several files."""
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
