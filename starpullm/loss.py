"""The loss of a step that may still be running."""

from __future__ import annotations

import numpy as np

from starpullm.binding import prototypes, structs
from starpullm.processes.progress import report_phase


class Loss:
    """The mean loss of a submitted step, which is known when the step's tasks have run."""

    _handle = structs.Handle("loss")  # of one whose __init__ was interrupted

    def __init__(self, handle: structs.Handle, step: int | None = None) -> None:
        self._handle = handle
        self._step = step  # None: of no step
        self._value: np.float32 | None = None

    @property
    def ready(self) -> bool:
        """Whether the value is known, so that ``result`` doesn't wait."""
        return self._value is not None or bool(prototypes.call("loss_ready", self._handle))

    def result(self) -> np.float32:
        """Wait until the value is known and return it: the mean loss over the batch in nats per token, binary32.

        Raises
        ------
        RuntimeFailureError
            If a task had failed by then, of this step or an earlier one.
        """
        if self._value is None:
            if self._step is not None:
                report_phase(f"waiting for the loss of step {self._step}")
            self._value = prototypes.loss_value(self._handle)
            if self._step is not None:
                report_phase(f"after step {self._step}", self._step)
            self._release()
        return self._value

    def __float__(self) -> float:
        return float(self.result())

    def __repr__(self) -> str:
        return f"<Loss {self._value}>" if self._value is not None else "<Loss, not read yet>"

    def _release(self) -> None:
        if self._handle:
            prototypes.call("loss_destroy", self._handle.address)

    def __del__(self) -> None:
        self._release()
