"""What a run doesn't check, and why: tests that were deselected, and placements that weren't chosen or don't fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from starpullm.checks import left_out
from starpullm.checks.left_out import LeftOut
from starpullm.pytest_plugin.entries import RANK_MARKERS, family_of
from starpullm.pytest_plugin.plugin_options import Options


def selection(options: Options) -> dict[str, list[str]]:
    """Return what the run has chosen, by the names of the options."""
    configurations = options.configurations(options.ranks)
    return {
        "records": list(options.records),
        "partitions": list(dict.fromkeys(configuration.partition for configuration in configurations)),
        "schedulers": list(dict.fromkeys(configuration.scheduler for configuration in configurations)),
        "ranks": [str(options.ranks)],
        "sub_batches": [
            f"{record}: {', '.join(map(str, counts))}"
            for record in options.records
            if (counts := options.sub_batches(record, options.ranks))
        ],
        "reductions": list(options.reductions),
        "reference": [str(options.llmc_library)] if options.llmc_library else ["golden records"],
    }


def deselected(items: Iterable[pytest.Item], options: Options) -> Iterator[LeftOut]:
    """Yield the deselected tests by reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for item in items:
        groups.setdefault(_why_deselected(item, options), []).append(item.nodeid)
    for (what, reason), tests in groups.items():
        yield LeftOut(what, reason, tests)


def _why_deselected(item: pytest.Item, options: Options) -> tuple[str, str]:
    if family_of(item) == "throughput" and not options.benchmark:
        return "throughput", "only with --starpullm-benchmark"
    if options.ranks > 1 and not any(item.get_closest_marker(name) for name in RANK_MARKERS):
        return "tests of one process", f"over {options.ranks} ranks, only tests that are marked for ranks run"
    skip = item.get_closest_marker("skip")
    if skip is not None and str(skip.kwargs.get("reason", "")).startswith("got empty parameter set"):  # pytest's words
        return f"tests of {family_of(item)}", "none of what was chosen is a case for them"
    return f"tests of {family_of(item)}", "deselected by -k, -m or --deselect"


def not_chosen(options: Options) -> Iterator[LeftOut]:
    """Yield records, placements and reductions that the run leaves out."""
    machine = options.machine
    how = {name: f"--starpullm-{name} chooses {name}" for name in ("records", "schedulers", "reductions")}
    how |= {
        "ranks": "mpirun -n R pytest --starpullm-over-ranks",
        "partitions": "--starpullm-partition chooses partitions",
    }
    yield from left_out.not_chosen(machine, options.ranks, selection(options), how)
    shared = [record for record in options.records if not options.sub_batches(record, options.ranks)]
    if shared:
        yield LeftOut(f"record {', '.join(shared)}", f"{options.ranks} ranks can't share its batch")
    if machine["cores"] > machine["starpu_max_workers"]:
        most = machine["starpu_max_workers"]
        yield LeftOut(f"partitions of more than {most} workers", f"StarPU was built for at most {most} workers")
    if not machine["starpu_max_contexts"]:
        yield LeftOut("partitions of workers of several threads", "StarPU was built without parallel workers")
    if "all" not in options.chosen_sub_batches:
        yield LeftOut("other numbers of sub-batches", "not chosen; --starpullm-sub-batches all takes every number")
