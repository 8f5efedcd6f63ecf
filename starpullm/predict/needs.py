"""The memory that training a model takes, by formula, and what would take less of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from starpullm import tensors
from starpullm.files.model import ModelConfig
from starpullm.options import RECOMPUTATIONS, REDUCTIONS, WEIGHT_GRADIENTS
from starpullm.predict.plan import Plan, make_plan

GROUPS = (*tensors.GROUPS, "others")
"""Those of ``Trainer.tensor``, and tokens, losses and the like."""


class Need(NamedTuple):
    """What a trainer with these options holds on the rank that holds most: bytes by group, as in ``GROUPS``."""

    options: Mapping[str, Any]
    groups: Mapping[str, int]

    @property
    def together(self) -> int:
        """All bytes."""
        return sum(self.groups.values())

    def __str__(self) -> str:
        words = (f"--{name.replace('_', '-')} {value}" for name, value in self.options.items())
        return " ".join(words) or "no option"


def needs(config: ModelConfig, *, batch_size: int, seq_len: int, ranks: int = 1) -> Iterator[Need]:
    """Yield what each way to train takes that the batch and the ranks allow; batch size is that of each rank.

    `InvalidArgumentError` is raised for a number that isn't possible.
    """
    for options in _ways(batch_size, ranks):
        settings = {"batch_size": batch_size, "seq_len": seq_len, "sub_batches": 1, **options}
        yield Need(options, _groups(make_plan(config, ranks=ranks, reduction=REDUCTIONS[0], **settings)))


def _ways(batch_size: int, ranks: int) -> Iterator[dict[str, Any]]:
    reused = {"weight_gradients": WEIGHT_GRADIENTS[1]}
    yield {}
    yield from ({"recompute": value} for value in RECOMPUTATIONS[1:])
    if ranks == 1:  # several ranks can't reuse them
        yield reused
        yield {"recompute": RECOMPUTATIONS[-1], **reused}
    if batch_size > 1:
        yield {"sub_batches": batch_size, "activation_sets": 1}
        yield {"sub_batches": batch_size, "activation_sets": 1, "recompute": RECOMPUTATIONS[-1]}


def _groups(plan: Plan) -> dict[str, int]:
    fullest = int(plan.bytes_of_ranks().argmax())
    groups = dict.fromkeys(GROUPS, 0)
    for handle, here in zip(plan.trace.handles, plan.has_buffer(fullest).tolist(), strict=True):
        group = handle.name.partition("/")[0]
        groups[group if group in GROUPS else "others"] += here * handle.bytes
    return groups
