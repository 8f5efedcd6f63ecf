"""A GPT-2 made by transformers trains here after `starpullm convert`, and goes back; its losses are transformers'.

Only the order of its sums is another: docs/numerics.md, "Other implementations". transformers and PyTorch are large and
not among the requirements of the tests: where they are missing, this file is skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from starpullm import Runtime, Trainer
from starpullm.data.generator import generate_tokens
from starpullm.files.conversion import from_hugging_face, to_hugging_face

from .children import run_function

torch = pytest.importorskip("torch", reason="PyTorch isn't installed: pip install torch transformers")
transformers = pytest.importorskip("transformers", reason="transformers isn't installed: pip install transformers")

SIZES = {"vocab_size": 101, "n_positions": 16, "n_embd": 48, "n_layer": 2, "n_head": 3}
STD = 0.2
"""Of the random parameters, biases too: large enough for every one of them to change the loss noticeably."""
INPUTS, TARGETS = generate_tokens(1, 0, 2, 16, 101)
TOLERANCE = 1e-4
"""Of a loss of about 5: roundings moved it by 1.4e-6, a wrong conversion moves it by more than 3.8e-3."""


def new_model() -> Any:
    torch.manual_seed(1)
    config = transformers.GPT2Config(**SIZES, initializer_range=STD, bos_token_id=None, eos_token_id=None)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, STD)
    return model


def loss_of(model: Any) -> float:
    """Return transformers' own loss, in binary32."""

    def ids(array: NDArray[np.int32]) -> Any:
        return torch.from_numpy(array.astype(np.int64))

    with torch.no_grad():
        logits = model(ids(INPUTS)).logits
        return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids(TARGETS).flatten()))


def changed_losses(model: Any) -> dict[str, float]:
    """Return the losses of models that a wrong conversion could make."""
    losses = {}
    for name, number in (("heads", 6), ("scale", 3)):
        config = transformers.GPT2Config(**{**model.config.to_dict(), "n_head": number})
        config.scale_attn_weights = name != "scale"
        other = transformers.GPT2LMHeadModel(config).eval()
        other.load_state_dict(model.state_dict())
        losses[name] = loss_of(other)
    changes: dict[str, Callable[[Any], Any]] = {
        "h.0.attn.c_proj.weight": lambda values: values.T,
        "h.1.mlp.c_proj.bias": lambda values: 0 * values,
        "h.1.attn.c_attn.bias": lambda values: 0 * values,
        "h.0.ln_2.weight": lambda values: model.transformer.h[1].ln_1.bias,
        "wpe.weight": lambda values: values.flip(0),
    }
    for name, change in changes.items():
        parameter = model.transformer.get_parameter(name)
        before = parameter.detach().clone()
        with torch.no_grad():
            parameter.copy_(change(before).clone())
            losses[name] = loss_of(model)
            parameter.copy_(before)
    return losses


def train_converted(directory: str) -> dict[str, Any]:
    """Convert a model, train it, and convert the trained one back; return losses of both sides."""
    folder = Path(directory)
    model = new_model()
    model.save_pretrained(folder / "model")
    from_hugging_face(folder / "model", folder / "model.bin")
    pairs, losses = [], []
    with (
        Runtime() as runtime,
        Trainer(runtime, folder / "model.bin", batch_size=2, seq_len=16) as trainer,
    ):
        for step in range(4):
            checkpoint = folder / f"{step}.bin"
            trainer.save_checkpoint(checkpoint)
            losses.append(float(trainer.step(INPUTS, TARGETS)))
            if step in (0, 3):
                to_hugging_face(checkpoint, folder / f"model-{step}")
                back = transformers.GPT2LMHeadModel.from_pretrained(folder / f"model-{step}").eval()
                pairs.append([losses[-1], loss_of(back)])
    return {"pairs": pairs, "losses": losses, "original": loss_of(model), "changed": changed_losses(model)}


def test_losses(tmp_path: Path) -> None:
    done = run_function(train_converted, tmp_path, timeout=110)
    assert all(abs(here - there) <= TOLERANCE for here, there in done["pairs"])
    assert done["pairs"][0][1] == done["original"], "the way here and back kept every bit"
    assert done["losses"] == sorted(done["losses"], reverse=True), "it trains"
    for name, loss in done["changed"].items():
        assert abs(loss - done["original"]) > 10 * TOLERANCE, f"a wrong {name} would not be noticed"
