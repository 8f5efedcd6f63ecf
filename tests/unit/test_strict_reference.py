"""Every tensor of the smallest golden records against a second, independent reading of the arithmetic contract.

pytest runs it; it shows that contract, generator, digests and records agree without any native code. The larger quick
records are compared with the plain model, which has the bits of this reading.
"""

from __future__ import annotations

import pytest

from starpullm.data.generator import generate_parameters, generate_tokens
from starpullm.golden.records import TENSOR_GROUPS, libm_fingerprint, shipped_record, tensor_digest

from .strict_reference import AdamW, StrictModel, libm


@pytest.fixture(scope="module")
def fingerprint() -> dict[str, str]:
    """Fingerprint of this platform's libm."""
    return libm_fingerprint(libm)


@pytest.mark.parametrize("name", ["tiny", "odd", "single", "ragged"])
def test_every_tensor_of_every_step(name: str, fingerprint: dict[str, str]) -> None:
    """Every digest and every loss of the record is reproduced bit for bit."""
    record = shipped_record(name)
    different = record.different_functions(fingerprint)
    if different:
        pytest.skip(f"not comparable: another libm's {', '.join(different)}")
    model = StrictModel(
        record.model, dict(generate_parameters(record.model, record.seed)), record.batch_size, record.seq_len
    )
    settings = AdamW(record.learning_rate, record.beta1, record.beta2, record.eps, record.weight_decay)
    for number, step in enumerate(record.steps):
        inputs, targets = generate_tokens(
            record.seed, number, record.batch_size, record.seq_len, record.model.vocab_size
        )
        loss = model.step(inputs, targets, settings)
        assert loss.tobytes()[::-1].hex() == step.mean_loss_bits
        tensors = {
            "activations": model.activations,
            "activation_grads": model.activation_grads,
            "grads": model.grads,
            "params": model.params,
            "m": model.m,
            "v": model.v,
        }
        for group in TENSOR_GROUPS:
            found = {tensor: tensor_digest(array) for tensor, array in tensors[group].items()}
            assert found == step.digests[group], f"step {number}, {group}"
