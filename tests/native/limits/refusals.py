"""What a refusal must be: an error of one kind that names the argument, in one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from starpullm.errors import StarpullmError


@contextmanager
def refused(kind: type[StarpullmError], start: str, *parts: str, errno: int | None = None) -> Iterator[None]:
    """Fail unless the block raises an error of exactly this kind, whose text has this start and these parts."""
    with pytest.raises(StarpullmError) as caught:
        yield
    text = str(caught.value)
    assert (caught.type, text[: len(start)]) == (kind, start), text
    assert [part for part in parts if part not in text] == [], text
    assert "\n" not in text
    assert errno is None or getattr(caught.value, "errno", None) == errno


def words(options: Mapping[str, object]) -> str:
    """Return options as a part of a test's name."""
    return ", ".join(f"{name} {value}" for name, value in options.items())
