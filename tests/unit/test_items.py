"""What the suite runs of the registered checks, and what it says that it leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from starpullm.checks.cases import Case
from starpullm.checks.check import Arrays, all_checks
from starpullm.checks.dependencies.observed_order import ObservedOrder
from starpullm.checks.left_out import LeftOut
from starpullm.checks.parity import Parity
from starpullm.checks.result import Finding, Outcome, Result
from starpullm.checks.same_bits import BitStability
from starpullm.checks.suite_items import Item, items
from starpullm.checks.threads import Threads
from starpullm.options import RuntimeConfiguration


class Chosen:
    """Options that choose tiny with one and two sub-batches, on given partitions."""

    seed = 7
    records: Sequence[str] = ("tiny",)
    parity_records: Sequence[str] = ("single",)
    reductions: Sequence[str] = ("ordered", "tree", "redux")
    arithmetics: Sequence[str] = ("strict",)
    devices: int | str = 1
    llmc_library: Path | None = None

    def __init__(self, *partitions: str) -> None:
        self.partitions = partitions

    def sub_batches(self, record: str, ranks: int = 1) -> list[int]:
        return [1, 2] if ranks == 1 else [1]

    def configurations(self, ranks: int = 1) -> list[RuntimeConfiguration]:
        return [RuntimeConfiguration(partition, "lws", ranks) for partition in self.partitions]

    @property
    def perturbing_configurations(self) -> list[RuntimeConfiguration]:
        return [RuntimeConfiguration("2x1", scheduler) for scheduler in ("eager", "prio")]


def of(found: Sequence[Item | LeftOut], check: str) -> list[str]:
    return [str(item) for item in found if isinstance(item, Item) and item.check.name == check]


def left_out(found: Sequence[Item | LeftOut]) -> dict[str, str]:
    return {entry.what: entry.reason for entry in found if isinstance(entry, LeftOut)}


def test_cases_follow_from_what_a_check_needs() -> None:
    """Reductions differ with two sub-batches only; a check on one worker has one placement; one case has tiles."""
    found = list(items(Chosen("1x1", "2x1"), 1))
    ids = [str(item) for item in found if isinstance(item, Item)]
    assert len(set(ids)) == len(ids)
    first = ["parity-tiny-1-ordered-1x1-lws", "parity-tiny-1-ordered-2x1-lws", "parity-tiny-2-ordered-1x1-lws"]
    assert of(found, "parity")[:3] == first
    assert len(of(found, "parity")) == 2 * 3 * 2  # also of the record that only parity is checked with
    cases = ("1-ordered", "2-ordered", "2-tree", "2-ordered-tiles3")
    assert of(found, "accesses") == [f"accesses-tiny-{case}-1x1-lws" for case in cases]
    assert of(found, "bit stability") == ["bit_stability-tiny-1_2-ordered", "bit_stability-tiny-2-tree"]
    assert of(found, "perturbation")[:2] == [
        f"perturbation-tiny-2-ordered-delays7-2x1-{scheduler}" for scheduler in ("eager", "prio")
    ]
    assert left_out(found)["parity with llmc"].startswith("there is no llm.c")


def test_cases_of_shared_memory_have_a_record_with_a_third_block() -> None:
    """Fewer sets than sub-batches, and reused gradients with one sub-batch on one rank."""
    chosen = Chosen("1x1")
    chosen.records = ("tiny", "odd")
    cases = ("2-ordered-attention", "2-ordered-sets2-block", "1-ordered-block-reused")
    for check in ("parity", "observed order", "runtime graph", "accesses", "poison"):
        assert of(list(items(chosen, 1)), check)[-3:] == [
            f"{check.replace(' ', '_')}-odd-{case}-1x1-lws" for case in cases
        ]
    assert not any("reused" in str(item) for item in items(chosen, 2))


def test_the_first_arithmetic_has_all_cases_of_parity_and_others_two_records() -> None:
    chosen = Chosen("1x1")
    chosen.records, chosen.arithmetics = ("tiny", "odd", "small"), ("strict", "fused")
    fused = [name for name in of(list(items(chosen, 1)), "parity") if "fused" in name]
    assert fused == ["parity-tiny-2-ordered-fused-1x1-lws", "parity-odd-2-ordered-fused-1x1-lws"]
    chosen.arithmetics = ("fused",)
    assert all("fused" in name for name in of(list(items(chosen, 1)), "parity"))


def test_devices_are_chosen() -> None:
    chosen = Chosen("1x1")
    assert of(list(items(chosen, 1)), "devices")[0] == "devices-odd-1-ordered-tiles3-one worker"
    chosen.devices = "all"
    assert of(list(items(chosen, 1)), "devices")[0] == "devices-odd-1-ordered-tiles3-one worker-devicesall"
    chosen.devices = 0
    assert left_out(list(items(chosen, 1)))["devices"] == "--starpullm-devices is 0"


def test_bits_of_one_placement_have_nothing_to_compare_with() -> None:
    found = list(items(Chosen("1x1"), 1))
    assert of(found, "bit stability") == ["bit_stability-tiny-1_2-ordered"]
    assert left_out(found)["bit stability of tiny-2-tree"] == "one placement has nothing to compare with"


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_check_has_items_or_is_left_out(ranks: int) -> None:
    found = list(items(Chosen("1x1", "2x1"), ranks))
    told = " ".join(left_out(found))
    assert [name for name in all_checks() if not of(found, name) and name not in told] == []
    assert ("checks of one process: " in told, "checks of several ranks: " in told) == (ranks > 1, ranks == 1)


def test_ranks_are_also_compared_with_one_process() -> None:
    [item, *_] = (
        item for item in items(Chosen("1x1"), 2) if isinstance(item, Item) and item.check.name == "bit stability"
    )
    assert [(place.ranks, case.sub_batches) for place, case in item.parts] == [(2, 1), (1, 2)]


ONE, TWO = RuntimeConfiguration("1x1", "lws"), RuntimeConfiguration("2x1", "lws")
CASE = Case("tiny", sub_batches=2, reduction="tree")


def run_parts(*found: Result | Arrays) -> Result:
    """Return the result of an item whose two runs leave this."""
    answers = dict(zip((ONE, TWO), found, strict=True))
    item = Item(BitStability(), CASE, None, parts=[(ONE, CASE), (TWO, CASE)])
    return item.run(lambda placement, request, **_: answers[placement])


def test_an_item_compares_what_its_runs_leave() -> None:
    zeros, ones = ({"wte": np.full(3, number, np.float32)} for number in (0, 1))
    same, different = run_parts(zeros, dict(zeros)), run_parts(zeros, ones)
    assert (same.outcome, same.where) == (Outcome.PASSED, "tiny-2-tree")
    finding = different.findings[0]
    assert (finding.where, finding.sentence) == (
        "wte of tiny-2-tree on 2x1 lws",
        "compared with tiny-2-tree on 1x1 lws",
    )


def test_a_run_that_is_wrong_by_itself_is_the_result_of_its_item() -> None:
    wrong = ObservedOrder().result(compared=1, findings=[Finding("task 2 ran before task 1")])
    result = run_parts(wrong, {})
    assert (result.check, result.outcome) == ("bit stability", Outcome.FAILED)
    assert [finding.sentence for finding in result.findings] == ["task 2 ran before task 1"]


def test_an_item_of_one_run_says_where_it_is_run() -> None:
    asked = []

    def ask(placement: RuntimeConfiguration | None, request: partial[Any], **options: Any) -> Result:
        asked.append((placement, request.keywords["case"], options["ranks"], bool(options["environment"])))
        return Result(check="any", outcome=Outcome.PASSED, compared=1)

    Item(Parity(), CASE, TWO).run(ask)
    Item(Threads(), CASE, None, 2).run(ask)
    assert asked == [(TWO, CASE, 1, False), (None, CASE, 2, False)]
