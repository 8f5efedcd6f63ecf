"""The runs of a scheduler's jobs: the summary that ``ci/slurm/summary.py`` writes, and the reports that it names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from starpullm.errors import FileError, FormatError
from starpullm.files.header import reason
from starpullm.report.document import Document, read_document
from starpullm.report.folder import JSON_NAME
from starpullm.report.merge import FAILED, NOT_COMPARABLE, NOT_ENDED, NOTHING, PASSED, Run, check_mergeable

SUMMARY_VERSION: Final = 1

_OUTCOMES: Final = (PASSED, FAILED, NOTHING, NOT_COMPARABLE, NOT_ENDED)
"""By the exit status that a summary has for each part."""

_STATUS: Final = {"type": "integer", "minimum": 0, "maximum": len(_OUTCOMES) - 1}
_TEXT: Final = {"type": "string"}
_SUMMARY: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["version", "status", "jobs"],
    "properties": {
        "version": {"const": SUMMARY_VERSION},
        "status": _STATUS,
        "jobs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "id", "nodes", "restarts", "outcome", "meaning", "parts"],
                "properties": {
                    **dict.fromkeys(("name", "id", "nodes", "meaning"), _TEXT),
                    "restarts": {"type": "integer", "minimum": 0},
                    "outcome": _STATUS,
                    "parts": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["name", "outcome", "ending"],
                            "properties": {
                                **dict.fromkeys(("name", "ending", "report"), _TEXT),
                                "outcome": _STATUS,
                                "log_end": {"type": "array", "items": _TEXT},
                            },
                        },
                    },
                },
            },
        },
    },
}


def read_jobs(path: Path) -> tuple[list[Run], int]:
    """Return the runs of all jobs of a summary, and the exit status of the whole.

    A part of a job is a run. A job that left no part, or that did not end although its parts did, is a run too. A
    report that can't be read is named in the ending of its run.

    Raises
    ------
    FileError, FormatError
        If the summary can't be read or isn't one.
    """
    import fastjsonschema

    try:
        summary = json.loads(path.read_bytes())
        fastjsonschema.validate(_SUMMARY, summary)
    except OSError as error:
        raise FileError(f"{path}: can't be read: {reason(error)}", error.errno, str(path)) from error
    except (ValueError, fastjsonschema.JsonSchemaValueException) as error:
        raise FormatError(f"{path}: expected the summary.json of ci/slurm: {error}") from error
    return [run for job in summary["jobs"] for run in _runs(job, path.parent)], int(summary["status"])


def _runs(job: Mapping[str, Any], folder: Path) -> Iterator[Run]:
    nodes = f" on {job['nodes']}" if job["nodes"] else ""
    again = f", run again {job['restarts']} times" if job["restarts"] else ""
    place = f"job {job['id']}{nodes}{again}"
    outcomes = []
    for part in job["parts"]:
        outcomes.append(_OUTCOMES[part["outcome"]])
        document, trouble = _report(folder, part.get("report"))
        name, output = f"{job['name']}/{part['name']}", tuple(part.get("log_end", ()))
        yield Run(name, outcomes[-1], part["ending"] + trouble, place, document, output)
    if not outcomes or (_OUTCOMES[job["outcome"]] == NOT_ENDED and NOT_ENDED not in outcomes):
        yield Run(job["name"], _OUTCOMES[job["outcome"]], job["meaning"], place, None)


def _report(folder: Path, name: str | None) -> tuple[Document | None, str]:
    """Return the report of a part, and what to say if there is none."""
    if name is None:
        return None, "; it has left no report"
    try:
        document = read_document(folder / name / JSON_NAME)
        check_mergeable(document, name)
    except (FileError, FormatError) as error:
        return None, f"; its report can't be used: {error}"
    return document, ""
