"""Statements about the library: what is compared of a refusal, and what counts as wrong; no library is needed."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from starpullm.checks.place import environment
from starpullm.checks.result import Outcome
from starpullm.checks.statements import Statements
from starpullm.errors import FileError, InvalidArgumentError, RuntimeFailureError, StarpullmError, StateError

from ..native.limits.processes import in_fork, limited_files
from ..native.limits.state_file import NUMBERS, StateFile
from .test_training_state import LAYERED, TENSORS, bytes_of, some_state

F32 = np.float32


def raising(error: StarpullmError) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


def outcome(state: Callable[[Statements], None]) -> Outcome:
    statements = Statements("limits")
    state(statements)
    result = statements.result()
    assert (result.compared, result.measured) == (1, len(statements.wrong))
    return result.outcome


@pytest.mark.parametrize(
    ("error", "holds"),
    [
        (FileError("a: open tmp-7.x: gone", 2), True),
        (FileError("a: open tmp-8: gone", 2), True),
        (FileError("a: open tmp-7.x: gone", 3), False),
        (FileError("a: open tmp-7.x: gone"), False),
        (FileError("a: open tmp 7: gone", 2), False),
        (FileError("a: open tmp-7.x: gone.", 2), False),
        (FileError("A: open tmp-7.x: gone", 2), False),
        (StateError("a: open tmp-7.x: gone"), False),
        (None, False),
    ],
)
def test_a_refusal_is_compared_as_a_whole(error: StarpullmError | None, holds: bool) -> None:
    call = raising(error) if error else print
    found = outcome(lambda s: s.refused("opening", FileError, "a: open *: gone", call, 2))
    assert (found is Outcome.PASSED) is holds


def test_dots_in_a_sentence_are_dots() -> None:
    call = raising(StateError("1x4"))
    assert outcome(lambda s: s.refused("x", StateError, "1.4", call)) is Outcome.FAILED


@pytest.mark.parametrize(("found", "holds"), [(1, True), (2, False), (True, False), (1.0, False), ("1", False)])
def test_equal_values_are_of_one_type(found: object, holds: bool) -> None:
    assert (outcome(lambda s: s.equal("x", 1, found)) is Outcome.PASSED) is holds


def test_bits_are_compared() -> None:
    zero = np.zeros(3, F32)
    assert outcome(lambda s: s.same_bits("x", zero, zero.copy())) is Outcome.PASSED
    assert outcome(lambda s: s.same_bits("x", zero, -zero)) is Outcome.FAILED


def test_what_is_allowed_may_not_raise() -> None:
    assert outcome(lambda s: s.allowed("x", lambda: 3)) is Outcome.PASSED
    assert outcome(lambda s: s.allowed("x", raising(StateError("no")))) is Outcome.FAILED


def test_each_wrong_statement_is_shown() -> None:
    statements = Statements("limits")
    statements.equal("first", 1, 1)
    statements.equal("second", 1, 2)
    statements.refused("third", StateError, "no", raising(StateError("yes")))
    assert statements.result().lines() == [
        "limits: failed: a statement doesn't hold (2 in 3 statements): second: expected 1, found 2",
        "  third: expected StateError: no, found StateError: yes",
    ]


def test_no_statement_is_no_verdict() -> None:
    with pytest.raises(InvalidArgumentError, match="nothing was compared"):
        Statements("limits").result()


# ---- The process ----


def test_a_fork_has_the_variables_and_this_process_has_not() -> None:
    assert in_fork(lambda: [os.environ["STARPULLM_X"], os.getpid() != os.getppid()], STARPULLM_X="7") == ["7", True]
    assert "STARPULLM_X" not in os.environ


def test_a_fork_without_a_result_is_an_error() -> None:
    with pytest.raises(RuntimeFailureError, match="ended with 1, expected a result"):
        in_fork(lambda: 1 // 0)
    with pytest.raises(RuntimeFailureError, match="ended with 3, expected a result"):
        in_fork(lambda: os._exit(3))


def test_an_environment_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STARPULLM_X", "1")
    with environment(STARPULLM_X=None, STARPULLM_Y="2"):
        assert os.environ.get("STARPULLM_X") is None
        assert os.environ["STARPULLM_Y"] == "2"
    assert os.environ["STARPULLM_X"] == "1"
    assert "STARPULLM_Y" not in os.environ


def test_a_limit_on_files_ends(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with limited_files(3), path.open("wb", buffering=0) as file:
        assert file.write(b"1234") == 3
        with pytest.raises(OSError, match="large"):
            file.write(b"4")
    assert path.write_bytes(b"1234") == 4


# ---- Files of training states ----


def test_a_state_file_has_the_numbers_and_values_of_the_format() -> None:
    state = some_state()
    file = StateFile(bytes_of(state, 1, 3))
    assert (file.number("rank"), file.number("number of ranks"), file.number("step")) == (1, 3, state.step)
    assert (file.number("run"), file.number("seed"), file.number("matmuls by BLAS")) == (state.run, state.seed, 1)
    assert file.number("eps") == float(F32(state.eps))
    assert file.values(0, 2) == state.v["wpe"].astype("<f4").tobytes()
    assert file.with_numbers({})._content == file._content


def test_a_state_file_has_the_table_and_checksums_of_the_format(tmp_path: Path) -> None:
    state, path = some_state(), tmp_path / "file"
    content = bytes_of(state, 0, 2)
    StateFile(content).write(path)
    file = StateFile.read(path)
    assert (path.read_bytes(), file.size) == (content, len(content))
    for index in (0, 1, 2):
        name, layer = TENSORS[2 * index]
        parameter, found_layer, elements, positions = file.entry(index)
        values = state.m[name][layer] if name in LAYERED else state.m[name]
        assert (list(state.m)[parameter], found_layer, elements) == (name, layer, values.size)
        assert content[positions[1] : positions[1] + 4 * elements] == values.tobytes() == file.values(index, 1)
        assert file.checksum(index, 1) == zlib.crc32(values.tobytes())
    assert (file.word(0), file.word(48)) == (20261121, state.step)


def test_damages_of_a_state_file(tmp_path: Path) -> None:
    content = bytes_of(some_state(), 0, 1)
    file = StateFile(content)
    damaged = file.with_byte(5000)._content
    assert [n for n, (left, right) in enumerate(zip(damaged, content, strict=True)) if left != right] == [5000]
    other = file.with_entry(2, 7, 9)
    assert (other.entry(2)[:2], other.entry(2)[2:]) == ((7, 9), file.entry(2)[2:])
    assert [other.entry(index) for index in (1, 3)] == [file.entry(index) for index in (1, 3)]
    fingerprint = other._content[-4096 + 32 : -4096 + 40]
    assert fingerprint != file._content[-4096 + 32 : -4096 + 40]
    assert other.with_entry(2, *file.entry(2)[:2])._content == file._content
    for size in (100, len(content), len(content) + 3):
        file.write(tmp_path / "file", size)
        assert (tmp_path / "file").read_bytes() == content[:size].ljust(size, b"\0")


def test_a_state_file_of_no_tensor_is_a_header_and_an_end() -> None:
    state = some_state()
    empty = StateFile(bytes_of(state, 0, 1)).without_tensors({"rank": 1, "number of ranks": 2})
    numbers = [empty.number(name) for name in ("number of tensors", "rank", "number of ranks", "step", "channels")]
    assert (empty.size, numbers) == (2 * 4096, [0, 1, 2, state.step, 16])
    magic, version, step, run, rank, ranks, _, size = struct.unpack_from("<iiqQiiQq", empty._content, 4096)
    assert (magic, version, step, run, rank, ranks, size) == (20261121, 2, state.step, state.run, 1, 2, 8192)
    assert not any(empty._content[1024:4096])


@pytest.mark.parametrize("name", [name for name in NUMBERS if name != "number of tensors"])
def test_a_number_that_is_changed_back_leaves_the_file_as_it_was(name: str) -> None:
    good = StateFile(bytes_of(some_state(), 0, 1))
    other = 3 if good.number(name) != 3 else 4
    changed = good.with_numbers({name: other})
    assert changed.number(name) == other
    assert changed._content != good._content
    assert changed.with_numbers({name: good.number(name)})._content == good._content


def test_the_end_goes_with_a_changed_number() -> None:
    state = some_state()
    changed = StateFile(bytes_of(state, 0, 1)).with_numbers({"step": 9, "seed": -1})
    assert changed._content == bytes_of(replace(state, step=9, seed=-1), 0, 1)
