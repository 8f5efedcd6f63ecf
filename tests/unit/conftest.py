"""How hypothesis runs here: without a time limit per example, since files are synchronised to disk.

pytest loads it for this directory's tests.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("unit", deadline=None, database=None)
settings.load_profile("unit")
