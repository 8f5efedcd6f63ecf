"""The training states that a folder has to have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from starpullm.errors import FormatError
from starpullm.golden.plain import State
from starpullm.resume import training_state


class SavedStates:
    """What was saved into a folder; states are known by their number of updates."""

    def __init__(self) -> None:
        self._states: dict[int, State] = {}
        self.kept: list[int] = []
        """Those that are there as soon as the last one is complete; ascending."""
        self.last_two: list[int] = []
        """Those that were saved last; the first of two is complete."""

    @property
    def newest(self) -> State:
        """The state that a run resumes from."""
        return self._states[self.kept[-1]]

    def save(self, state: State, keep: int) -> None:
        """Add a state, and leave as many as are kept."""
        self._states[state.updates] = state
        older = [updates for updates in self.kept if updates != state.updates]
        self.kept = [*older, state.updates][-keep:]
        self.last_two = [*self.last_two[-1:], state.updates]

    def after_a_kill(self, complete: Sequence[int]) -> SavedStates:
        """Return what a copy of the folder has, of which these states are complete."""
        left = SavedStates()
        left._states = dict(self._states)
        left.kept, left.last_two = list(complete), [complete[-1]]
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
