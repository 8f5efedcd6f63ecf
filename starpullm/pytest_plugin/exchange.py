"""How the ranks of one run of pytest tell each other what they have, without waiting inside MPI."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

_PAUSE_SECONDS = 0.02


class MissingError(Exception):
    """Some ranks haven't arrived in time."""

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__(ranks_text(ranks))
        self.ranks = ranks


class ElsewhereError(Exception):
    """A rank is at another place of the run, because it was interrupted or a plugin has failed there."""


class Exchange:
    """Gives every rank's value to all others, so that signals and time limits work while a rank waits."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._over = False

    def __call__(self, place: str, value: Any, seconds: float | None = None) -> dict[int, Any]:
        """Return the values by rank; after ranks have been at different places, only the own value.

        Raises
        ------
        MissingError
            If a rank hasn't arrived after so many seconds.
        ElsewhereError
            If a rank has arrived at another place.
        """
        rank, size = self._comm.Get_rank(), self._comm.Get_size()
        if self._over:
            return {rank: value}
        others = [other for other in range(size) if other != rank]
        requests = [self._comm.isend((place, value), other) for other in others]
        deadline = None if seconds is None else time.monotonic() + seconds
        received: dict[int, tuple[str, Any]] = {rank: (place, value)}
        while missing := [other for other in others if other not in received]:
            for other in missing:
                message = self._comm.improbe(other)
                if message is not None:
                    received[other] = message.recv()
            if len(received) == size:
                break
            if deadline is not None and time.monotonic() > deadline:
                raise MissingError(missing)
            time.sleep(_PAUSE_SECONDS)
        for request in requests:
            request.wait()
        places = {other: where for other, (where, _) in sorted(received.items())}
        if len(set(places.values())) > 1:
            self._over = True
            texts = (f"rank {other}: {where}" for other, where in places.items())
            raise ElsewhereError(f"the ranks aren't at the same place of the run: {'; '.join(texts)}")
        return {other: received[other][1] for other in sorted(received)}


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ranks as words: ``rank 1``, ``ranks 1 and 2``."""
    from starpullm.processes.ranks import rank_list

    return rank_list(ranks)
