"""The cases of kernels have the arguments and shapes that kernels.def declares, and values of each kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from starpullm.checks.kernels.draw_case import GARBAGE_BITS, GUARD_BITS, SUM_CONTINUES, SUM_FROM_ZERO, VALUES, Draw
from starpullm.checks.kernels.kernel_cases import CASES, declared_kernels, make_case

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def test_there_are_cases_for_each_kernel_in_the_order_of_the_list() -> None:
    assert list(CASES) == list(declared_kernels())


@pytest.mark.parametrize("kernel", CASES)
def test_outputs_hold_garbage_unless_a_sum_continues(kernel: str) -> None:
    starts = set()
    for number in range(12):
        case = make_case(kernel, 6, number)
        start = case.arguments.get("start", case.arguments.get("dwpe_start"))
        starts.add(start)
        for is_input, _, name, shape in declared_kernels()[kernel]:
            if is_input or shape is None or case.arguments[name] is None:
                continue
            continues = name in CONTINUING if name in CONTINUING or start is None else start == SUM_CONTINUES
            bits = case.arguments[name].array().view(np.uint32)
            assert (bits == GARBAGE_BITS).all() != continues, (str(case), name)
    assert starts in ({None}, {0, 1})


CONTINUING = ("dwte", "params", "m", "v", "sum")
"""Outputs that are always read."""


def test_indices_are_below_their_limit_and_reach_it() -> None:
    for kernel, name, size_of in (
        ("encoder_forward", "tokens", "wte"),
        ("crossentropy_softmax_backward", "targets", ""),
    ):
        above = []
        for number in range(30):
            arguments = make_case(kernel, 5, number).arguments
            limit = arguments[size_of].shape[0] if size_of else arguments["V"]
            indices = arguments[name].array()
            assert 0 <= indices.min() <= indices.max() < limit
            above.append(indices.max() / limit)
        assert max(above) > 0.9


def test_tokens_before_in_and_behind_a_tile() -> None:
    of_tiles = set()
    for number in range(30):
        arguments = make_case("encoder_backward", 5, number).arguments
        rows = arguments["tokens"].array() - arguments["first"]
        assert (arguments["tokens"].array() >= 0).all()
        of_tiles |= set(np.sign(np.where(rows < 0, -1, rows // arguments["rows"])).flatten().tolist())
    assert of_tiles == {-1, 0, 1}


def test_attention_and_logits_have_garbage_where_nothing_is_read() -> None:
    att = make_case("attention_backward", 1, 3).arguments["att"].array().view(np.uint32)
    above = ~np.tri(att.shape[-1], dtype=bool)
    assert (att[..., above] == GARBAGE_BITS).all()
    assert not (att[..., ~above] == GARBAGE_BITS).any()
    padded = 0
    for number in range(20):
        arguments = make_case("softmax_forward", 1, number).arguments
        logits = arguments["logits"].array().view(np.uint32)
        padded += arguments["Vp"] > arguments["V"]
        assert (logits[:, arguments["V"] :] == GARBAGE_BITS).all()
        assert not (logits[:, : arguments["V"]] == GARBAGE_BITS).any()
    assert 4 < padded < 16


def test_some_scores_overflow_and_some_logits_are_all_very_small() -> None:
    """Both are where a search for the largest value begins, or an exponential ends."""
    scores = [np.abs(make_case("attention_forward", 1, n).arguments["qkv"].array()) for n in range(0, 96, 2)]
    large = [np.nanmax(values[np.isfinite(values)], initial=0) > 1e16 for values in scores]
    assert 2 < sum(large) < 20
    rows = [make_case("softmax_forward", 1, n).arguments for n in range(0, 128, 2)]
    small = [(a["logits"].array()[:, : a["V"]] <= -10000).all() for a in rows]
    assert 2 < sum(small) < 20


def test_functions_have_arguments_between_the_ends_at_which_they_are_constant() -> None:
    """Of ordinary values: e^x is denormal below -87, tanh 1 above 9, and cosh infinite above 89."""
    scores = [np.abs(make_case("attention_forward", 1, n).arguments["qkv"].array()) for n in range(0, 96, 2)]
    assert 5 < sum(8 < np.nanmax(values, initial=0) <= 16 for values in scores) < 30
    for kernel in ("gelu_forward", "gelu_backward"):
        inputs = [np.abs(make_case(kernel, 1, n).arguments["inp"].array()) for n in range(0, 96, 2)]
        assert 5 < sum(8 < np.nanmax(values, initial=0) <= 16 for values in inputs) < 30


def test_some_arrays_are_missing_and_no_others() -> None:
    """A kernel reads each of the others, as the bias of a layernorm."""
    missing = Counter(
        (kernel, name)
        for kernel in CASES
        for number in range(24)
        for name, value in make_case(kernel, 1, number).arguments.items()
        if value is None
    )
    assert set(missing) == {
        ("matmul_forward", "bias"),
        ("matmul_backward_weight", "dbias"),
        ("encoder_backward", "dwpe"),
    }
    assert all(1 < count < 20 for count in missing.values())


def test_options_of_adamw_are_ones_that_the_library_takes() -> None:
    cases = [make_case("adamw_update", 1, number).arguments for number in range(40)]
    rates, beta1s, beta2s, eps, decays = (set(column) for column in zip(*(a["options"] for a in cases), strict=True))
    assert all(1e-4 <= rate <= 5e-3 for rate in rates)
    assert {0.0, 0.9, 0.999} <= beta1s & beta2s
    assert all(0 <= beta < 1 for beta in beta1s | beta2s)
    assert (eps, decays) == ({1e-8, 1e-5}, {0.0, 0.1})
    steps = [a["step"] for a in cases]
    assert 1 <= min(steps) < 20 < 10**5 < max(steps) <= 20_000_000
    assert all((a["v"].array()[~np.isnan(a["v"].array())] >= 0).all() for a in cases)


# ---- What is drawn ----


def exponents(values: Floats) -> set[int]:
    return set((values.ravel().view(np.uint32) >> 23 & 0xFF).tolist())


def is_special(values: Floats) -> bool:
    extreme = ~np.isfinite(values) | (values == 0) | (np.abs(values) == np.finfo(np.float32).max)
    return 1 <= int(extreme.sum()) <= 3


KINDS: dict[str, Callable[[Floats], bool]] = {
    "ordinary": lambda values: exponents(values) == {124, 125, 126, 127},
    "wide": lambda values: exponents(values) == set(range(103, 152)),
    "tiny": lambda values: exponents(values) == {0, *range(55, 67)},
    "some zeros": lambda values: 0.4 < np.mean(values == 0) < 0.6 and exponents(values) == {0, *range(124, 128)},
    "all zeros": lambda values: not values.any(),
    "special": is_special,
}


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_mostly_of_the_cases_kind(kind: str) -> None:
    draw = Draw(3, 0, 1)
    draw.values = kind
    arrays = [draw.input(4, 2000).array() for _ in range(40)]
    assert sum(KINDS[kind](values) for values in arrays) > 15
    others = [other for other in VALUES if any(KINDS[other](values) for values in arrays)]
    assert len(others) > 2  # kinds also meet each other
    signs = [float(np.mean(np.signbit(values))) for values in arrays if not np.isnan(values).any()]
    assert all(0.4 < share < 0.6 for share in signs)


def test_cases_with_even_numbers_are_ordinary_and_the_others_of_any_kind() -> None:
    assert {Draw(1, 2, number).values for number in range(0, 60, 2)} == {"ordinary"}
    assert {Draw(1, 2, number).values for number in range(1, 120, 2)} == set(VALUES) == set(KINDS)


def test_a_buffer_has_guards_of_its_own_on_both_sides() -> None:
    begins = set()
    for number in range(60):
        buffer = Draw(1, 2, number).input(3, 5)
        begins.add(buffer.begin)
        assert (buffer.array().shape, buffer.end - buffer.begin) == ((3, 5), 15)
        assert len(buffer.memory) - buffer.end == 48
        outside = np.concatenate([buffer.memory[: buffer.begin], buffer.memory[buffer.end :]])
        assert (outside == GUARD_BITS).all()
        assert np.array_equal(buffer.array().ravel().view(np.uint32), buffer.memory[buffer.begin : buffer.end])
    assert (min(begins), max(begins)) == (48, 63)


def test_teams_are_small_where_outputs_are_large() -> None:
    def teams(elements: int) -> set[int]:
        found = set()
        for seed in range(200):
            draw = Draw(seed, 0, 0)
            draw._outputs = elements
            found.add(draw.threads())
        return found

    assert teams(300_001) == {1, 2, 3}
    few = teams(300_000)
    assert {*range(1, 9)} < few
    assert 30 < max(few) <= 40
    large = Draw(0, 0, 0)
    large.output(SUM_FROM_ZERO, 150_000)
    large.output(SUM_CONTINUES, 2, 75_001)
    assert large._outputs == 300_002


def test_blocks_are_cut_for_many_sizes_of_the_cache() -> None:
    caches = [make_case("gelu_forward", 1, number).l2_cache for number in range(11)]
    assert caches == [Draw(2, 0, number).l2_cache for number in range(11)]
    assert [caches[0], make_case("gelu_forward", 1, 11).l2_cache] == [0, 0]
    sizes = [size for size in caches[1:] if size]
    assert sizes == sorted(set(sizes))
    assert (len(sizes), sizes[0], sizes[-1]) == (10, 1, 5_000_000)
