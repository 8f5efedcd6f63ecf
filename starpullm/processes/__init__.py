"""Starting, watching and ending processes: children, jobs, ranks, locks, progress reports."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpi4py.MPI import Comm as Comm
else:
    Comm = Any
"""A communicator, in annotations: only ``ranks.world`` imports mpi4py, where there are several ranks."""
