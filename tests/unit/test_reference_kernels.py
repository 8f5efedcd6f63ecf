"""The reference kernels (native/src/kernels/ref) against the transcription of numerics.md in NumPy, bit for bit.

pytest runs it. The kernels are compiled alone, into a shared object. Every other kernel is compared with them in
native/tests/kernels/test_kernels.c, which has more shapes, and NaNs and infinities too.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from . import strict_reference as strict
from .strict_reference import F32, AdamW, Floats, Ids

SOURCES = Path(__file__).parents[2] / "native" / "src"
OPTIONS = "-std=c11 -O2 -ffp-contract=off -shared -fPIC -Wall -Werror".split()

Kernel = Callable[..., None]


class Team(ctypes.Structure):
    _fields_ = (("index", ctypes.c_int), ("count", ctypes.c_int))


class Options(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_float) for name in ("learning_rate", "beta1", "beta2", "eps", "weight_decay"))


class Start(IntEnum):
    """enum sum_start of kernels.h."""

    FROM_ZERO = 0
    CONTINUES = 1


def as_argument(value: Any) -> Any:
    match value:
        case np.ndarray():
            assert value.flags.c_contiguous
            return ctypes.c_void_p(value.ctypes.data)
        case Start():
            return ctypes.c_int(value)
        case int():
            return ctypes.c_size_t(value)
        case float():
            return ctypes.c_float(value)
    return value  # None, or of ctypes already


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    path = tmp_path_factory.mktemp("ref") / "ref.so"
    files = sorted((SOURCES / "kernels" / "ref").glob("*.c"))
    subprocess.run(["cc", *OPTIONS, f"-I{SOURCES}", *files, "-o", path, "-lm"], check=True, timeout=60)
    return ctypes.CDLL(str(path))


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def kernel(library: ctypes.CDLL, request: pytest.FixtureRequest) -> Callable[[str], Kernel]:
    """Return a function from a kernel's name to one that calls it as each of a team's threads, one after the other.

    An output that two threads compute is accumulated twice, or holds what one of them left there.
    """

    def find(name: str) -> Kernel:
        function = library[f"{name}_ref"]
        function.restype = None

        def run(*arguments: Any) -> None:
            for index in range(request.param):
                function(*(as_argument(value) for value in arguments), Team(index, request.param))

        return run

    return find


def ordinary(generator: np.random.Generator, *shape: int) -> Floats:
    return generator.normal(size=shape).astype(F32)


def wide(generator: np.random.Generator, *shape: int) -> Floats:
    return np.ldexp(ordinary(generator, *shape), generator.integers(-12, 12, size=shape)).astype(F32)


def tiny(generator: np.random.Generator, *shape: int) -> Floats:
    """So small that products, or the values themselves, are subnormal."""
    return np.ldexp(ordinary(generator, *shape), generator.integers(-140, -60, size=shape)).astype(F32)


def zeros(generator: np.random.Generator, *shape: int) -> Floats:
    """Zeros of either sign, which show what a sum starts from, and some ordinary values."""
    signed = np.copysign(F32(0), ordinary(generator, *shape))
    return np.where(generator.random(shape) < 0.8, signed, ordinary(generator, *shape)).astype(F32)


Values = Callable[..., Floats]


@pytest.fixture(params=[ordinary, wide, tiny, zeros])
def values(request: pytest.FixtureRequest) -> Values:
    generator = np.random.default_rng(1)
    return lambda *shape: request.param(generator, *shape)


@pytest.fixture(params=list(Start), ids=lambda start: start.name.lower())
def start(request: pytest.FixtureRequest) -> Start:
    return Start(request.param)


def garbage(*shape: int) -> Floats:
    return np.full(shape, np.nan, F32)


def sums(start: Start, values: Values, *shape: int) -> tuple[Floats, Floats]:
    """Return the kernel's output before it runs, and what the transcription accumulates into."""
    if start is Start.FROM_ZERO:
        return garbage(*shape), np.zeros(shape, F32)
    present = values(*shape)
    return present.copy(), present


def ids(limit: int, *shape: int) -> Ids:
    return np.random.default_rng(2).integers(0, limit, size=shape).astype(np.int32)


def assert_same(found: Floats, expected: Floats) -> None:
    np.testing.assert_array_equal(found.view(np.uint32), np.ascontiguousarray(expected).view(np.uint32))


B, T, MAX_T, C, OC, NH, V, VP = 2, 7, 9, 24, 40, 3, 37, 48
N = B * T


def test_encoder_forward(kernel: Callable[[str], Kernel], values: Values) -> None:
    tokens, wte, wpe, out = ids(V, B, T), values(V, C), values(MAX_T, C), garbage(B, T, C)
    kernel("encoder_forward")(out, tokens, wte, wpe, B, T, C)
    assert_same(out, strict.encoder_forward(tokens, wte, wpe))


@pytest.mark.parametrize(("first", "rows"), [(0, V), (0, 2), (2, 2), (4, V - 4)])
def test_encoder_backward(kernel: Callable[[str], Kernel], values: Values, start: Start, first: int, rows: int) -> None:
    """A tile of wte, of the tokens from its first one on; only the task of one tile adds to wpe."""
    tokens, dout = ids(5, B, T), values(B, T, C)
    dwte, expected_dwte = sums(Start.CONTINUES, values, V, C)
    dwpe, expected_dwpe = sums(start, values, MAX_T, C)
    tile = dwte[first : first + rows].copy()
    kernel("encoder_backward")(tile, dwpe if first == 0 else None, dout, tokens, B, T, C, MAX_T, first, rows, start)
    strict.encoder_backward(expected_dwte, expected_dwpe, dout, tokens)
    assert_same(tile, expected_dwte[first : first + rows])
    if first == 0:
        assert_same(dwpe, expected_dwpe)


def test_layernorm_forward(kernel: Callable[[str], Kernel], values: Values) -> None:
    inp, weight, bias = values(B, T, C), values(C), values(C)
    out, mean, rstd = garbage(B, T, C), garbage(B, T), garbage(B, T)
    kernel("layernorm_forward")(out, mean, rstd, inp, weight, bias, N, C)
    for found, expected in zip((out, mean, rstd), strict.layernorm_forward(inp, weight, bias), strict=True):
        assert_same(found, expected)


def test_layernorm_backward(kernel: Callable[[str], Kernel], values: Values, start: Start) -> None:
    dout, inp, weight, mean, rstd = values(B, T, C), values(B, T, C), values(C), values(B, T), values(B, T)
    dinp, expected_dinp = sums(start, values, B, T, C)
    dweight, expected_dweight = sums(start, values, C)
    dbias, expected_dbias = sums(start, values, C)
    kernel("layernorm_backward_input")(dinp, dout, inp, mean, rstd, weight, N, C, start)
    kernel("layernorm_backward_weight")(dweight, dbias, dout, inp, mean, rstd, N, C, start)
    strict.layernorm_backward(expected_dinp, expected_dweight, expected_dbias, dout, inp, weight, mean, rstd)
    assert_same(dinp, expected_dinp)
    assert_same(dweight, expected_dweight)
    assert_same(dbias, expected_dbias)


@pytest.mark.parametrize("biased", [False, True])
def test_matmul_forward(kernel: Callable[[str], Kernel], values: Values, biased: bool) -> None:
    inp, weight, bias, out = values(B, T, C), values(OC, C), values(OC) if biased else None, garbage(B, T, OC)
    kernel("matmul_forward")(out, inp, weight, bias, N, C, OC)
    assert_same(out, strict.matmul_forward(inp, weight, bias))


def test_matmul_backward_input(kernel: Callable[[str], Kernel], values: Values, start: Start) -> None:
    dout, weight = values(B, T, OC), values(OC, C)
    dinp, expected = sums(start, values, B, T, C)
    kernel("matmul_backward_input")(dinp, dout, weight, N, C, OC, start)
    strict.matmul_backward_input(expected, dout, weight)
    assert_same(dinp, expected)


@pytest.mark.parametrize(("first", "rows"), [(0, OC), (0, 1), (1, OC - 1), (OC - 1, 1)])
@pytest.mark.parametrize("biased", [False, True])
def test_matmul_backward_weight(
    kernel: Callable[[str], Kernel], values: Values, start: Start, biased: bool, first: int, rows: int
) -> None:
    dout, inp = values(B, T, OC), values(B, T, C)
    dweight, expected_dweight = sums(start, values, rows, C)
    dbias, expected_dbias = sums(start, values, rows) if biased else (None, None)
    kernel("matmul_backward_weight")(dweight, dbias, dout, inp, N, C, OC, first, rows, start)
    strict.matmul_backward_weight(expected_dweight, expected_dbias, dout[..., first : first + rows], inp)
    assert_same(dweight, expected_dweight)
    if dbias is not None and expected_dbias is not None:
        assert_same(dbias, expected_dbias)


def test_attention_forward(kernel: Callable[[str], Kernel], values: Values) -> None:
    qkv, out, preatt, att = values(B, T, 3 * C), garbage(B, T, C), garbage(B, NH, T, T), garbage(B, NH, T, T)
    kernel("attention_forward")(out, preatt, att, qkv, B, T, C, NH)
    for found, expected in zip((out, preatt, att), strict.attention_forward(qkv, NH), strict=True):
        assert_same(found, expected)


def test_attention_backward(kernel: Callable[[str], Kernel], values: Values) -> None:
    dout, qkv, att = values(B, T, C), values(B, T, 3 * C), values(B, NH, T, T)
    att[..., ~np.tri(T, dtype=bool)] = np.nan  # must not be read
    dqkv, expected_dqkv = sums(Start.FROM_ZERO, values, B, T, 3 * C)
    dpreatt, expected_dpreatt = sums(Start.FROM_ZERO, values, B, NH, T, T)
    datt, expected_datt = sums(Start.FROM_ZERO, values, B, NH, T, T)
    kernel("attention_backward")(dqkv, dpreatt, datt, dout, qkv, att, B, T, C, NH)
    strict.attention_backward(expected_dqkv, expected_dpreatt, expected_datt, dout, qkv, att)
    assert_same(dqkv, expected_dqkv)
    assert_same(dpreatt, expected_dpreatt)
    assert_same(datt, expected_datt)


def test_gelu(kernel: Callable[[str], Kernel], values: Values, start: Start) -> None:
    x, dout, out = values(N * C), values(N * C), garbage(N * C)
    kernel("gelu_forward")(out, x, N * C)
    assert_same(out, strict.gelu_forward(x))
    dinp, expected = sums(start, values, N * C)
    kernel("gelu_backward")(dinp, dout, x, N * C, start)
    with np.errstate(over="ignore", invalid="ignore"):
        strict.gelu_backward(expected, dout, x)
    assert_same(dinp, expected)


def test_residual(kernel: Callable[[str], Kernel], values: Values, start: Start) -> None:
    a, b, out = values(N * C), values(N * C), garbage(N * C)
    kernel("residual_forward")(out, a, b, N * C)
    assert_same(out, strict.residual_forward(a, b))
    da, expected_da = sums(start, values, N * C)
    db, expected_db = sums(start, values, N * C)
    kernel("residual_backward")(da, db, out, N * C, start)
    strict.residual_backward(expected_da, expected_db, out)
    assert_same(da, expected_da)
    assert_same(db, expected_db)


def test_softmax_and_crossentropy_forward(kernel: Callable[[str], Kernel], values: Values) -> None:
    logits, targets = values(B, T, VP), ids(V, B, T)
    logits[..., V:] = np.nan  # must not be read
    probs, losses = garbage(B, T, VP), garbage(B, T)
    kernel("softmax_forward")(probs, logits, N, V, VP)
    assert_same(probs, strict.softmax_forward(logits, V))
    kernel("crossentropy_forward")(losses, probs, targets, N, VP)
    assert_same(losses, strict.crossentropy_forward(probs, targets))


def test_mean_loss_of_two_parts(kernel: Callable[[str], Kernel], values: Values) -> None:
    losses, mean = values(N), garbage(1)
    kernel("mean_loss")(mean, losses, 5, 0.0, Start.FROM_ZERO)
    kernel("mean_loss")(mean, losses[5:].copy(), N - 5, float(N), Start.CONTINUES)
    assert_same(mean, strict.mean_loss(losses).reshape(1))


def test_crossentropy_softmax_backward(kernel: Callable[[str], Kernel], values: Values, start: Start) -> None:
    dlosses, probs, targets = values(B, T), values(B, T, VP), ids(V, B, T)
    dlogits, expected = sums(start, values, B, T, VP)
    kernel("crossentropy_softmax_backward")(dlogits, dlosses, probs, targets, N, V, VP, start)
    strict.crossentropy_softmax_backward(expected, dlosses, probs, targets, V)
    assert_same(dlogits, expected)


def test_gradient_add(kernel: Callable[[str], Kernel], values: Values) -> None:
    total, term = values(N * C), values(N * C)
    expected = total + term
    kernel("gradient_add")(total, term, N * C)
    assert_same(total, expected)


@pytest.mark.parametrize("step", [1, 2, 1000])
def test_adamw_update(kernel: Callable[[str], Kernel], values: Values, step: int) -> None:
    settings = AdamW(learning_rate=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)
    params, m, v, grads = values(N * C), values(N * C), np.abs(values(N * C)), values(N * C)
    expected = params.copy(), m.copy(), v.copy()
    options = Options(*(getattr(settings, name) for name, *_ in Options._fields_))
    kernel("adamw_update")(params, m, v, grads, N * C, ctypes.byref(options), ctypes.c_int64(step))
    strict.adamw_update(*expected, grads, settings, step)
    for found, right in zip((params, m, v), expected, strict=True):
        assert_same(found, right)
