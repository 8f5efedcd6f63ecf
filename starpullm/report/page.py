"""The page: the views of a document, put into the templates of ``templates/`` by Jinja2."""

from __future__ import annotations

import datetime
from functools import cache
from typing import TYPE_CHECKING

from starpullm.machine import rows_of
from starpullm.report.document import Document, counted, grouped
from starpullm.report.failures import MAX_FAILURES, failure_groups, failures, reason_of
from starpullm.report.pipeline import passes_of
from starpullm.report.tables import matrices, reductions_of
from starpullm.report.verdict import claim_rows, not_checked, verdict_of
from starpullm.report.workers import workers_of

if TYPE_CHECKING:
    from jinja2 import Environment

_MAX_TESTS_NAMED = 30

_SECTIONS = {
    "chosen": "What was chosen",
    "not-checked": "What was not checked",
    "parity": "Parity matrix",
    "failures": "Failures",
    "workers": "Workers over time",
    "errors": "Errors of gradients",
    "tests": "All tests",
    "environment": "Environment",
}
"""Titles by the names of templates, which are anchors too."""


def render(document: Document) -> str:
    """Return the page as HTML; it needs no other file and no network."""
    failed = failures(document)
    views = {
        "chosen": [
            (name.replace("sub_batches", "sub-batches"), ", ".join(values))
            for name, values in document["selection"].items()
        ],
        "not_checked": list(not_checked(document)),
        "parity": matrices(document),
        "failures": failed,
        "workers": [
            timeline
            for recording in document["recordings"]
            for drawn in (passes_of(recording), recording)
            if drawn and (timeline := workers_of(drawn))
        ],
        "errors": reductions_of(document),
        "tests": grouped(document["tests"], lambda test: test["family"]),
        "environment": rows_of(document["environment"]) if document["environment"] else [],
    }
    shown = {name: title for name, title in _SECTIONS.items() if views[name.replace("-", "_")] or name == "environment"}
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            document=document,
            verdict=verdict_of(document),
            claims=claim_rows(document),
            failure_groups=failure_groups(failed),
            max_failures=MAX_FAILURES,
            max_tests_named=_MAX_TESTS_NAMED,
            sections=shown,
            **views,
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
    environment.filters |= {"moment": _moment, "duration": _duration, "reason": reason_of, "counted": counted}
    return environment


def _moment(seconds: float) -> str:
    """Return a time in UTC, to the second."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _duration(seconds: float) -> str:
    """Return a duration in the largest unit that fits."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
