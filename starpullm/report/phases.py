"""The parts of an iteration that pictures tell apart, with colours that colour-blind people tell apart too."""

from __future__ import annotations

PHASES = {"forward": "#3b97d3", "backward": "#e08a1e", "update": "#1aa179", "other": "#b87bb0"}
"""Each phase's colour; all of them can carry black text, and are seen on a light and on a dark page."""

_UPDATES = ("adamw_update",)
_LOSSES = ("crossentropy_forward", "mean_loss")


def phase_of(operation: str) -> str:
    """Return the phase that an operation belongs to, by its name."""
    if operation.endswith("_forward") or operation in _LOSSES:
        return "forward"
    if "backward" in operation or operation.startswith("gradient"):
        return "backward"
    return "update" if operation in _UPDATES else "other"
