"""The report of a run, or of several: a JSON file that says everything, and a page made from it.

Nothing here runs a check or knows who ran them: the page is made from the JSON file alone. Jinja2, Bokeh and the other
packages of the extra ``report`` are imported when a page is made.
"""

from starpullm.report.document import VERSION, Document, new_document, read_document, write_document
from starpullm.report.folder import JSON_NAME, PAGE_NAME, ReportFolder, remake_page, require_packages
from starpullm.report.jobs import read_jobs
from starpullm.report.merge import Run, merge, read_run

__all__ = [
    "JSON_NAME",
    "PAGE_NAME",
    "VERSION",
    "Document",
    "ReportFolder",
    "Run",
    "merge",
    "new_document",
    "read_document",
    "read_jobs",
    "read_run",
    "remake_page",
    "require_packages",
    "write_document",
]
