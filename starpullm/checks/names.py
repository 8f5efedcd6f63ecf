"""What findings say of dependencies: the tasks, the kind, and the handle that is the reason."""

from __future__ import annotations

from collections.abc import Sequence

from starpullm.checks.dependencies.graph import Edge
from starpullm.trace import Trace


def edge_text(trace: Trace, edge: Edge) -> str:
    """Return a task, a later one that has to wait for it, and why."""
    return f"{trace[edge.before]} → {trace[edge.after]}: {edge.kind.value} of {trace.handles[edge.handle].name}"


def path_text(trace: Trace, path: Sequence[Edge]) -> str:
    """Return a path's tasks, with the handles between them."""
    steps = (f" → [{trace.handles[edge.handle].name}] {trace[edge.after]}" for edge in path)
    return f"{trace[path[0].before]}{''.join(steps)}"
