"""A GPT-2 in NumPy, as an example of docs/validate.md: trains the run in FOLDER and writes its tensors there.

It shares nothing with starpullm. ``numpy_gpt2.py FOLDER mistake`` scales attention by 1/hs instead of 1/sqrt(hs).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Tensors = dict[str, Any]

folder, mistake = Path(sys.argv[1]), "mistake" in sys.argv
run = json.loads((folder / "run.json").read_text())["config"]
L, NH, C, V = (run[name] for name in ("num_layers", "num_heads", "channels", "vocab_size"))
Vp, B, T, Tm = (run[name] for name in ("padded_vocab_size", "batch_size", "seq_len", "max_seq_len"))
hs = C // NH
scale = np.float32(1 / hs if mistake else hs**-0.5)
mask = np.tril(np.ones((T, T), bool))
BLOCK = {
    **{"ln1w": (C,), "ln1b": (C,), "qkvw": (3 * C, C), "qkvb": (3 * C,), "attprojw": (C, C), "attprojb": (C,)},
    **{"ln2w": (C,), "ln2b": (C,), "fcw": (4 * C, C), "fcb": (4 * C,), "fcprojw": (C, 4 * C), "fcprojb": (C,)},
}
SHAPES = {
    "wte": (Vp, C),
    "wpe": (Tm, C),
    **{name: (L, *shape) for name, shape in BLOCK.items()},
    "lnfw": (C,),
    "lnfb": (C,),
}


def layernorm(a: Tensors, name: str, x: Floats, weight: Floats, bias: Floats) -> Floats:
    mean = x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + np.float32(1e-5))
    a[name], a[f"{name}_mean"], a[f"{name}_rstd"] = (x - mean) * rstd * weight + bias, mean[..., 0], rstd[..., 0]
    return np.asarray(a[name])


def layernorm_backward(a: Tensors, g: Tensors, name: str, x: Floats, dout: Floats, weight: Floats) -> Floats:
    mean, rstd = a[f"{name}_mean"][..., None], a[f"{name}_rstd"][..., None]
    norm, dnorm = (x - mean) * rstd, dout * weight
    g[f"{name}w"], g[f"{name}b"] = (dout * norm).sum((0, 1)), dout.sum((0, 1))
    return np.asarray(rstd * (dnorm - dnorm.mean(-1, keepdims=True) - norm * (dnorm * norm).mean(-1, keepdims=True)))


def matmul_backward(g: Tensors, name: str, x: Floats, dout: Floats, weight: Floats) -> Floats:
    g[f"{name}w"], g[f"{name}b"] = np.einsum("bto,bti->oi", dout, x), dout.sum((0, 1))
    return dout @ weight


def heads(x: Floats) -> Floats:
    return x.reshape(B, T, NH, hs).transpose(0, 2, 1, 3)


def tanh_of_gelu(x: Floats) -> Floats:
    return np.tanh(np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3))


def block(p: Tensors, a: Tensors, x: Floats) -> Floats:
    a["qkv"] = layernorm(a, "ln1", x, p["ln1w"], p["ln1b"]) @ p["qkvw"].T + p["qkvb"]
    q, k, v = map(heads, np.split(a["qkv"], 3, -1))
    a["preatt"] = np.where(mask, q @ k.swapaxes(2, 3) * scale, np.float32(-np.inf))
    exp = np.exp(a["preatt"] - a["preatt"].max(-1, keepdims=True))
    a["att"] = exp / exp.sum(-1, keepdims=True)
    a["atty"] = (a["att"] @ v).transpose(0, 2, 1, 3).reshape(B, T, C)
    a["attproj"] = a["atty"] @ p["attprojw"].T + p["attprojb"]
    a["residual2"] = x + a["attproj"]
    a["fch"] = layernorm(a, "ln2", a["residual2"], p["ln2w"], p["ln2b"]) @ p["fcw"].T + p["fcb"]
    a["fch_gelu"] = np.float32(0.5) * a["fch"] * (1 + tanh_of_gelu(a["fch"]))
    a["fcproj"] = a["fch_gelu"] @ p["fcprojw"].T + p["fcprojb"]
    a["residual3"] = a["residual2"] + a["fcproj"]
    return np.asarray(a["residual3"])


def block_backward(p: Tensors, a: Tensors, x: Floats, g: Tensors, d: Tensors) -> Floats:
    d["fcproj"] = d["residual3"]
    d["fch_gelu"] = matmul_backward(g, "fcproj", a["fch_gelu"], d["fcproj"], p["fcprojw"])
    h, tanh = a["fch"], tanh_of_gelu(a["fch"])
    slope = np.float32(np.sqrt(2 / np.pi)) * (1 + np.float32(3 * 0.044715) * h**2)
    d["fch"] = d["fch_gelu"] * np.float32(0.5) * (1 + tanh + h * (1 - tanh**2) * slope)
    d["ln2"] = matmul_backward(g, "fc", a["ln2"], d["fch"], p["fcw"])
    d["residual2"] = d["residual3"] + layernorm_backward(a, g, "ln2", a["residual2"], d["ln2"], p["ln2w"])
    d["attproj"] = d["residual2"]
    d["atty"] = matmul_backward(g, "attproj", a["atty"], d["attproj"], p["attprojw"])
    (q, k, v), dy = map(heads, np.split(a["qkv"], 3, -1)), heads(d["atty"])
    d["att"] = dy @ v.swapaxes(2, 3)
    d["preatt"] = a["att"] * (d["att"] - (d["att"] * a["att"]).sum(-1, keepdims=True))
    parts = (d["preatt"] @ k * scale, d["preatt"].swapaxes(2, 3) @ q * scale, a["att"].swapaxes(2, 3) @ dy)
    d["qkv"] = np.concatenate([part.transpose(0, 2, 1, 3).reshape(B, T, C) for part in parts], -1)
    d["ln1"] = matmul_backward(g, "qkv", a["ln1"], d["qkv"], p["qkvw"])
    return np.asarray(d["residual2"] + layernorm_backward(a, g, "ln1", x, d["ln1"], p["ln1w"]))


def step(p: Tensors, inputs: NDArray[Any], targets: NDArray[Any]) -> Tensors:
    params_of_layers = [{name: p[f"{name}[{layer}]"] for name in BLOCK} for layer in range(L)]
    blocks: list[tuple[Tensors, Tensors, Tensors]] = [({}, {}, {}) for _ in range(L)]
    a, g, d = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    xs = [p["wte"][inputs] + p["wpe"][:T]]
    for layer in range(L):
        xs.append(block(params_of_layers[layer], blocks[layer][0], xs[-1]))
    a["encoded"], a["logits"] = xs[0], layernorm(a, "lnf", xs[L], p["lnfw"], p["lnfb"]) @ p["wte"].T
    exp = np.exp(a["logits"][..., :V] - a["logits"][..., :V].max(-1, keepdims=True))
    a["probs"] = np.pad(exp / exp.sum(-1, keepdims=True), ((0, 0), (0, 0), (0, Vp - V)))
    a["losses"] = -np.log(np.take_along_axis(a["probs"], targets[..., None], -1)[..., 0])
    d["losses"] = np.full((B, T), 1 / (B * T), np.float32)
    d["logits"] = (a["probs"] - np.eye(Vp, dtype=np.float32)[targets]) * d["losses"][..., None]
    d["lnf"] = d["logits"] @ p["wte"]
    dx = layernorm_backward(a, g, "lnf", xs[L], d["lnf"], p["lnfw"])
    for layer in reversed(range(L)):
        blocks[layer][2]["residual3"] = dx
        dx = block_backward(params_of_layers[layer], blocks[layer][0], xs[layer], *blocks[layer][1:])
    d["encoded"], g["wpe"] = dx, np.zeros((Tm, C), np.float32)
    g["wte"], g["wpe"][:T] = np.einsum("btv,btc->vc", d["logits"], a["lnf"]), dx.sum(0)
    np.add.at(g["wte"], inputs, dx)
    groups = {"activations": a, "grads": g, "activation_grads": d}
    for number, group in enumerate(groups.values()):
        for layer in range(L):
            group |= {f"{name}[{layer}]": array for name, array in blocks[layer][number].items()}
    return groups


def main() -> None:
    body = np.fromfile(folder / "model.bin", "<f4", offset=1024)
    parts = np.split(body, np.cumsum([int(np.prod(shape)) for shape in SHAPES.values()])[:-1])
    p: Tensors = {}
    for (name, shape), part in zip(SHAPES.items(), parts, strict=True):
        layers = part.reshape(shape)
        p |= {f"{name}[{layer}]": layers[layer] for layer in range(L)} if name in BLOCK else {name: layers}
    m, v = ({name: np.zeros_like(array) for name, array in p.items()} for _ in "mv")
    tokens = np.fromfile(folder / "tokens.bin", "<u2", offset=1024).astype(int).reshape(run["steps"], 2, B, T)
    rate, b1, b2, eps, decay = (
        np.float32(run[name]) for name in ("learning_rate", "beta1", "beta2", "eps", "weight_decay")
    )
    for number, (inputs, targets) in enumerate(tokens):
        groups = step(p, inputs, targets)
        for name, grad in groups["grads"].items():
            m[name] = b1 * m[name] + (1 - b1) * grad
            v[name] = b2 * v[name] + (1 - b2) * grad * grad
            mh, vh = m[name] / (1 - b1 ** (number + 1)), v[name] / (1 - b2 ** (number + 1))
            p[name] = p[name] - rate * (mh / (np.sqrt(vh) + eps) + decay * p[name])
        groups |= {"params": p, "m": m, "v": v, "loss": {"mean_loss": groups["activations"]["losses"].mean()}}
        arrays = {f"{group}/{name}": array for group, tensors in groups.items() for name, array in tensors.items()}
        np.savez(folder / f"step-{number}.npz", **arrays)


if __name__ == "__main__":
    main()
