"""The page: the views of a document, put into the templates of ``templates/`` by Jinja2."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from starpullm.report.charts import charts_of
from starpullm.report.document import Document
from starpullm.report.failures import MAX_FAILURES, failure_groups, failures, reason_of
from starpullm.report.parity_matrix import matrices
from starpullm.report.reductions import reductions_of
from starpullm.report.runs import environments, run_rows
from starpullm.report.throughput import speeds_of
from starpullm.report.verdict import claim_rows, not_checked, verdict_of
from starpullm.report.workers import workers_of
from starpullm.traces.content import HEX_COLORS

if TYPE_CHECKING:
    from jinja2 import Environment

_MAX_TESTS_NAMED = 30


def render(document: Document, *, charts: bool = True) -> str:
    """Return the page as HTML; it needs no other file and no network. Without charts it has their tables only."""
    failed = failures(document)
    runs = run_rows(document)
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            document=document,
            verdict=verdict_of(document),
            runs=runs,
            failed_runs=[run for run in runs if run.needs_a_look],
            num_failed_measurements=sum("failure" in entry for entry in document["throughput"]),
            claims=claim_rows(document),
            not_checked=list(not_checked(document)),
            failures=failed,
            max_failures=MAX_FAILURES,
            failure_groups=failure_groups(failed),
            matrices=matrices(document),
            families=_families(document),
            environments=[
                (found.names, list(_environment_rows(found.machine)), found.machine.get("findings", []))
                for found in environments(document)
            ],
            workers=[timeline for recording in document["recordings"] if (timeline := workers_of(recording))],
            colours=HEX_COLORS,
            reductions=reductions_of(document),
            speeds=speeds_of(document),
            charts=charts_of(document) if charts else {},
            selection=[
                (name.replace("sub_batches", "sub-batches"), ", ".join(values))
                for name, values in document["selection"].items()
            ],
            max_tests_named=_MAX_TESTS_NAMED,
        )
    )


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("starpullm.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.filters["moment"] = _moment
    environment.filters["duration"] = _duration
    environment.filters["reason"] = reason_of
    return environment


def _moment(seconds: float) -> str:
    """Return a time in UTC, to the second."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _duration(seconds: float) -> str:
    """Return a duration in the largest unit that fits."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _families(document: Document) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """Return the tests by family, in the order in which they ran."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for test in document["tests"]:
        found.setdefault(test["family"], []).append(test)
    return list(found.items())


def _environment_rows(machine: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield names and values of what ``starpullm doctor --json`` says; the findings are shown apart."""
    for name, value in machine.items():
        if name in ("findings", "libm_fingerprint"):
            continue
        match value:
            case Mapping():
                text = ", ".join(
                    f"{key}: {'used' if entry.get('used') else 'not used'}" for key, entry in value.items()
                )
            case list() | tuple():
                text = ", ".join(map(str, value))
            case bool():
                text = "yes" if value else "no"
            case _:
                text = str(value)
        yield (
            _WORDS.get(name, name.replace("_", " ")),
            text or ("as required" if name == "float_environment" else "none"),
        )


_WORDS = {
    "version": "starpullm",
    "starpu_version": "StarPU",
    "starpu_built_against": "StarPU that it was built against",
    "starpu_prefix": "StarPU's folder",
    "starpu_max_workers": "StarPU's largest number of workers",
    "starpu_max_contexts": "StarPU's largest number of scheduling contexts",
    "starpu_max_nodes": "StarPU's largest number of memory nodes",
    "starpu_handle_bytes": "memory of a handle, bytes",
    "numa_nodes": "NUMA nodes",
    "l1_cache": "L1 cache, bytes",
    "l2_cache": "L2 cache, bytes",
    "starpu_parallel_workers": "parallel workers",
    "simd_level": "kernels",
    "vector_libm": "vector functions",
    "mpi": "MPI in this build",
    "blas": "BLAS (only on request)",
    "libm_known": "libm of the golden records",
}
