"""One step compared with llm.c's debug state, with the tolerances of llm.c's own test; bits aren't compared.

The tolerances, the tensors that they apply to, and the losses of the starter pack are those of llm.c's ``test_gpt2.c``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.placement import PlacedResult, own_sequences, placement_fields
from starpullm.checks.result import passed_if
from starpullm.files.debug_state import DebugState
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer

LOGITS_TOLERANCE: Final = 1e-2
LOSS_TOLERANCE: Final = 1e-2
GRADIENT_TOLERANCE: Final = 2e-2
"""For absolute differences."""

STARTER_PACK_LOSSES: Final = (
    *(5.270007133483887, 4.059706687927246, 3.3751230239868164, 2.8007826805114746, 2.315382242202759),
    *(1.8490285873413086, 1.3946564197540283, 0.9991465210914612, 0.6240804195404053, 0.37651097774505615),
)
"""Mean losses of ten steps on the batch of ``gpt2_124M_debug_state.bin``."""

# Settings of AdamW in llm.c's test.
_LEARNING_RATE: Final = 1e-4
_WEIGHT_DECAY: Final = 0.01


@dataclass(frozen=True, slots=True)
class Nearness:
    """How far a tensor is from its expected values: the farthest element, and how many are outside the tolerance."""

    tensor: str
    elements: int
    outside: int
    position: tuple[int, ...]
    expected: float
    found: float
    difference: float
    tolerance: float

    def __str__(self) -> str:
        at = f"{list(self.position)}: " if self.position else ""
        return (
            f"{self.tensor}: {self.outside} of {self.elements} outside {self.tolerance:g}; the farthest, {at}"
            f"expected {self.expected:.9g}, found {self.found:.9g}, {self.difference:.3g} off"
        )


@dataclass(frozen=True, kw_only=True)
class DebugStateResult(PlacedResult):
    """How near a run is to a debug state; ``measured`` counts the tensors with elements outside llm.c's tolerances.

    ``tensors`` has logits, loss and all gradients, then the losses of further steps if they are known.
    """

    unit: str = "tensors"
    tensors: tuple[Nearness, ...]

    def detail_lines(self) -> Iterator[str]:
        """Yield the tensors with elements outside the tolerances."""
        yield from (str(tensor) for tensor in self.tensors if tensor.outside)


def expected_losses(state: DebugState) -> Sequence[float]:
    """Return the mean losses of ten steps if the state is that of the starter pack, otherwise its own loss only."""
    loss = np.float32(state.loss)
    return STARTER_PACK_LOSSES if loss == np.float32(STARTER_PACK_LOSSES[0]) else (float(loss),)


def check_debug_state(
    state: DebugState,
    runtime: Runtime,
    checkpoint: Path,
    *,
    sub_batches: int = 1,
    reduction: str = "ordered",
    losses: Sequence[float] | None = None,
    progress: Callable[[], None] | None = None,
) -> DebugStateResult:
    """Train on a debug state's batch and compare logits, loss and gradients of the first step with the state.

    As in llm.c's test, the padding of the logits and of wte's gradient isn't compared. A NaN is outside any tolerance.
    Over ranks all ranks must call this, and all get the same result. ``progress`` is called after each step.

    Parameters
    ----------
    checkpoint
        The model that the state belongs to.
    sub_batches, reduction
        As for ``Trainer``; the number of sub-batches is that of one rank.
    losses
        Expected mean losses, one for each step; by default ``expected_losses``.

    Raises
    ------
    InvalidArgumentError
        If the ranks, or a rank's sub-batches, don't divide the state's batch.
    """
    whole_batch, seq_len = state.inputs.shape
    own = own_sequences(runtime, whole_batch, "a")
    tensors: list[Nearness] = []
    with Trainer(
        runtime,
        checkpoint,
        batch_size=own.stop - own.start,
        seq_len=seq_len,
        sub_batches=sub_batches,
        reduction=reduction,
        learning_rate=_LEARNING_RATE,
        weight_decay=_WEIGHT_DECAY,
    ) as trainer:
        for number, expected in enumerate(expected_losses(state) if losses is None else losses):
            loss = np.asarray(trainer.step(state.inputs[own], state.targets[own]))
            if number == 0:
                tensors += _first_step(trainer, state, loss)
            else:
                tensors.append(_nearness(f"loss of step {number}", np.asarray(expected), loss, LOSS_TOLERANCE))
            if progress:
                progress()
    outside = sum(bool(tensor.outside) for tensor in tensors)
    within = f"{len(tensors) - outside} of {len(tensors)}"
    return DebugStateResult(
        name="debug state",
        outcome=passed_if(not outside),
        finding=f"{within} tensors are within llm.c's tolerances; bits weren't compared",
        compared=len(tensors),
        measured=outside,
        **placement_fields(runtime, sub_batches, reduction),
        tensors=tuple(tensors),
    )


def _first_step(trainer: Trainer, state: DebugState, loss: NDArray[np.float32]) -> Iterator[Nearness]:
    vocab_size = state.config.vocab_size
    logits = trainer.tensor("activations", "logits")[..., :vocab_size]
    yield _nearness("logits", state.logits, logits, LOGITS_TOLERANCE)
    yield _nearness("loss", np.asarray(state.loss), loss, LOSS_TOLERANCE)
    for name, expected in state.gradients.items():
        found = trainer.tensor("grads", name)
        rows = slice(vocab_size) if name == "wte" else slice(None)
        yield _nearness(f"grads/{name}", expected[rows], found[rows], GRADIENT_TOLERANCE)


def _nearness(tensor: str, expected: NDArray[np.floating], found: NDArray[np.floating], tolerance: float) -> Nearness:
    difference = np.abs(np.asarray(found, np.float64) - np.asarray(expected, np.float64))
    difference = np.where(np.isnan(difference), np.inf, difference)
    farthest = int(np.argmax(difference))
    return Nearness(
        tensor=tensor,
        elements=difference.size,
        outside=int(np.count_nonzero(difference > tolerance)),
        position=tuple(int(i) for i in np.unravel_index(farthest, difference.shape)),
        expected=float(expected.reshape(-1)[farthest]),
        found=float(found.reshape(-1)[farthest]),
        difference=float(difference.reshape(-1)[farthest]),
        tolerance=tolerance,
    )
