"""The limit: the most operations per second that the cores do in this arithmetic, and the operations that a step needs.

Size letters: B batch, T sequence length, C channels, L layers, Vp padded vocabulary.
"""

from __future__ import annotations

from starpullm.files.model import ModelConfig
from starpullm.machine import peak_gflops
from starpullm.options import ARITHMETICS
from starpullm.processes import Comm
from starpullm.processes.progress import report_phase
from starpullm.speed.workload import all_values

_PEAK_SECONDS = 0.1


def matmul_flops(model: ModelConfig, batch_size: int, seq_len: int) -> int:
    """Return the number of multiplications and additions in the matrix products of a training step.

    A linear layer from C to OC channels has 2·B·T·C·OC in its forward product and as many in each of its two backward
    products. The four linear layers of a block have 12·C² weights together (3C² + C² + 4C² + 4C²), the logits Vp·C.
    Attention has two products forward (queries with keys, weights with values) and four backward; each of them has 2·C
    per pair of a position and an earlier or the same position, T·(T+1)/2 pairs in a sequence. In all
    6·B·T·(12·L·C² + Vp·C) + 6·B·L·C·T·(T+1), with B of all ranks together.
    """
    C, L = model.channels, model.num_layers
    linear = 6 * batch_size * seq_len * (12 * L * C * C + model.padded_vocab_size * C)
    attention = 6 * batch_size * L * C * seq_len * (seq_len + 1)
    return linear + attention


def measure_peaks(cores: int, comm: Comm | None, repetitions: int) -> dict[str, list[float]]:
    """Return the peak of each arithmetic, of all ranks together, in 10^9 operations per second, of each repetition.

    The measurements alternate; each rank uses `cores` cores.
    """
    report_phase("measuring what the machine can do")
    peaks: dict[str, list[float]] = {arithmetic: [] for arithmetic in ARITHMETICS}
    for _ in range(repetitions):
        for arithmetic, measured in peaks.items():
            if comm:
                comm.Barrier()
            own = peak_gflops(cores, fused=arithmetic == "fused", seconds=_PEAK_SECONDS)
            measured.append(sum(all_values(comm, own)))
    return peaks
