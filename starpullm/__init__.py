"""starpullm trains GPT-2 as a StarPU task graph and proves that its bits are those of llm.c.

Importing it doesn't open the native library. Its classes are imported when they are first used, because every run of
pytest imports this package for the plugin. So is the version read.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starpullm.loss import Loss
    from starpullm.runtime import Runtime
    from starpullm.trainer import Trainer

    __version__: str

__all__ = ["Loss", "Runtime", "Trainer", "__version__"]

_HOMES = {"Loss": "starpullm.loss", "Runtime": "starpullm.runtime", "Trainer": "starpullm.trainer"}


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("starpullm")
    except metadata.PackageNotFoundError:
        return "0+unknown"


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
