"""starpullm trains GPT-2 as a StarPU task graph and proves that its bits are those of llm.c.

Users start here; importing it never opens the native library.
"""

from __future__ import annotations

from importlib import metadata

from starpullm.runtime import Runtime
from starpullm.trainer import Loss, Trainer

__all__ = ["Loss", "Runtime", "Trainer", "__version__"]

try:
    __version__ = metadata.version("starpullm")
except metadata.PackageNotFoundError:
    __version__ = "0+unknown"
