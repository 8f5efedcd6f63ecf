"""The reference kernels (native/src/kernels/ref) against the functions of the plain model, bit for bit.

Both are compiled alone, into a shared object. The cases are those with which every other kernel is compared with them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from starpullm.checks.kernels.draw_case import SUM_CONTINUES
from starpullm.checks.kernels.guard_pages import GuardPages
from starpullm.checks.kernels.kernel_bits import compare_levels
from starpullm.checks.kernels.kernel_cases import CASES, declared_kernels, make_case
from starpullm.golden.plain import _Model

from .plain_trainer import NATIVE, PLAIN, compiled

F32 = np.float32
Arguments = Mapping[str, Any]


class Team(ctypes.Structure):
    _fields_ = (("index", ctypes.c_int), ("count", ctypes.c_int), ("board", ctypes.c_void_p))


def in_c(value: Any, kind: str = "") -> Any:
    match value:
        case np.ndarray():
            assert value.flags.c_contiguous
            return ctypes.c_void_p(value.ctypes.data)
        case tuple():  # the options of AdamW
            return (ctypes.c_float * len(value))(*value)
        case int():
            return {"sum_start": ctypes.c_int, "int64_t": ctypes.c_int64}.get(kind, ctypes.c_size_t)(value)
        case float():
            return ctypes.c_float(value)
    return value  # None


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    return Plain(compiled(tmp_path_factory.mktemp("plain") / "plain.so", "-Dstatic=", PLAIN))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    sources = NATIVE / "src"
    kernels = sorted((sources / "kernels" / "ref").glob("*.c"))
    return compiled(tmp_path_factory.mktemp("ref") / "ref.so", f"-I{sources}", *kernels)


class Plain:
    """The kernels, put together from the plain model's functions; ``a`` has a kernel's arguments by their names."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def call(self, name: str, *arguments: Any) -> None:
        function = self._library[name]
        function.restype = None
        function(*map(in_c, arguments))

    def on(self, name: str, a: Arguments, names: str) -> None:
        """Call a function with these arguments; it adds to its outputs, which start as the kernel's do."""
        clear_outputs(name, a)
        self.call(name, *(a[argument] for argument in names.split()))

    def sequences(self, name: str, a: Arguments, arrays: str, sizes: str) -> None:
        """Call a function that computes one sequence for each of the batch; tables are given whole."""
        for b in range(a["B"]):
            parts = (a[array] if array in ("wte", "wpe") else a[array][b] for array in arrays.split())
            self.call(name, *parts, *(a[size] for size in sizes.split()))

    def encoder_forward(self, a: Arguments) -> None:
        self.sequences("encoder_forward", a, "out tokens wte wpe", "T C")

    def layernorm_forward(self, a: Arguments) -> None:
        self.on("layernorm_forward", a, "out mean rstd inp weight bias N C")

    def matmul_forward(self, a: Arguments) -> None:
        self.on("matmul_forward", a, "out inp weight bias N C OC")

    def attention_forward(self, a: Arguments) -> None:
        self.sequences("attention_forward", a, "out preatt att qkv", "T C NH")

    def residual_forward(self, a: Arguments) -> None:
        self.on("residual_forward", a, "out a b count")

    def gelu_forward(self, a: Arguments) -> None:
        self.on("gelu_forward", a, "out inp count")

    def softmax_forward(self, a: Arguments) -> None:
        self.on("softmax_forward", a, "probs logits N V Vp")

    def crossentropy_forward(self, a: Arguments) -> None:
        model = _Model(B=1, T=a["N"], Vp=a["Vp"])
        model.acts.probs, model.acts.losses = a["probs"].ctypes.data, a["losses"].ctypes.data
        self._library.plain_loss(ctypes.byref(model), in_c(a["targets"]))

    def mean_loss(self, a: Arguments) -> None:
        total = a["mean"][0] if a["start"] == SUM_CONTINUES else F32(0)
        for loss in a["losses"]:
            total = total + loss
        a["mean"][0] = total / F32(a["divisor"]) if a["divisor"] else total

    def crossentropy_softmax_backward(self, a: Arguments) -> None:
        self.on("crossentropy_softmax_backward", a, "dlogits dlosses probs targets N V Vp")

    def matmul_backward_input(self, a: Arguments) -> None:
        clear_outputs("matmul_backward_input", a)
        dweight, inp = np.zeros((a["OC"], a["C"]), F32), np.zeros((a["N"], a["C"]), F32)
        self.call("matmul_backward", a["dinp"], dweight, None, a["dout"], inp, a["weight"], a["N"], a["C"], a["OC"])

    def matmul_backward_weight(self, a: Arguments) -> None:
        clear_outputs("matmul_backward_weight", a)
        rows, dinp = a["rows"], np.zeros((a["N"], a["C"]), F32)
        dout = np.ascontiguousarray(a["dout"][:, a["first"] :][:, :rows])
        weight = np.zeros((rows, a["C"]), F32)
        self.call("matmul_backward", dinp, a["dweight"], a["dbias"], dout, a["inp"], weight, a["N"], a["C"], rows)

    def layernorm_backward_input(self, a: Arguments) -> None:
        clear_outputs("layernorm_backward_input", a)
        self.layernorm_backward({**a, "dweight": np.zeros(a["C"], F32), "dbias": np.zeros(a["C"], F32)})

    def layernorm_backward_weight(self, a: Arguments) -> None:
        clear_outputs("layernorm_backward_weight", a)
        self.layernorm_backward({**a, "dinp": np.zeros_like(a["inp"]), "weight": np.zeros(a["C"], F32)})

    def layernorm_backward(self, a: Arguments) -> None:
        names = "dinp dweight dbias dout inp weight mean rstd N C"
        self.call("layernorm_backward", *(a[name] for name in names.split()))

    def residual_backward(self, a: Arguments) -> None:
        self.on("residual_backward", a, "da db dout count")

    def gelu_backward(self, a: Arguments) -> None:
        self.on("gelu_backward", a, "dinp dout inp count")

    def attention_backward(self, a: Arguments) -> None:
        clear_outputs("attention_backward", a)
        self.sequences("attention_backward", a, "dqkv dpreatt datt dout qkv att", "T C NH")

    def encoder_backward(self, a: Arguments) -> None:
        """Of a tile, which is cut out of a table of all tokens; a gradient that is missing gets one of its own."""
        first, rows, C = a["first"], a["rows"], a["C"]
        dwpe = np.zeros((a["maxT"], C), F32) if a["dwpe"] is None else a["dwpe"]
        if a["dwpe_start"] != SUM_CONTINUES:
            dwpe.fill(0)
        table = np.zeros((max(int(a["tokens"].max()) + 1, first + rows), C), F32)
        table[first : first + rows] = a["dwte"]
        model = _Model(B=a["B"], T=a["T"], C=C)
        model.grads.wte, model.grads.wpe = table.ctypes.data, dwpe.ctypes.data
        model.dacts.encoded = a["dout"].ctypes.data
        for b in range(a["B"]):
            self._library.encoder_backward(ctypes.byref(model), ctypes.c_size_t(b), in_c(a["tokens"][b]))
        a["dwte"][...] = table[first : first + rows]

    def gradient_add(self, a: Arguments) -> None:
        a["sum"][...] += a["term"]

    def adamw_update(self, a: Arguments) -> None:
        arrays = map(in_c, (a["params"], a["m"], a["v"], a["grads"]))
        options = map(ctypes.c_float, a["options"])
        self._library.plain_update(*arrays, ctypes.c_size_t(a["count"]), *options, ctypes.c_int64(a["step"]))


def clear_outputs(kernel: str, a: Arguments) -> None:
    """Set outputs to zero unless their sums continue: the plain model's caller does that."""
    if a.get("start") != SUM_CONTINUES:
        for parameter in declared_kernels()[kernel] if "backward" in kernel else ():
            if parameter.shape and not parameter.is_input and a[parameter.name] is not None:
                a[parameter.name].fill(0)


@pytest.mark.parametrize("kernel", CASES)
def test_reference_kernels_have_the_bits_of_the_plain_model(plain: Plain, reference: ctypes.CDLL, kernel: str) -> None:
    """In any number of threads: an output that two of them compute, or that none does, shows."""
    parameters = declared_kernels()[kernel]
    outputs = tuple(parameter.name for parameter in parameters if parameter.shape and not parameter.is_input)
    compute: Callable[[Arguments], None] = getattr(plain, kernel)

    def expected(arguments: Arguments, *, thread: int, threads: int) -> None:
        if thread == 0:
            compute(arguments)

    def found(arguments: Arguments, *, thread: int, threads: int) -> None:
        reference[f"{kernel}_ref"](
            *(in_c(arguments[parameter.name], parameter.type) for parameter in parameters), Team(thread, threads)
        )

    functions = {"ref": expected, "mine": found}
    compared, guard_pages = 0, GuardPages()
    for number in range(32):
        with np.errstate(all="ignore"):
            elements, findings = compare_levels(make_case(kernel, 1, number), functions, outputs, guard_pages)
        assert findings == []
        compared += elements
    assert compared > 0
