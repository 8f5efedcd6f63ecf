"""Golden records of llm.c: digests of all tensors after every step (README.md).

Size letters: B batch, T sequence length, C channels, NH heads, L layers, V vocabulary, Vp padded vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import FormatError, InvalidArgumentError
from starpullm.files.header import INT32_MAX, StrPath
from starpullm.files.json_reader import JsonNode, read_json
from starpullm.files.model import INT64_MAX, UNLAYERED_PARAMETERS, ModelConfig, parameter_shapes
from starpullm.options import ARITHMETICS

THRESHOLD_RECORDS: Final = ("single", "ragged", "long", "wide")
"""Names of the shipped records whose sizes lie beyond thresholds at which the code takes another path."""

SHIPPED_RECORDS: Final = ("tiny", "odd", "small", "deep", *THRESHOLD_RECORDS, "gpt2-124m")
"""Names of the records that come with the package; the last one takes minutes."""

TENSOR_GROUPS: Final = ("activations", "activation_grads", "grads", "params", "m", "v")
"""Groups of tensors of a step, in the order in which they are computed."""

SETTINGS: Final = ("learning_rate", "beta1", "beta2", "eps", "weight_decay")
"""The settings of AdamW in a record."""

_UNLAYERED: Final = frozenset(
    UNLAYERED_PARAMETERS | {"encoded", "lnf", "lnf_mean", "lnf_rstd", "logits", "probs", "losses"}
)
"""The parameters and activations that don't belong to a layer."""

_GOLDEN: Final = Path(__file__).parent
_MAX_STEPS: Final = 10**6
_DIGEST_DIGITS: Final = 32
_SHA256_DIGITS: Final = 64


@dataclass(frozen=True)
class GoldenStep:
    """The results of one training step.

    ``mean_loss_bits`` are the bits of the binary32 mean loss, 8 hex digits, the most significant first. ``digests`` has
    the digest (see `tensor_digest`) of each tensor of each group of `TENSOR_GROUPS`. Names are those of `layer_name`,
    in the order of the checkpoint or, for activations, of execution.
    """

    mean_loss: float
    mean_loss_bits: str
    digests: dict[str, dict[str, str]]


@dataclass(frozen=True)
class GoldenRecord:
    """A model, tokens and settings of AdamW, and what llm.c computed with them.

    ``seed`` is the number of the generated model and tokens (see `starpullm.data`), whose SHA-256 in hex are
    ``checkpoint_sha256`` and ``tokens_sha256`` (of all steps together). ``origin`` names the results, which are those
    of ``arithmetic``. ``fused_sha256`` is the digest (see `digest_of_steps`) of llm.c's results with fused sums; empty:
    it isn't known.
    """

    path: Path
    name: str
    seed: int
    model: ModelConfig
    batch_size: int
    seq_len: int
    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    checkpoint_sha256: str
    tokens_sha256: str
    steps: tuple[GoldenStep, ...]
    origin: str
    fused_sha256: str
    arithmetic: str

    @classmethod
    def load(cls, path: StrPath, *, with_results: bool = True) -> GoldenRecord:
        """Read and check a record; `FormatError` names the key that is missing or has a wrong value.

        Without results, the file may be of a record that is still to be made: no step has a loss or digests.
        """
        where = Path(path)
        root = JsonNode(where, "", read_json(where))
        config = root.child("config")
        sizes = {field.name: config.child(field.name).integer() for field in fields(ModelConfig)}
        try:
            model = ModelConfig(**sizes)
        except InvalidArgumentError as error:
            raise FormatError(f"{where}, key config: {error}") from None
        num_steps = config.child("steps").integer(1, _MAX_STEPS)
        steps = (GoldenStep(math.nan, "", {}),) * num_steps
        if with_results:
            steps = tuple(_step(node, model) for node in root.child("steps").items())
        if len(steps) != num_steps:
            raise FormatError(f"{where}, key steps: expected {num_steps} steps, found {len(steps)}")
        if "libm_fingerprint" in root.mapping():
            raise FormatError(
                f"{where}: was made with a platform's libm, expected correctly rounded functions (docs/numerics.md); "
                "starpullm parity takes sizes as options instead"
            )
        seq_len = config.child("seq_len").integer(1, model.max_seq_len)
        most = INT32_MAX // (2 * seq_len * num_steps)  # a token file holds the tokens of all steps
        return cls(
            path=where,
            name=config.child("name").text(),
            seed=config.child("seed").integer(maximum=INT64_MAX),
            model=model,
            batch_size=config.child("batch_size").integer(1, most),
            seq_len=seq_len,
            **{name: config.child(name).number() for name in SETTINGS},
            checkpoint_sha256=root.child("checkpoint_sha256").hex(_SHA256_DIGITS),
            tokens_sha256=root.child("tokens_sha256").hex(_SHA256_DIGITS),
            steps=steps,
            origin=root.child("origin").text() if "origin" in root.mapping() else "golden record",
            fused_sha256=root.child("fused_sha256").hex(_SHA256_DIGITS) if "fused_sha256" in root.mapping() else "",
            arithmetic=ARITHMETICS[0],
        )

    def with_steps(self, steps: Sequence[Mapping[str, Any]]) -> GoldenRecord:
        """Return the record with other results, each of them of `step_results`."""
        return replace(self, steps=tuple(_step(JsonNode(self.path, "steps", step), self.model) for step in steps))

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return len(self.steps)


def shipped_record(name: str) -> GoldenRecord:
    """Return the shipped record of that name."""
    if name not in SHIPPED_RECORDS:
        raise InvalidArgumentError(f"golden record: expected {' or '.join(SHIPPED_RECORDS)}, found {name}")
    return GoldenRecord.load(_GOLDEN / f"{name}.json")


def shipped_records() -> dict[str, GoldenRecord]:
    """Return all shipped records by name, the quickest first."""
    return {name: shipped_record(name) for name in SHIPPED_RECORDS}


def tensor_digest(array: NDArray[np.float32]) -> str:
    """Return the first 32 hex digits of the SHA-256 of a tensor's little-endian binary32 values, row-major.

    `InvalidArgumentError` is raised if the array isn't float32, because a conversion would change the bits.
    """
    if array.dtype.newbyteorder("=") != np.float32:
        raise InvalidArgumentError(f"tensor digest: expected a float32 array, found {array.dtype}")
    content = np.ascontiguousarray(array, "<f4").reshape(-1).view(np.uint8).data
    return hashlib.sha256(content).hexdigest()[:_DIGEST_DIGITS]


def activation_shapes(config: ModelConfig, batch_size: int, seq_len: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each activation by name, in the order of execution, with the layer dimension first."""
    layers, channels, heads = config.num_layers, config.channels, config.num_heads
    rows = (batch_size, seq_len)
    return {
        "encoded": (*rows, channels),
        "ln1": (layers, *rows, channels),
        "ln1_mean": (layers, *rows),
        "ln1_rstd": (layers, *rows),
        "qkv": (layers, *rows, 3 * channels),
        "atty": (layers, *rows, channels),
        "preatt": (layers, batch_size, heads, seq_len, seq_len),
        "att": (layers, batch_size, heads, seq_len, seq_len),
        "attproj": (layers, *rows, channels),
        "residual2": (layers, *rows, channels),
        "ln2": (layers, *rows, channels),
        "ln2_mean": (layers, *rows),
        "ln2_rstd": (layers, *rows),
        "fch": (layers, *rows, 4 * channels),
        "fch_gelu": (layers, *rows, 4 * channels),
        "fcproj": (layers, *rows, channels),
        "residual3": (layers, *rows, channels),
        "lnf": (*rows, channels),
        "lnf_mean": rows,
        "lnf_rstd": rows,
        "logits": (*rows, config.padded_vocab_size),
        "probs": (*rows, config.padded_vocab_size),
        "losses": rows,
    }


def layer_name(tensor: str, layer: int | None) -> str:
    """Return the name that records give to a layer's tensor: ``qkvw[1]``, or ``wte`` if the layer is None."""
    return tensor if layer is None else f"{tensor}[{layer}]"


def split_layer(name: str) -> tuple[str, int | None]:
    """Return tensor and layer of a name in a record: ("qkvw", 1) of ``qkvw[1]``, ("wte", None) of ``wte``."""
    tensor, _, layer = name.partition("[")
    return tensor, int(layer.removesuffix("]")) if layer else None


def split_layers(
    tensors: Mapping[str, NDArray[np.float32]],
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield parameters or activations, with the layer dimension first, by a record's names: `wte`, `qkvw[0]`, ..."""
    for name, array in tensors.items():
        if name in _UNLAYERED:
            yield name, array
        else:
            for layer, part in enumerate(array):
                yield layer_name(name, layer), part


def step_results(loss: np.float32, groups: Mapping[str, Mapping[str, NDArray[np.float32]]]) -> dict[str, Any]:
    """Return the results of a step as a record's file has them; ``groups`` have the layer dimension first."""
    digests = {
        group: {name: tensor_digest(values) for name, values in split_layers(groups[group])} for group in TENSOR_GROUPS
    }
    return {"mean_loss": float(loss), "mean_loss_bits": f"{loss.view(np.uint32):08x}", **digests}


def digest_of_steps(steps: Sequence[Mapping[str, Any]]) -> str:
    """Return the SHA-256 in hex of the JSON text of steps, each of them of `step_results`."""
    return hashlib.sha256(json.dumps(steps).encode()).hexdigest()


def _step(node: JsonNode, model: ModelConfig) -> GoldenStep:
    bits = node.child("mean_loss_bits").hex(8)
    mean_loss = node.child("mean_loss").number()
    with np.errstate(over="ignore"):
        found = np.array(mean_loss).astype(">f4").tobytes().hex()
    if found != bits:
        raise node.child("mean_loss").refusal(f"the value of mean_loss_bits {bits}")
    digests = {}
    for group in TENSOR_GROUPS:
        tensors = node.child(group)
        # The first missing name ends this: the number of layers can be any that the file says.
        digests[group] = {name: tensors.child(name).hex(_DIGEST_DIGITS) for name in _tensor_names(group, model)}
        unknown = tensors.mapping().keys() - digests[group].keys()
        if unknown:
            raise tensors.refusal(f"no tensor {min(unknown)}")
    return GoldenStep(mean_loss, bits, digests)


def _tensor_names(group: str, model: ModelConfig) -> Iterator[str]:
    activations = group in ("activations", "activation_grads")
    for name in activation_shapes(model, 1, 1) if activations else parameter_shapes(model):
        layers = [None] if name in _UNLAYERED else range(model.num_layers)
        yield from (layer_name(name, layer) for layer in layers)
