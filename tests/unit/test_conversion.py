"""Conversion between llm.c's checkpoints and Hugging Face's layout: every bit is kept, and bad models are refused."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from starpullm.commands import main
from starpullm.data.generator import generate_checkpoint
from starpullm.errors import FileError, FormatError, InvalidArgumentError
from starpullm.files import conversion
from starpullm.files.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from starpullm.files.conversion import from_hugging_face, to_hugging_face
from starpullm.files.model import ModelConfig, num_parameters

from .file_kinds import configs, some_tensors
from .hugging_face_files import (
    Tensors,
    float32,
    gpt2_tensors,
    safetensors_bytes,
    write_config,
    write_index,
    write_model,
    write_shards,
)

CONFIG = ModelConfig(max_seq_len=6, vocab_size=11, num_layers=2, num_heads=2, channels=4, padded_vocab_size=128)
Sizes = tuple[int, int, int, int, int]


def sizes_of(config: ModelConfig) -> Sizes:
    """Return maxT, V, L, NH and C."""
    return config.max_seq_len, config.vocab_size, config.num_layers, config.num_heads, config.channels


def parameters_of(config: ModelConfig, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Return parameters of any bits, NaN included, with padding rows of 0."""
    parameters = some_tensors(config, seed)
    parameters["wte"][config.vocab_size :] = 0
    return parameters


PARAMETERS = parameters_of(CONFIG)


def write_llmc(path: Path, parameters: dict[str, NDArray[np.float32]], config: ModelConfig = CONFIG) -> Path:
    write_checkpoint(path, Checkpoint(config, parameters))
    return path


def same_parameters(path: Path, expected: dict[str, NDArray[np.float32]]) -> bool:
    read = read_checkpoint(path).parameters
    return all(read[name].tobytes() == array.tobytes() for name, array in expected.items())


@given(config=configs(), seed=st.integers(0, 2**32))
def test_every_bit_is_kept(tmp_path_factory: pytest.TempPathFactory, config: ModelConfig, seed: int) -> None:
    """Both ways, for any sizes; the package safetensors reads what was written as the description says."""
    folder = tmp_path_factory.mktemp("conversion")
    parameters = parameters_of(config, seed)
    checkpoint = write_llmc(folder / "model.bin", parameters, config)
    to_hugging_face(checkpoint, folder / "converted")
    read = safetensors.numpy.load_file(folder / "converted" / "model.safetensors")
    expected = gpt2_tensors(parameters, config.vocab_size, "transformer.")
    assert {name: float32(array) for name, array in read.items()} == expected
    back = from_hugging_face(folder / "converted", folder / "back.bin", padded_vocab_size=config.padded_vocab_size)
    assert back.config == config
    assert (folder / "back.bin").read_bytes() == checkpoint.read_bytes()


def test_a_model_of_hugging_face_comes_back(tmp_path: Path) -> None:
    """To a checkpoint, whose vocabulary is padded to 128 rows, and back to the same tensors and sizes."""
    tensors = gpt2_tensors(PARAMETERS, 11)
    model = write_model(tmp_path / "model", tensors, sizes_of(CONFIG))
    assert from_hugging_face(model, tmp_path / "model.bin").config == CONFIG
    assert same_parameters(tmp_path / "model.bin", PARAMETERS)
    assert to_hugging_face(tmp_path / "model.bin", tmp_path / "back").dropped_rows == 0
    read = safetensors.numpy.load_file(tmp_path / "back" / "model.safetensors")
    assert {name.removeprefix("transformer."): float32(array) for name, array in read.items()} == tensors
    values = json.loads((tmp_path / "back" / "config.json").read_text())
    assert [values[name] for name in ("n_positions", "vocab_size", "n_layer", "n_head", "n_embd")] == [6, 11, 2, 2, 4]
    assert values["tie_word_embeddings"] is True
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "model", "model.bin"]


def prefixed(tensors: Tensors) -> Tensors:
    return {f"transformer.{name}": tensor for name, tensor in tensors.items()}


def with_head(tensors: Tensors) -> Tensors:
    return {**prefixed(tensors), "lm_head.weight": tensors["wte.weight"]}


def head_only(tensors: Tensors) -> Tensors:
    """What safetensors' save_model stores of a tied pair."""
    return {"lm_head.weight": tensors["wte.weight"], **changed("wte.weight", None)(tensors)}


def prefixed_head_only(tensors: Tensors) -> Tensors:
    return changed("transformer.wte.weight", None)(with_head(tensors))


def with_masks(tensors: Tensors) -> Tensors:
    mask = {f"h.{layer}.attn.bias": ("U8", (1, 1, 6, 6), bytes(36)) for layer in range(2)}
    return {**mask, **tensors, "h.1.attn.masked_bias": float32(np.array(-1e4, np.float32))}


def reversed_order(tensors: Tensors) -> Tensors:
    return dict(reversed(tensors.items()))


@pytest.mark.parametrize("change", [prefixed, with_head, head_only, prefixed_head_only, with_masks, reversed_order])
def test_other_names(tmp_path: Path, change: Callable[[Tensors], Tensors]) -> None:
    """A prefix, a stored copy of the tied head, constants of the causal mask, and any order of the tensors."""
    model = write_model(tmp_path / "model", change(gpt2_tensors(PARAMETERS, 11)), sizes_of(CONFIG))
    from_hugging_face(model, tmp_path / "model.bin")
    assert same_parameters(tmp_path / "model.bin", PARAMETERS)


def test_several_files(tmp_path: Path) -> None:
    write_shards(tmp_path / "model", gpt2_tensors(PARAMETERS, 11), sizes_of(CONFIG))
    for source in (tmp_path / "model", tmp_path / "model" / "model.safetensors.index.json"):
        from_hugging_face(source, tmp_path / "model.bin")
        assert same_parameters(tmp_path / "model.bin", PARAMETERS)


def test_sizes_by_transformers_names_and_defaults(tmp_path: Path) -> None:
    """A key that config.json leaves out has transformers' default, which the tensors then have to have."""
    model = write_model(tmp_path / "model", gpt2_tensors(PARAMETERS, 11), sizes_of(CONFIG), n_head=None)
    with pytest.raises(FormatError, match=r"config\.json, channels: expected divisible by num_heads = 12, found 4"):
        from_hugging_face(model, tmp_path / "model.bin")
    write_config(model, sizes_of(CONFIG), n_head=None, num_attention_heads=4, n_inner=16)
    assert from_hugging_face(model, tmp_path / "model.bin").config.num_heads == 4


def test_padding(tmp_path: Path) -> None:
    """Vp is V rounded up to 128, or what is asked for; rows that hold something are counted when they are dropped."""
    model = write_model(tmp_path / "model", gpt2_tensors(PARAMETERS, 11), sizes_of(CONFIG))
    path = tmp_path / "model.bin"
    assert from_hugging_face(model, path, padded_vocab_size=11).config.padded_vocab_size == 11
    with pytest.raises(InvalidArgumentError, match="padded_vocab_size: expected at least vocab_size = 11, found 10"):
        from_hugging_face(model, path, padded_vocab_size=10)
    parameters = dict(PARAMETERS, wte=PARAMETERS["wte"].copy())
    parameters["wte"][[20, 127]] = -0.0
    write_llmc(path, parameters)
    assert to_hugging_face(path, tmp_path / "back").dropped_rows == 2


def changed(name: str, tensor: tuple[str, tuple[int, ...], bytes] | None) -> Callable[[Tensors], Tensors]:
    """Return a function that replaces a tensor, or removes it."""

    def change(tensors: Tensors) -> Tensors:
        rest = {other: kept for other, kept in tensors.items() if other != name}
        return rest if tensor is None else {**rest, name: tensor}

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            changed("h.1.mlp.c_fc.bias", None),
            "model.safetensors: expected tensor h.1.mlp.c_fc.bias, found none (2 layers)",
        ),
        (
            changed("h.2.ln_1.bias", float32(np.ones(4))),
            "model.safetensors: expected no tensor h.2.ln_1.bias in a GPT-2 of 2 layers, found one",
        ),
        (
            changed("h.0.attn.c_attn.weight", float32(np.ones((12, 4)))),
            "tensor h.0.attn.c_attn.weight: expected shape (4, 12), found (12, 4)",
        ),
        (
            changed("wpe.weight", ("F64", (6, 4), bytes(8 * 24))),
            "tensor wpe.weight: expected dtype F32, F16, BF16, found F64",
        ),
        (
            changed("transformer.ln_f.bias", float32(np.ones(4))),
            "expected one tensor ln_f.bias, found ln_f.bias and transformer.ln_f.bias",
        ),
        (
            changed("lm_head.weight", float32(np.ones((11, 4)))),
            "tensor lm_head.weight: expected the values of wte.weight, found another at index (0, 0): the model's "
            "output matrix isn't tied",
        ),
        (
            changed("lm_head.weight", float32(np.ones((128, 4)))),
            "tensor lm_head.weight: expected shape (11, 4), found (128, 4)",
        ),
    ],
)
def test_wrong_tensors(tmp_path: Path, change: Callable[[Tensors], Tensors], sentence: str) -> None:
    """One sentence; the output that was there stays, and nothing else is left."""
    model = write_model(tmp_path / "model", change(gpt2_tensors(PARAMETERS, 11)), sizes_of(CONFIG))
    out = tmp_path / "model.bin"
    out.write_bytes(b"before")
    with pytest.raises(FormatError) as caught:
        from_hugging_face(model, out)
    assert str(caught.value).startswith(str(model))
    assert sentence in str(caught.value)
    assert out.read_bytes() == b"before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.bin"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model_type": "llama"}, 'model_type: expected "gpt2", found "llama"'),
        ({"model_type": None}, 'model_type: expected "gpt2", found null'),
        ({"activation_function": "gelu"}, 'activation_function: expected "gelu_new" or "gelu_pytorch_tanh"'),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon: expected 1e-05, found 1e-06"),
        ({"scale_attn_weights": False}, "scale_attn_weights: expected true, found false"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx: expected false, found true"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings: expected true, found false"),
        ({"add_cross_attention": 1}, "add_cross_attention: expected false, found 1"),
        ({"n_inner": 8}, "n_inner: expected 4 n_embd = 16, found 8"),
        ({"n_layer": "2"}, 'n_layer: expected an integer, found "2"'),
        ({"n_layer": True}, "n_layer: expected an integer, found true"),
        ({"n_layer": 0}, "num_layers: expected from 1 to 2147483647, found 0"),
        ({"n_head": 3}, "channels: expected divisible by num_heads = 3, found 4"),
    ],
)
def test_models_that_llmc_does_not_compute(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    model = write_model(tmp_path / "model", gpt2_tensors(PARAMETERS, 11), sizes_of(CONFIG), **changes)
    with pytest.raises(FormatError) as caught:
        from_hugging_face(model, tmp_path / "model.bin")
    assert str(caught.value).startswith(f"{model / 'config.json'}, {sentence}")


def test_sizes_that_the_tensors_do_not_have(tmp_path: Path) -> None:
    """Also a number of layers with which a list of all tensors would fill the memory."""
    model = write_model(tmp_path / "model", gpt2_tensors(PARAMETERS, 11), sizes_of(CONFIG), n_layer=2**31 - 1)
    with pytest.raises(FormatError, match=r"expected tensor h\.2\.ln_1\.weight, found none \(2147483647 layers\)"):
        from_hugging_face(model, tmp_path / "model.bin")
    write_config(model, (5, 11, 2, 2, 4))
    with pytest.raises(FormatError, match=r"wpe\.weight: expected shape \(5, 4\), found \(6, 4\)"):
        from_hugging_face(model, tmp_path / "model.bin")


def test_bad_indexes(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    weight_map = write_shards(folder, gpt2_tensors(PARAMETERS, 11), sizes_of(CONFIG))
    file = weight_map["wte.weight"]
    other = weight_map["wpe.weight"]
    without = {name: shard for name, shard in weight_map.items() if name != "wte.weight"}
    for bad, sentence in (
        ({**weight_map, "wte.weight": other}, f"tensor wte.weight: expected it in {other}, found it in {file}"),
        (without, f"tensor wte.weight: expected no such tensor, found it in {file}"),
        ({**weight_map, "x": file}, f"tensor x: expected it in {file}, found it nowhere"),
        ({"wte.weight": "../x"}, "weight_map: expected files beside the index, found ../x"),
        (None, "weight_map: expected an object from tensors to files, found None"),
    ):
        write_index(folder, bad)
        with pytest.raises(FormatError) as caught:
            from_hugging_face(folder, tmp_path / "model.bin")
        assert str(caught.value) == f"{folder / 'model.safetensors.index.json'}, {sentence}"
    write_index(folder, weight_map)
    (folder / file).unlink()
    with pytest.raises(FileError, match=f"{file}: can't be read: No such file"):
        from_hugging_face(folder, tmp_path / "model.bin")


def test_missing_files(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(FileError, match=r"config\.json: can't be read: No such file"):
        from_hugging_face(folder, tmp_path / "model.bin")
    (folder / "config.json").write_text("{")
    with pytest.raises(FormatError, match=r"config\.json, byte 0: expected JSON, found"):
        from_hugging_face(folder, tmp_path / "model.bin")
    write_config(folder, sizes_of(CONFIG))
    with pytest.raises(FormatError, match=r"expected model\.safetensors or .*index\.json in .*, found neither"):
        from_hugging_face(folder, tmp_path / "model.bin")
    (folder / "pytorch_model.bin").touch()
    with pytest.raises(FormatError, match=r"index\.json in this folder, found pytorch_model\.bin of PyTorch$"):
        from_hugging_face(folder, tmp_path / "model.bin")


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that becomes shorter while it is read: a folder is written as a whole or not at all."""
    checkpoint = write_llmc(tmp_path / "model.bin", PARAMETERS)
    monkeypatch.setattr(conversion, "checkpoint_config", lambda path: CONFIG)
    checkpoint.write_bytes(checkpoint.read_bytes()[:-5])
    with pytest.raises(FormatError, match="found the end of the file"):
        to_hugging_face(checkpoint, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model.bin"]


@pytest.mark.parametrize("before", ["a file", "a folder with a file"])
def test_what_is_there_is_kept(tmp_path: Path, before: str) -> None:
    checkpoint = write_llmc(tmp_path / "model.bin", PARAMETERS)
    out = tmp_path / "out"
    kept = out
    if before == "a folder with a file":
        out.mkdir()
        kept = out / "mine"
    kept.write_text("mine")
    with pytest.raises(FileError, match=r"out: can't be written: (Not a directory|expected no file in this folder)"):
        to_hugging_face(checkpoint, out)
    assert kept.read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 2


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    to_hugging_face(write_llmc(tmp_path / "model.bin", PARAMETERS), tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]


def test_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model is never in memory as a whole, in either direction; where its tensors are cut changes nothing."""
    config = ModelConfig(64, 20_096, 8, 1, 64, 20_096)
    generate_checkpoint(tmp_path / "model.bin", config, 1)
    monkeypatch.setattr(conversion, "_PIECE", 1 << 14)
    tracemalloc.start()
    try:
        to_hugging_face(tmp_path / "model.bin", tmp_path / "model")
        from_hugging_face(tmp_path / "model", tmp_path / "back.bin")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1e6 < 4 * num_parameters(config) / 6
    assert (tmp_path / "back.bin").read_bytes() == (tmp_path / "model.bin").read_bytes()


def test_command(tmp_path: Path) -> None:
    """Directions, the note on dropped rows, and exit statuses."""
    parameters = dict(PARAMETERS, wte=PARAMETERS["wte"].copy())
    parameters["wte"][20] = 1
    checkpoint = write_llmc(tmp_path / "model.bin", parameters)
    folder, back = str(tmp_path / "folder"), str(tmp_path / "back.bin")
    out = CliRunner().invoke(main, ["convert", str(checkpoint), folder])
    assert out.exit_code == 0, out.output
    assert out.output.splitlines() == [
        f"{folder}: 564 parameters",
        "note: 1 padding rows of wte had values, which no token uses; they are left out",
    ]
    out = CliRunner().invoke(main, ["convert", folder, back, "--padded-vocab", "12"])
    assert (out.exit_code, out.output) == (0, f"{back}: 568 parameters\n")
    assert read_checkpoint(back).config.padded_vocab_size == 12
    for arguments, sentence in (
        ([str(checkpoint), folder], f"Error: {folder}: can't be written: expected no file in this folder\n"),
        ([str(checkpoint), back + "/x", "--padded-vocab", "12"], "--padded-vocab: expected a model in Hugging Face's"),
        ([folder + "/none", back], f"Error: {folder}/none: can't be read: No such file or directory\n"),
    ):
        refused = CliRunner().invoke(main, ["convert", *arguments])
        assert refused.exit_code == 2, refused.output
        assert sentence in refused.output


def test_safetensors_file_alone(tmp_path: Path) -> None:
    """It may be named itself, whatever it is called; config.json has to lie beside it."""
    model = write_model(tmp_path / "model", gpt2_tensors(PARAMETERS, 11), sizes_of(CONFIG))
    blob = (model / "model.safetensors").rename(model / "0123abc")
    out = CliRunner().invoke(main, ["convert", str(blob), str(tmp_path / "model.bin")])
    assert out.exit_code == 0, out.output
    assert same_parameters(tmp_path / "model.bin", PARAMETERS)
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes(safetensors_bytes(gpt2_tensors(PARAMETERS, 11)))
    with pytest.raises(FileError, match=r"config\.json: can't be read"):
        from_hugging_face(alone, tmp_path / "model.bin")
