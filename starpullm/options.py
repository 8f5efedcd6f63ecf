"""A trainer's options: the words that some can be, and what has to be equal on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starpullm.errors import InvalidArgumentError
from starpullm.files.checkpoint import checkpoint_config
from starpullm.files.header import StrPath
from starpullm.resume import training_state

REDUCTIONS = ("ordered", "tree", "redux")
RECOMPUTATIONS = ("none", "attention", "block")
WEIGHT_GRADIENTS = ("kept", "reused")


def place_of(option: str, word: str, words: Sequence[str]) -> int:
    """Return the number by which the library knows an option's word; others are an `InvalidArgumentError`."""
    if word not in words:
        raise InvalidArgumentError(f'{option}: found "{word}", expected one of {", ".join(words)}')
    return words.index(word)


def options_of_all_ranks(options: Any, checkpoint: StrPath | None, resume: StrPath | None) -> dict[str, object]:
    """Return what must be equal on all ranks: options, and the contents of files, as each machine may have a copy."""
    own = ("checkpoint", "resume", "memory_limit")
    same = {name: getattr(options, name) for name, *_ in options._fields_ if name not in own}
    if checkpoint is not None:
        same["checkpoint's model"] = checkpoint_config(checkpoint)
    if resume is not None:
        state = training_state(resume)
        same["training state"] = (state.step, state.batches, state.data_id)
    return same
