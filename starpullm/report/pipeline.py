"""The last step of a recorded pipeline as the field draws it: stages down, time across, passes of sub-batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starpullm.traces.content import HEX_COLORS, kind_of

PASSES: Mapping[str, str] = {
    "forward": HEX_COLORS["forward"],
    "backward": HEX_COLORS["backward"],
    "weights": HEX_COLORS["reduction"],
}
"""Kinds of passes and their colours."""

_COLUMNS = ("operation", "step", "sub_batch", "layer", "rank", "worker", "start", "end")


def passes_of(recording: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a recording of passes instead of tasks, or None if all ranks have the same blocks.

    A pass is what a worker does for a sub-batch until it does something else.
    """
    kinds = [_pass(operation) for operation in recording["operations"]]
    rows = [
        dict(zip(_COLUMNS, row, strict=True)) for row in zip(*(recording["tasks"][c] for c in _COLUMNS), strict=True)
    ]
    blocks: dict[int, set[int]] = {row["rank"]: set() for row in rows}
    for row in rows:
        if row["layer"] >= 0:
            blocks[row["rank"]].add(row["layer"])
    stages = len({frozenset(layers) for layers in blocks.values()})
    last = max((row["step"] for row in rows), default=0)
    of_step = [row for row in rows if row["step"] == last and row["worker"] >= 0 and kinds[row["operation"]]]
    if stages < 2 or not of_step:
        return None
    begin = min(row["start"] for row in of_step)
    passes: list[dict[str, int]] = []
    for row in sorted(of_step, key=lambda row: (row["rank"], row["worker"], row["start"])):
        operation = list(PASSES).index(kinds[row["operation"]])
        same = {**row, "operation": operation, "layer": -1, "start": row["start"] - begin, "end": row["end"] - begin}
        where = ("operation", "sub_batch", "rank", "worker")
        if passes and all(passes[-1][name] == same[name] for name in where):
            passes[-1]["end"] = same["end"]
        else:
            passes.append(same)
    pipelines = len(blocks) // stages
    sub_batches = len({row["sub_batch"] for row in of_step}) // pipelines
    bubble = (stages - 1) / (sub_batches + stages - 1)
    return {
        "name": f"{recording['name']}: the last as {pipelines} × {stages} stages; {bubble:.0%} idle by the formula",
        "configuration": recording["configuration"],
        "operations": list(PASSES),
        "tasks": {name: [row[name] for row in passes] for name in _COLUMNS},
        "critical_path": [],
    }


def _pass(operation: str) -> str:
    """Return the kind of pass that an operation belongs to; empty for others."""
    kind = kind_of(operation)
    if kind == "backward" and (operation.endswith("weight") or operation.startswith("encoder")):
        return "weights"
    return kind if kind in PASSES and operation != "report_loss" else ""
