"""Every seeded defect is caught by the check that its patch names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from difflib import unified_diff
from pathlib import Path

import pytest

from .laboratory import (
    CHECKS,
    FOUND,
    NOTHING,
    SECONDS,
    TIME_LIMIT_CATCH,
    Catch,
    Laboratory,
    has_device,
    hunt,
    hunt_in_package,
)
from .mutants import Builder, Change
from .patches import SHIPPED, Patch, PatchError, read_patch

pytestmark = [pytest.mark.mutation, pytest.mark.timeout(400)]


def test_defect_is_caught(
    patch: Patch,
    builder: Builder,
    build: Callable[[Change], Path],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    if patch.caught_by == "devices" and not has_device():
        pytest.skip("there is no OpenCL device that StarPU can use")
    if patch.is_of_package:
        found = hunt_in_package(patch, builder, tmp_path)
    else:
        with Laboratory(build(patch), tmp_path, without_defect=builder.library) as laboratory:
            found = hunt(laboratory, patch.caught_by)
    caught = "caught" if found.by_expected else "NOT CAUGHT"
    first = found.first.check if found.first else NOTHING
    record_property(FOUND, f"{patch.name}: {caught} by {patch.caught_by}, first by {first}, {found.seconds:.1f} s")
    record_property(SECONDS, found.seconds)
    if patch.caught_by == NOTHING:
        assert found.first is None, f"{patch.name}: {patch.defect}; expected that nothing finds it, found {found.first}"
        return
    assert found.first is not None, f"{patch.name}: {patch.defect}; no check caught it"
    assert found.by_expected, (
        f"{patch.name}: {patch.defect}; expected {patch.caught_by!r} to catch it, "
        f"which found {found.expected or 'nothing'}; first caught by {found.first}"
    )


def test_a_patch_that_changes_no_byte_is_refused(build: Callable[[Change], Path], builder: Builder) -> None:
    name = "native/src/status.c"
    before = (builder.sources / name).read_text().splitlines(keepends=True)
    after = ["/* More words. */\n", *before]
    diff = "".join(unified_diff(before, after, f"a/{name}", f"b/{name}"))
    same = replace(read_patch(SHIPPED / "loss_leak.patch"), diff=diff)
    with pytest.raises(PatchError, match="loss_leak: the library with it is the same"):
        build(same)


@pytest.mark.parametrize(
    ("expected", "finds", "is_caught"),
    [
        ("parity", [Catch("parity", "bits differ")], True),
        ("parity", [Catch(TIME_LIMIT_CATCH, "hung")], False),
        ("parity", [Catch(TIME_LIMIT_CATCH, "hung"), Catch("parity", "bits differ")], False),
        ("parity", [], False),
        (TIME_LIMIT_CATCH, [Catch(TIME_LIMIT_CATCH, "hung")], True),
        (TIME_LIMIT_CATCH, [Catch("parity", "bits differ")], False),
    ],
)
def test_a_hang_is_credited_to_the_time_limit_only(
    expected: str, finds: list[Catch], is_caught: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in CHECKS:
        monkeypatch.setitem(CHECKS, name, lambda laboratory, name: iter(finds if name == "parity" else []))
    with Laboratory(Path("none.so"), tmp_path) as laboratory:
        assert hunt(laboratory, expected).by_expected == is_caught
