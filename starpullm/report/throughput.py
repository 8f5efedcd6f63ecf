"""Throughput beside the machine's limit, and how much each figure varied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from starpullm.report.document import Document
from starpullm.speed.verdict import was_disturbed


class SpeedRow(NamedTuple):
    """A measured configuration; ``limit`` is the speed of a step whose matmuls alone use all that the cores can do.

    ``fraction`` is the part of the limit that was reached, in words; a range if measurements of the limit differ.
    ``noise`` says how far they are apart, if that is more than on a quiet machine.
    """

    name: str
    tokens_per_ms: float | None
    limit: float | None = None
    fraction: str = ""
    noise: str = ""
    failure: str = ""


def speeds_of(document: Document) -> list[SpeedRow]:
    """Return a row for each measurement."""
    return [_speed_row(entry) for entry in document["throughput"]]


def _speed_row(entry: Mapping[str, Any]) -> SpeedRow:
    name = _name(entry["configuration"])
    if "failure" in entry:
        return SpeedRow(name, None, failure=entry["failure"])
    if "contenders" in entry:
        strict, *others = entry["contenders"]
        speed = strict["tokens_per_ms"]
        beside = ", ".join(f"{other['name']} {other['tokens_per_ms']['median']:.4g}" for other in others)
        noise = _noise("the speed", speed["low"], speed["high"], "tokens/ms")
        return SpeedRow(f"{name}; beside it: {beside}", speed["median"], noise=noise)
    limit = _matmul_limit(entry) if "matmul_flops" in entry else None
    low, high = entry.get("matmul_limit_range", (1.0, 1.0))
    return SpeedRow(name, entry["tokens_per_ms"], limit, _fraction(entry), _noise("the limit", low, high, "GFLOP/s"))


def _matmul_limit(entry: Mapping[str, Any]) -> float:
    """Return the tokens per millisecond of a step that consists of its matmuls alone, at the processor's limit."""
    tokens: int = entry["configuration"]["batch_size"] * entry["configuration"]["seq_len"]
    return float(tokens * entry["matmul_limit_gflops"] * 1e6 / entry["matmul_flops"])


def _noise(what: str, low: float, high: float, unit: str) -> str:
    return f"noise: {what} was measured as {low:.4g} to {high:.4g} {unit}" if was_disturbed(low, high) else ""


def _fraction(entry: Mapping[str, Any]) -> str:
    if "matmul_limit_range" in entry:
        low, high = (f"{100 * entry['matmul_gflops'] / limit:.1f}" for limit in reversed(entry["matmul_limit_range"]))
        return f"{low} %" if low == high else f"{low} to {high} %"
    return f"{100 * entry['fraction_of_limit']:.1f} %" if "fraction_of_limit" in entry else ""


def _name(configuration: Mapping[str, Any]) -> str:
    ranks = f", {configuration['ranks']} ranks" if configuration["ranks"] > 1 else ""
    return (
        f"{configuration['model'].rpartition('/')[2]}, B = {configuration['batch_size']}, {configuration['partition']}"
        f"{ranks}, sub-batches {configuration['sub_batches']}, {configuration['reduction']}"
    )
