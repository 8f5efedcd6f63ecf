"""Tests of the exceptions: what they derive from and what they carry."""

from __future__ import annotations

import errno
import pickle

import pytest

from starpullm import errors

BUILT_IN = {
    "FormatError": ValueError,
    "InvalidArgumentError": ValueError,
    "TokenRangeError": ValueError,
    "StateError": RuntimeError,
    "FileError": OSError,
    "LibraryNotFoundError": OSError,
    "MissingDependencyError": ImportError,
    "NotFiniteError": ArithmeticError,
    "OutOfMemoryError": MemoryError,
    "RuntimeFailureError": RuntimeError,
}


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_is_ours_and_a_built_in(name: str) -> None:
    """Each can be caught as StarpullmError and as the built-in of its kind, and its text is the sentence."""
    kind: type[Exception] = getattr(errors, name)
    assert issubclass(kind, errors.StarpullmError)
    assert issubclass(kind, BUILT_IN[name])
    assert str(kind("one sentence")) == "one sentence"
    assert str(pickle.loads(pickle.dumps(kind("one sentence")))) == "one sentence"


def test_all_are_exported() -> None:
    """`__all__` has every exception of the module."""
    assert set(errors.__all__) == {*BUILT_IN, "StarpullmError"}


def test_file_error_carries_number_and_name() -> None:
    """A FileError's text is the sentence alone; number and name survive pickling."""
    error = errors.FileError("model.bin: can't be read: No such file", errno.ENOENT, "model.bin")
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert str(each) == "model.bin: can't be read: No such file"
        assert each.errno == errno.ENOENT
        assert each.filename == "model.bin"
    assert errors.FileError("unknown").errno is None
