"""The page: the views of a document, put into the templates of ``templates/`` by Jinja2."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from starpullm.report.block_graph import block_graph_of
from starpullm.report.charts import charts_of
from starpullm.report.document import Document
from starpullm.report.failures import MAX_FAILURES, failure_groups, failures
from starpullm.report.parity_matrix import matrices
from starpullm.report.reductions import Reductions, reductions_of
from starpullm.report.runs import environments, run_rows
from starpullm.report.scaling_plots import ScalingPlot, scaling_plots
from starpullm.report.task_graph import task_graph_of
from starpullm.report.throughput import History, SpeedRow, histories_of, speed_plot, speeds_of
from starpullm.report.verdict import CLAIMS, check_rows, not_checked, verdict_of
from starpullm.report.violations import violations_of
from starpullm.report.workers import Workers, workers_of

if TYPE_CHECKING:
    from bokeh.plotting import figure
    from jinja2 import Environment

_MAX_TESTS_NAMED = 30


def render(document: Document, *, charts: bool = True) -> str:
    """Return the page as HTML; it needs no other file and no network. Without charts it has their tables only."""
    failed = failures(document)
    unchecked = list(not_checked(document))
    runs = run_rows(document)
    workers = [chart for recording in document["recordings"] if (chart := workers_of(recording))]
    reductions, speeds, histories = reductions_of(document), speeds_of(document), histories_of(document)
    violations = violations_of(document)
    graphs = [graph for recording in document["recordings"] if (graph := task_graph_of(recording, violations))]
    scaling = scaling_plots(document)
    drawn = charts_of(dict(_figures(workers, reductions, speeds, scaling, histories)) if charts else {})
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            document=document,
            verdict=verdict_of(document),
            runs=runs,
            failed_runs=[run for run in runs if run.needs_a_look],
            num_failed_measurements=sum("failure" in entry for entry in document["throughput"]),
            checks=check_rows(document),
            not_checked=unchecked,
            failures=failed,
            failure_groups=failure_groups(document, {name: claim.fault for name, claim in CLAIMS.items()}),
            num_failures=sum(test["outcome"] == "failed" for test in document["tests"]),
            max_failures=MAX_FAILURES,
            matrices=matrices(document),
            families=_families(document),
            environments=[
                (found.names, list(_environment_rows(found.machine)), found.machine.get("findings", []))
                for found in environments(document)
            ],
            graphs=graphs[:1],  # the others differ in nothing that is drawn
            block=block_graph_of(document["recordings"][0], violations) if graphs else None,
            violations=violations,
            workers=workers,
            reductions=reductions,
            speeds=speeds,
            scaling=scaling,
            histories=histories,
            charts=drawn.elements,
            chart_scripts=drawn.scripts,
            selection=[
                (name.replace("sub_batches", "sub-batches"), ", ".join(values))
                for name, values in document["selection"].items()
            ],
            max_tests_named=_MAX_TESTS_NAMED,
        )
    )


def _figures(
    workers: Sequence[Workers],
    reductions: Reductions | None,
    speeds: Sequence[SpeedRow],
    scaling: Sequence[ScalingPlot],
    histories: Sequence[History],
) -> Iterator[tuple[str, figure]]:
    """Yield the charts by the names that the templates have for them."""
    yield from ((f"workers-{number}", chart.draw()) for number, chart in enumerate(workers))
    if reductions is not None:
        yield "reductions", reductions.draw()
    plot = speed_plot(speeds)
    if plot is not None:
        yield "speed", plot
    yield from ((f"scaling-{number}", chart.draw()) for number, chart in enumerate(scaling))
    yield from ((f"history-{number}", history.draw()) for number, history in enumerate(histories))


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
    environment.filters["moment"] = _moment
    environment.filters["duration"] = _duration
    environment.filters["finding"] = _finding
    return environment


def _moment(seconds: float) -> str:
    """Return a time in UTC, to the second."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _duration(seconds: float) -> str:
    """Return a duration in the largest unit that fits."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _finding(result: Mapping[str, Any]) -> str:
    """Return what a result says in a few words."""
    if result["name"] == "parity":
        return f"parity: {result['tensors']:,} tensors, {len(result['differences'])} differ"
    return f"{result['name']}: {result.get('finding') or result['outcome']}"


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
