"""The training states that a folder has to have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from starpullm.errors import FormatError
from starpullm.golden.plain import State
from starpullm.resume import training_state

Description = Mapping[str, object]
"""Settings of AdamW, the number of batches read, their size and length."""


class SavedStates:
    """What was saved into a folder; states are known by their number of updates."""

    def __init__(self) -> None:
        self._states: dict[int, State] = {}
        self._kept: list[list[int]] = [[]]
        """Those that are there as soon as the last one is complete, ascending: one of these lists."""
        self._kept_before: list[list[int]] = []
        """The same before the last one was saved."""
        self.last_two: list[int] = []
        """Those that were saved last; the first of two is complete."""
        self.described: Description | None = None
        """What the last one says of itself."""

    @property
    def newest(self) -> State:
        """The state that a run resumes from."""
        return self._states[self._kept[0][-1]]

    def save(self, state: State, keep: int, described: Description, *, over_ranks: bool) -> None:
        """Add a state, and leave as many as are kept.

        Over ranks one may save the same step again before another has saved it. Then what the first save had removed,
        once complete, may stay.
        """
        self._states[state.updates] = state
        self.described = described
        begun = self._kept
        if over_ranks and self.last_two[-1:] == [state.updates]:
            begun = begun + self._kept_before
        others = [[updates for updates in kept if updates != state.updates] for kept in begun]
        self._kept, self._kept_before = [[*other, state.updates][-keep:] for other in others], self._kept
        self.last_two = [*self.last_two[-1:], state.updates]

    def kept(self, complete: list[int]) -> list[int]:
        """Return the states that have to be there, where these are: the last one has been saved."""
        if complete in self._kept:
            self._kept = [complete]
        return self._kept[0]

    def after_a_kill(self, complete: Sequence[int]) -> SavedStates:
        """Return what a copy of the folder has, of which these states are complete."""
        left = SavedStates()
        left._states = dict(self._states)
        left._kept, left.last_two = [list(complete)], [complete[-1]]
        return left


def complete_steps(folder: Path) -> list[int]:
    """Return the updates of the complete states in a folder, ascending."""
    found = []
    for path in folder.glob("step-*"):
        try:
            found.append(training_state(path).step)
        except FormatError:
            continue
    return sorted(found)
