"""The report of a run, or of several: a JSON file that says everything, and a page made from it.

Nothing here runs a check or knows who ran them: the page is made from the JSON file alone. Jinja2, matplotlib and
msgspec, the packages of the extra ``report``, are imported when a page is made or a file is read.
"""

from starpullm.report.document import JSON_NAME, VERSION, Document, new_document, read_document, write_document
from starpullm.report.folder import PAGE_NAME, PageError, ReportFolder, remake_page, require_packages
from starpullm.report.merge import Run, merge, read_jobs, read_run

__all__ = [
    "JSON_NAME",
    "PAGE_NAME",
    "VERSION",
    "Document",
    "PageError",
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
