"""Tests of the check of gradients: bounds that hold and are sharp, and sub-batches that aren't there once.

The gradients are the plain model's, in the arithmetic of numerics.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from starpullm.checks import reduction
from starpullm.checks.reduction import GradientBounds, gradient_error, multiplicities
from starpullm.checks.reference64 import GradientReference, gamma, gradient_references
from starpullm.checks.result import Outcome
from starpullm.data.generator import generate_parameters, generate_tokens
from starpullm.errors import InvalidArgumentError
from starpullm.files.model import ModelConfig
from starpullm.golden.records import shipped_record

from .plain_trainer import Model

F32 = np.float32
check_gradients = GradientBounds().judge
Floats = NDArray[np.float32]


def sum_reference(terms: Sequence[Floats]) -> GradientReference:
    """A sum of binary32 terms of one shape, such as one gradient per sub-batch."""
    exact_terms = np.stack(terms).astype(np.float64)
    return GradientReference(exact_terms.sum(axis=0), np.abs(exact_terms).sum(axis=0), len(terms) - 1)


class Step:
    """One step of a shipped record's model, with its tensors as a trainer gives them, and faults put into them."""

    def __init__(self, name: str) -> None:
        record = shipped_record(name)
        self.config: ModelConfig = record.model
        parameters = dict(generate_parameters(record.model, record.seed))
        self.model = Model(record.model, parameters, record.batch_size, record.seq_len)
        self.inputs, targets = generate_tokens(
            record.seed, 0, record.batch_size, record.seq_len, record.model.vocab_size
        )
        self.model.step(self.inputs, targets)
        self.replaced: dict[str, Floats] = {}

    def tensor(self, group: str, name: str, layer: int | None) -> Floats:
        key = name if layer is None else f"{name}[{layer}]"
        if group in ("grads", "activations") and key in self.replaced:
            return self.replaced[key]
        groups = {
            "grads": self.model.grads,
            "activations": self.model.activations,
            "activation_grads": self.model.activation_grads,
        }
        return groups[group][key]


@cache
def computed(name: str) -> Step:
    return Step(name)


@pytest.fixture
def step() -> Step:
    """Tiny: B 2, T 8."""
    made = computed("tiny")
    made.replaced = {}
    return made


# ---- References and bounds ----


def exact(value: object) -> Fraction:
    return Fraction(float(value))  # type: ignore[arg-type]


def test_gamma() -> None:
    assert gamma(0) == 0
    assert gamma(1) == 2.0**-24 / (1 - 2.0**-24)
    assert gamma([1, 2**23, 2**24, 2**25]).tolist() == [gamma(1), 1.0, math.inf, math.inf]


def test_references_are_the_exact_sums(step: Step) -> None:
    """Element by element in rational arithmetic, one tensor of every kind."""
    references = {
        (name, layer): reference
        for name, layer, reference in gradient_references(step.tensor, step.config, step.inputs)
    }

    def rows(group: str, name: str, layer: int | None = None) -> Floats:
        values = step.tensor(group, name, layer)
        return values.reshape(-1, values.shape[-1])

    def column(name: str, layer: int) -> Floats:
        return step.tensor("activations", name, layer).reshape(-1)

    tokens = step.inputs.reshape(-1)
    token, c, o, t = int(tokens[3]), 5, 7, 2
    dencoded, dlogits, lnf = (
        rows("activation_grads", "encoded"),
        rows("activation_grads", "logits"),
        rows("activations", "lnf"),
    )
    dqkv, ln1 = rows("activation_grads", "qkv", 1), rows("activations", "ln1", 1)
    dln1, x = rows("activation_grads", "ln1", 1), rows("activations", "residual3", 0)
    mean, rstd = column("ln1_mean", 1), column("ln1_rstd", 1)
    batch, length = step.inputs.shape
    terms: dict[tuple[str, int | None, tuple[int, ...]], list[Fraction]] = {
        ("qkvw", 1, (o, c)): [exact(a[c]) * exact(d[o]) for a, d in zip(ln1, dqkv, strict=True)],
        ("qkvb", 1, (o,)): [exact(d[o]) for d in dqkv],
        ("ln1w", 1, (c,)): [
            (exact(a[c]) - exact(m)) * exact(s) * exact(d[c]) for a, m, s, d in zip(x, mean, rstd, dln1, strict=True)
        ],
        ("ln1b", 1, (c,)): [exact(d[c]) for d in dln1],
        ("wte", None, (token, c)): [exact(a[c]) * exact(d[token]) for a, d in zip(lnf, dlogits, strict=True)]
        + [exact(d[c]) for n, d in zip(tokens, dencoded, strict=True) if n == token],
        ("wpe", None, (t, c)): [exact(dencoded[b * length + t, c]) for b in range(batch)],
    }
    roundings_of_a_term = {"qkvw": 1, "ln1w": 3, "wte": 1}
    for (name, layer, index), expected in terms.items():
        reference = references[name, layer]
        magnitude = sum(map(abs, expected), Fraction())
        assert abs(exact(reference.value[index]) - sum(expected)) <= magnitude * Fraction(2) ** -45, name
        assert abs(exact(reference.magnitude[index]) - magnitude) <= magnitude * Fraction(2) ** -45, name
        roundings = np.broadcast_to(reference.roundings, reference.value.shape)[index]
        assert roundings == roundings_of_a_term.get(name, 0) + len(expected) - 1, name
        assert exact(reference.limit()[index]) >= magnitude * int(roundings) * Fraction(2) ** -24, name


@given(data=st.data())
def test_a_sum_in_any_order_and_shape_keeps_the_bound(data: st.DataObject) -> None:
    """Two halves summed apart and then together, after a shuffle, with terms of all sizes, subnormal ones included."""
    number = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**60), max_value=2.0**60)
    pairs = data.draw(st.lists(st.tuples(number, number), min_size=1, max_size=12))
    x, y = (np.array(column, F32) for column in zip(*pairs, strict=True))
    order = data.draw(st.permutations(range(len(pairs))))
    cut = data.draw(st.integers(0, len(pairs)))
    halves = [F32(0), F32(0)]
    with np.errstate(all="ignore"):
        for position, n in enumerate(order):
            halves[position >= cut] += x[n] * y[n]
        actual = np.array([halves[0] + halves[1]], F32)
    terms = [exact(a) * exact(b) for a, b in zip(x, y, strict=True)]
    products = x.astype(np.float64) * y
    reference = GradientReference(
        np.array([products.sum()]), np.array([np.abs(products).sum()]), len(pairs), len(pairs) * 2.0**-150
    )
    error = gradient_error("sum", actual, reference)
    assert error.num_beyond == 0
    assert abs(exact(actual[0]) - sum(terms)) <= exact(reference.limit()[0])


def test_the_bound_is_sharp() -> None:
    """1 + u rounds to 1 every time: after n terms the error is n·u, and the limit little more."""
    terms = [F32(1), *[F32(2.0**-24)] * 1000]
    total = F32(0)
    for term in terms:
        total += term
    error = gradient_error("sum", [total], sum_reference([np.array([term]) for term in terms]))
    assert 0.99 < error.ratio <= 1


def test_one_rounding_too_many_is_beyond_the_limit() -> None:
    reference = sum_reference([np.array([1], F32), np.array([2], F32)])
    limit = reference.limit()[0]
    assert gradient_error("sum", [3 + 0.999 * limit], reference).num_beyond == 0
    assert gradient_error("sum", [3 + 1.001 * limit], reference).num_beyond == 1
    assert gradient_error("single", [1.0], sum_reference([np.array([1], F32)])).ratio == 0
    # Nothing is rounded if there is one term.
    assert gradient_error("single", [1 + 2.0**-23], sum_reference([np.array([1], F32)])).ratio == math.inf


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_beyond_any_limit(value: float) -> None:
    error = gradient_error("sum", [0.0, value], GradientReference(np.zeros(2), np.ones(2), 5))
    assert (error.index, error.ratio, error.num_beyond) == ((1,), math.inf, 1)


def test_gradients_beyond_their_limit_are_listed() -> None:
    reference = sum_reference([np.array([1, 8], F32), np.array([3, -2], F32)])
    near, far = (
        gradient_error(name, np.array(values, F32), reference) for name, values in (("near", [4, 6]), ("far", [4, 7]))
    )
    result = GradientBounds().of_errors([far, near], 4)
    assert [finding.sentence for finding in result.findings] == [str(far)]
    passed = GradientBounds().of_errors([near], 2).sentence
    assert passed.endswith(f"the largest error is {near.ratio:.3g} of its bound")


def test_shapes_must_agree() -> None:
    with pytest.raises(InvalidArgumentError, match=r"wpe: found shape \(2,\), expected \(3,\), not empty"):
        gradient_error("wpe", np.zeros(2), GradientReference(np.zeros(3), np.zeros(3), 1))


# ---- Gradients of a step ----


@pytest.mark.parametrize("name", ["tiny", "odd"])
def test_ordered_sums_are_within_their_bounds(name: str) -> None:
    step = computed(name)
    step.replaced = {}
    result = check_gradients(step.tensor, step.config, step.inputs)
    assert result.outcome is Outcome.PASSED
    assert len(result.facts["tensors"]) == len(step.model.grads)
    assert result.measured is not None
    assert 0 < result.measured <= 1 == result.limit


def part_of_gradient(step: Step, sequence: int, name: str, layer: int | None) -> NDArray[np.float64]:
    """What one sequence of the batch contributes."""
    part = slice(sequence, sequence + 1)
    references = gradient_references(lambda *key: step.tensor(*key)[part], step.config, step.inputs[part])
    return next(reference.value for *key, reference in references if key == [name, layer])


@pytest.mark.parametrize(
    "tensor", ["wte", "wpe", "ln1w[0]", "ln1b[1]", "qkvw[1]", "qkvb[0]", "attprojw[1]", "fcw[0]", "fcprojb[1]", "lnfw"]
)
@pytest.mark.parametrize("times", [0, 2])
def test_a_sub_batch_that_is_not_there_once_is_named(step: Step, tensor: str, times: int) -> None:
    name, _, layer = tensor.rstrip("]").partition("[")
    first, second = (part_of_gradient(step, sequence, name, int(layer) if layer else None) for sequence in range(2))
    step.replaced[tensor] = (first + times * second).astype(F32)
    result = check_gradients(step.tensor, step.config, step.inputs, sub_batches=2)
    assert result.outcome is Outcome.FAILED
    beyond = [error for error in result.facts["tensors"] if error["num_beyond"]]
    assert [error["tensor"] for error in beyond] == [tensor]
    assert beyond[0]["explained_by"] == {"sub-batch 1": times}
    assert result.findings[0].sentence.endswith(f"sub-batch 1 is {'missing' if times == 0 else 'there 2 times'}")


def test_another_fault_is_not_explained_by_sub_batches(step: Step) -> None:
    wrong = step.model.grads["fcw[0]"].copy()
    wrong[3, 4] += F32(0.01)
    step.replaced["fcw[0]"] = wrong
    result = check_gradients(step.tensor, step.config, step.inputs, sub_batches=2)
    (error,) = (error for error in result.facts["tensors"] if error["num_beyond"])
    found = tuple(error[name] for name in ("tensor", "index", "num_beyond", "explained_by"))
    assert found == ("fcw[0]", (3, 4), 1, {})


def test_activations_that_are_not_finite_are_a_failure(step: Step) -> None:
    """Without a reference nothing is known of the gradients; what spoilt the activations is a fault all the same."""
    step.replaced["fch_gelu[0]"] = np.full_like(step.tensor("activations", "fch_gelu", 0), np.inf)
    result = check_gradients(step.tensor, step.config, step.inputs, sub_batches=2)
    assert result.outcome is Outcome.FAILED
    assert result.sentence.endswith("; 1 have no reference, because the step's activations aren't finite")


@pytest.mark.parametrize(
    ("value", "outcome", "finding"),
    [
        (1.0, Outcome.INCONCLUSIVE, "so many terms that no bound is known"),
        (math.nan, Outcome.FAILED, "1 have values that aren't finite"),
    ],
)
def test_so_many_terms_that_no_bound_is_known(
    step: Step, monkeypatch: pytest.MonkeyPatch, value: float, outcome: Outcome, finding: str
) -> None:
    """That isn't a failure, unless something isn't finite."""
    ones = np.ones(step.config.channels)
    long_sum = GradientReference(ones, ones, 2**24)
    monkeypatch.setattr(reduction, "gradient_references", lambda *_: [("lnfb", None, long_sum)])
    step.replaced["lnfb"] = np.full(step.config.channels, value, F32)
    result = check_gradients(step.tensor, step.config, step.inputs)
    assert result.outcome is outcome
    assert finding in result.sentence


def test_sub_batches_must_divide_the_batch(step: Step) -> None:
    with pytest.raises(InvalidArgumentError, match="sub_batches: found 3, expected a divisor of 2"):
        check_gradients(step.tensor, step.config, step.inputs, sub_batches=3)


@given(times=st.lists(st.integers(0, 5), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_multiplicities_of_independent_contributions(times: list[int], seed: int) -> None:
    # Contributions as small as gradients can be.
    parts = np.random.default_rng(seed).standard_normal((len(times), 30)).astype(F32) * F32(1e-30)
    references = {str(number): sum_reference([part]) for number, part in enumerate(parts)}
    total = np.zeros(30, F32)
    for part, count in zip(parts, times, strict=True):
        for _ in range(count):
            total += part
    expected = {str(number): count for number, count in enumerate(times)}
    assert multiplicities(total, references) == expected
    assert multiplicities(total + F32(1e-31), references) is None
    assert multiplicities(-total - parts.sum(axis=0), references) is None
