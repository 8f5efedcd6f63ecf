"""What goes into a trainer and comes out: token ids, and tensors by the groups and names of the native library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from starpullm.binding import prototypes, structs
from starpullm.errors import InvalidArgumentError, TokenRangeError
from starpullm.options import index_of_choice

if TYPE_CHECKING:
    from starpullm.trainer import Trainer

GROUPS = ("params", "grads", "m", "v", "activations", "activation_grads")


class Tensor(NamedTuple):
    """A row of the native library's tensor table; ``shape`` is that of one layer.

    Of an activation the last ``sub_batches_kept`` sub-batches of each pipeline can be read.
    """

    number: int
    layered: bool
    instances: int
    shape: tuple[int, ...]
    sub_batches_kept: int


class TensorTable:
    """The tensors of a session, by group and name."""

    def __init__(self, session: structs.Handle) -> None:
        self._groups: dict[str, dict[str, Tensor]] = {}
        for number, group in enumerate(GROUPS):
            tensors = self._groups[group] = {}
            for index in range(prototypes.call("tensor_count", number)):
                (info,) = prototypes.results("session_tensor_info", session, number, index)
                shape = tuple(info.dims[: info.num_dims])
                tensors[prototypes.text(info.name)] = Tensor(
                    index, bool(info.layered), int(info.instances), shape, int(info.sub_batches_kept)
                )

    def of_group(self, group: str) -> dict[str, Tensor]:
        """Return a group's tensors by name, in the library's order."""
        index_of_choice("group", group, GROUPS)
        return self._groups[group]

    def named(self, group: str, name: str) -> Tensor:
        """Return one tensor."""
        tensors = self.of_group(group)
        if name not in tensors:
            raise InvalidArgumentError(f'{group}: found tensor "{name}", expected one of {", ".join(tensors)}')
        return tensors[name]


class TensorGroup(Mapping[str, NDArray[np.float32]]):
    """The tensors of one group of a trainer by name; each access waits for the tensor and returns a copy.

    Shapes, errors and the rule over ranks are those of ``Trainer.tensor``; an unknown name raises KeyError.
    """

    def __init__(self, owner: Trainer, group: str) -> None:
        self._owner = owner
        self._group = group

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        if name not in self:
            raise KeyError(f'{self._group}: found tensor "{name}", expected one of {", ".join(self)}')
        return self._owner.tensor(self._group, name)

    def __contains__(self, name: object) -> bool:
        return name in self._owner.tensor_names(self._group)

    def __iter__(self) -> Iterator[str]:
        return iter(self._owner.tensor_names(self._group))

    def __len__(self) -> int:
        return len(self._owner.tensor_names(self._group))

    def __repr__(self) -> str:
        return f"<{self._group}: {', '.join(self)}>"


def token_ids(what: str, tokens: ArrayLike, shape: tuple[int, int], vocab_size: int) -> NDArray[np.int32]:
    """Return token ids (batch, sequence) as C takes them, which checks them but sees only their lower 32 bits."""
    try:
        array = np.asarray(tokens)
    except ValueError as error:
        raise InvalidArgumentError(f"{what}: expected integers {shape} (batch, sequence): {error}") from error
    if array.shape != shape or array.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"{what}: found {array.dtype} {array.shape}, expected integers {shape} (batch, sequence)"
        )
    limits = np.iinfo(np.int32)
    outside = (array < limits.min) | (array > limits.max)
    if outside.any():
        b, t = np.argwhere(outside)[0]
        raise TokenRangeError(f"{what}[{b}, {t}]: token {array[b, t]} is out of range, expected 0 to {vocab_size - 1}")
    return np.ascontiguousarray(array, np.int32)


def chosen_sequences(sequences: slice, group: str, tensor: Tensor) -> tuple[int, int]:
    """Return the first of the sequences of an activation, and how many they are."""
    first, end, step = sequences.indices(tensor.shape[0])
    if not group.startswith("activation") or step != 1 or first >= end:
        raise InvalidArgumentError(f"sequences: found {sequences} of {group}, expected some of an activation")
    return first, end - first
