"""What was checked, in a dozen claims; each has the checks that it rests on as its parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from starpullm.report.document import Document
from starpullm.trainer import REDUCTIONS


class Claim(NamedTuple):
    """What must hold, and of which checks it is the claim: by their names, or all of a family with very many."""

    holds: str
    checks: tuple[str, ...] = ()
    family: str = ""


CLAIMS = (
    Claim("every tensor of every step has the bits of llm.c", ("parity",)),
    Claim("tasks run in the order that their accesses require", ("runtime graph", "observed order")),
    Claim("tasks access what they declare and nothing else", ("accesses",)),
    Claim("nothing is read before it is written", ("poison",)),
    Claim("reused buffers don't lengthen the critical path", ("handle reuse",)),
    Claim("delays and schedulers change no bit", ("perturbation",)),
    Claim("every gradient is within the error bound of its sum", ("gradient error",)),
    Claim(
        "sums have the same bits on all placements and ranks",
        ("bit stability", "losses of ranks", "order of the tree"),
    ),
    Claim(
        "data cross ranks as often as the task graph requires",
        tuple(f"transfers of {reduction}" for reduction in REDUCTIONS),
    ),
    Claim("shared buffers and a resumed run change no bit", ("shared buffers", "resumed run")),
    Claim("memory doesn't grow, whatever is repeated", ("memory growth",)),
    Claim("an allocation that fails is told and leaves nothing", ("scarce memory",)),
    Claim("kernels of every SIMD level have the bits of the plain ones", (), "kernels"),
    Claim("limits are refused, and what is saved is what was trained", ("tasks that StarPU refuses",), "interface"),
    Claim("training is as fast as the baseline", (), "throughput"),
)
"""In the order of the page. A check of neither kind, such as a user's own, is its own claim."""


@dataclass(frozen=True)
class CheckRow:
    """A check over all its runs; ``compared`` says how much of what, such as "570 tensors"."""

    name: str
    passed: int
    failed: int
    undecided: int
    compared: str


@dataclass(frozen=True)
class ClaimRow(CheckRow):
    """A claim, called ``name``, over all runs of its checks, which are its ``parts``."""

    parts: tuple[CheckRow, ...]


def claim_rows(document: Document) -> list[ClaimRow]:
    """Return a row for each claim that a check gave a result on."""
    results: dict[Claim, dict[str, list[dict[str, Any]]]] = {}
    for test in document["tests"]:
        for result in test["results"]:
            of_claim = results.setdefault(_claim_of(result["name"], test["family"]), {})
            of_claim.setdefault(result["name"], []).append(result)
    order = {claim: number for number, claim in enumerate(CLAIMS)}
    rows = []
    for claim in sorted(results, key=lambda claim: order.get(claim, len(order))):
        checks = results[claim]
        every = [result for found in checks.values() for result in found]
        parts = tuple(CheckRow(name, *_counts(found)) for name, found in checks.items())
        rows.append(ClaimRow(claim.holds, *_counts(every), parts))
    return rows


def _claim_of(check: str, family: str) -> Claim:
    named = next((claim for claim in CLAIMS if check in claim.checks), None)
    return named or next((claim for claim in CLAIMS if claim.family == family), Claim(check))


def _counts(results: Sequence[dict[str, Any]]) -> tuple[int, int, int, str]:
    """Return how many results passed, failed, and gave no verdict, and what they compared, by unit."""
    outcomes = Counter(result["outcome"] for result in results)
    passed, failed = outcomes["passed"], outcomes["failed"]
    compared: Counter[str] = Counter()
    for result in results:
        compared[result["unit"]] += result["compared"]
    text = ", ".join(f"{count:,} {unit}" for unit, count in compared.items())
    return passed, failed, len(results) - passed - failed, text
