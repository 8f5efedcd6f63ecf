"""The training states of a run: one that leads to a loss that isn't finite replaces none that doesn't."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from starpullm.data.loader import TokenLoader
from starpullm.files.header import file_errors
from starpullm.trainer import Trainer


class States:
    """Saves training states into a folder, if there is one, and keeps the newest.

    A state is good if the next loss, which is that of its parameters, is finite. Until then an older one is kept too.
    """

    def __init__(self, trainer: Trainer, folder: Path | None, keep: int, tokens: TokenLoader, data_id: int) -> None:
        """Claim the folder."""
        self._trainer, self._folder, self._tokens, self._data_id = trainer, folder, tokens, data_id
        self._keep = max(keep, 2)
        self._finite = True
        self._unknown: Path | None = None  # the newest, unless it is good
        if folder is not None:
            trainer.claim_directory(folder)

    def save(self, step: int) -> None:
        """Save the state after a step, the last that was submitted, if its own loss is finite."""
        if self._folder is not None and self._finite:
            self._unknown = self._folder / f"step-{step:012}"
            self._trainer.save_state(
                self._folder, batches=self._tokens.position, data_id=self._data_id, keep=self._keep
            )

    def know(self, loss: float | np.float32) -> None:
        """Learn the next loss."""
        self._finite = math.isfinite(loss)
        if self._finite:
            self._unknown = None

    def set_aside(self) -> Path | None:
        """Rename the newest state if it isn't known to be good, so that no run resumes from it; return its new name.

        Over ranks all ranks must call it.
        """
        if self._unknown is None:
            return None
        self._trainer.wait_saved()
        runtime, new = self._trainer.runtime, self._unknown.with_name(f"not-finite-{self._unknown.name}")
        if runtime.comm:
            runtime.comm.Barrier()
        if runtime.rank == 0:
            with file_errors(self._unknown, "renamed"):
                self._unknown.rename(new)
        return new
