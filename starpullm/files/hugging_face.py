"""A GPT-2 in Hugging Face's layout: a folder with config.json and model.safetensors, or with an index of several files.

Size letters: C channels, L layers, V vocabulary, maxT the longest sequence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from starpullm.errors import FormatError
from starpullm.files.header import StrPath
from starpullm.files.json_reader import JsonNode, read_json
from starpullm.files.kinds import HUGGING_FACE, expecting
from starpullm.files.model import UNLAYERED_PARAMETERS, ModelConfig, config_problem, parameter_shapes
from starpullm.files.safetensors import StoredTensor, stored_tensors

CONFIG_FILE: Final = "config.json"
MODEL_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"
PREFIX: Final = "transformer."
HEAD: Final = "lm_head.weight"
_BUFFERS: Final = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")
"""Constants of the causal mask, which older files hold."""


class StoredParameter(NamedTuple):
    """Where a parameter is: its name, with {} for the layer, and whether it is stored transposed (Conv1D)."""

    name: str
    transposed: bool = False


STORED_PARAMETERS: Final = {
    "wte": StoredParameter("wte.weight"),
    "wpe": StoredParameter("wpe.weight"),
    "ln1w": StoredParameter("h.{}.ln_1.weight"),
    "ln1b": StoredParameter("h.{}.ln_1.bias"),
    "qkvw": StoredParameter("h.{}.attn.c_attn.weight", True),
    "qkvb": StoredParameter("h.{}.attn.c_attn.bias"),
    "attprojw": StoredParameter("h.{}.attn.c_proj.weight", True),
    "attprojb": StoredParameter("h.{}.attn.c_proj.bias"),
    "ln2w": StoredParameter("h.{}.ln_2.weight"),
    "ln2b": StoredParameter("h.{}.ln_2.bias"),
    "fcw": StoredParameter("h.{}.mlp.c_fc.weight", True),
    "fcb": StoredParameter("h.{}.mlp.c_fc.bias"),
    "fcprojw": StoredParameter("h.{}.mlp.c_proj.weight", True),
    "fcprojb": StoredParameter("h.{}.mlp.c_proj.bias"),
    "lnfw": StoredParameter("ln_f.weight"),
    "lnfb": StoredParameter("ln_f.bias"),
}
"""llm.c's parameters, and where Hugging Face has them."""

# (llm.c's size, its key in config.json, another name of the key, transformers' default)
_SIZES: Final = (
    ("max_seq_len", "n_positions", "max_position_embeddings", 1024),
    ("vocab_size", "vocab_size", "vocab_size", 50257),
    ("num_layers", "n_layer", "num_hidden_layers", 12),
    ("num_heads", "n_head", "num_attention_heads", 12),
    ("channels", "n_embd", "hidden_size", 768),
)
# What llm.c's model computes. A key that is missing has transformers' default, which is the first value.
_ARCHITECTURE: Final[Mapping[str, tuple[Any, ...]]] = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "tie_word_embeddings": (True,),
    "add_cross_attention": (False,),
}


@dataclass(frozen=True)
class HuggingFaceModel:
    """A GPT-2's sizes, with Vp = V, and its tensors by name without prefix; `head` is the output's, if it is stored."""

    config: ModelConfig
    tensors: dict[str, StoredTensor]
    head: StoredTensor | None

    def tensor(self, parameter: str, layer: int) -> StoredTensor:
        """Return one of llm.c's parameters; `layer` counts only for those that belong to a layer."""
        return self.tensors[STORED_PARAMETERS[parameter].name.format(layer)]


def open_model(path: StrPath) -> HuggingFaceModel:
    """Read the sizes and find the tensors of a model: a folder, or a safetensors or index file with its config.json."""
    source = Path(path)
    folder = source if source.is_dir() else source.parent
    with expecting(HUGGING_FACE, folder):
        config = _read_config(folder / CONFIG_FILE)
    if source.is_dir():
        source = folder / MODEL_FILE if (folder / MODEL_FILE).exists() else folder / INDEX_FILE
        if not source.exists():
            found = "pytorch_model.bin of PyTorch" if (folder / "pytorch_model.bin").exists() else "neither"
            raise FormatError(f"{folder}: expected {MODEL_FILE} or {INDEX_FILE} in this folder, found {found}")
    stored = _indexed_tensors(source) if source.suffix == ".json" else stored_tensors(source)
    tensors = _without_prefix(source, stored)
    head = tensors.pop(HEAD, None)
    embedding = STORED_PARAMETERS["wte"].name
    if head is not None and embedding not in tensors:  # of tied tensors, safetensors' save_model stores one
        tensors[embedding], head = head, None
    _check_tensors(source, config, tensors, head)
    return HuggingFaceModel(config, tensors, head)


def stored_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...], str, int]]:
    """Yield name and shape in the file, llm.c's name, and layer of each tensor, in the order of the forward pass."""
    before, after = ("wte", "wpe"), ("lnfw", "lnfb")
    for parameter in before:
        yield STORED_PARAMETERS[parameter].name, _stored_shape(config, parameter), parameter, 0
    for layer in range(config.num_layers):
        for parameter, place in STORED_PARAMETERS.items():
            if parameter not in UNLAYERED_PARAMETERS:
                yield place.name.format(layer), _stored_shape(config, parameter), parameter, layer
    for parameter in after:
        yield STORED_PARAMETERS[parameter].name, _stored_shape(config, parameter), parameter, 0


def config_text(config: ModelConfig) -> str:
    """Return the config.json of a model of these sizes."""
    end_of_text = 50256 if config.vocab_size == 50257 else None
    values = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        **{key: getattr(config, size) for size, key, _, _ in _SIZES},
        "n_inner": None,
        **{key: accepted[0] for key, accepted in _ARCHITECTURE.items()},
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "torch_dtype": "float32",
    }
    return json.dumps(values, indent=2) + "\n"


def _stored_shape(config: ModelConfig, parameter: str) -> tuple[int, ...]:
    """Return the shape of a parameter of one layer there, with Vp = V."""
    shape = parameter_shapes(replace(config, padded_vocab_size=config.vocab_size))[parameter]
    if parameter not in UNLAYERED_PARAMETERS:
        shape = shape[1:]
    return shape[::-1] if STORED_PARAMETERS[parameter].transposed else shape


def _read_config(path: Path) -> ModelConfig:
    """Read config.json, and refuse a model that llm.c doesn't compute."""
    values = JsonNode(path, "", read_json(path)).mapping()

    def wrong(key: str, expected: object, found: object) -> FormatError:
        return FormatError(f"{path}, {key}: expected {expected}, found {json.dumps(found):.40}")

    if values.get("model_type") != "gpt2":
        raise wrong("model_type", '"gpt2"', values.get("model_type"))
    for key, accepted in _ARCHITECTURE.items():
        found = values.get(key, accepted[0])
        if type(found) is not type(accepted[0]) or found not in accepted:
            raise wrong(key, " or ".join(map(json.dumps, accepted)), found)
    sizes: dict[str, int] = {}
    for size, key, alias, default in _SIZES:
        found = values.get(key, values.get(alias, default))
        if type(found) is not int:
            raise wrong(key, "an integer", found)
        sizes[size] = found
    problem = config_problem({**sizes, "padded_vocab_size": sizes["vocab_size"]})
    if problem is not None:
        raise FormatError(f"{path}, {problem[0]}: expected {problem[1]}, found {problem[2]}")
    if values.get("n_inner") not in (None, 4 * sizes["channels"]):
        raise wrong("n_inner", f"4 n_embd = {4 * sizes['channels']}", values["n_inner"])
    return ModelConfig(**sizes, padded_vocab_size=sizes["vocab_size"])


def _indexed_tensors(index: Path) -> dict[str, StoredTensor]:
    """Return the tensors of all files that an index names, and check that each is where the index says."""
    weight_map = JsonNode(index, "", read_json(index)).mapping().get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise FormatError(f"{index}, weight_map: expected an object from tensors to files, found {weight_map!s:.60}")
    tensors: dict[str, StoredTensor] = {}
    for file in sorted(set(weight_map.values())):
        if Path(file).name != file:
            raise FormatError(f"{index}, weight_map: expected files beside the index, found {file}")
        for name, tensor in stored_tensors(index.parent / file).items():
            if weight_map.get(name) != file:
                expected = f"it in {weight_map[name]}" if name in weight_map else "no such tensor"
                raise FormatError(f"{index}, tensor {name}: expected {expected}, found it in {file}")
            tensors[name] = tensor
    for name, file in weight_map.items():
        if name not in tensors:
            raise FormatError(f"{index}, tensor {name}: expected it in {file}, found it nowhere")
    return tensors


def _without_prefix(source: Path, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the tensors by their names without the prefix, and without the constants of the causal mask."""
    tensors: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        short = name.removeprefix(PREFIX)
        if _BUFFERS.fullmatch(short):
            continue
        if short in tensors:
            raise FormatError(f"{source}: expected one tensor {short}, found {tensors[short].name} and {name}")
        tensors[short] = tensor
    return tensors


def _check_tensors(
    source: Path, config: ModelConfig, tensors: Mapping[str, StoredTensor], head: StoredTensor | None
) -> None:
    expected = set()
    for name, shape, _, _ in stored_shapes(config):
        if name not in tensors:
            raise FormatError(f"{source}: expected tensor {name}, found none ({config.num_layers} layers)")
        _check_tensor(tensors[name], shape)
        expected.add(name)
    for name, tensor in tensors.items():
        if name not in expected:
            raise FormatError(
                f"{tensor.file}: expected no tensor {tensor.name} in a GPT-2 of {config.num_layers} layers, found one"
            )
    if head is not None:
        _check_tensor(head, (config.vocab_size, config.channels))


def _check_tensor(tensor: StoredTensor, shape: tuple[int, ...]) -> None:
    tensor.check_exact()
    if tensor.shape != shape:
        raise FormatError(f"{tensor.file}, tensor {tensor.name}: expected shape {shape}, found {tensor.shape}")
