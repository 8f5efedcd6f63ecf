"""The report of a run: a JSON file that says everything, and a page made from it.

Nothing here runs a check or knows who ran them: the page is made from the JSON file alone. Jinja2, Bokeh and the other
packages of the extra ``report`` are imported when a page is made.
"""

from starpullm.report.document import VERSION, Document, new_document, read_document, write_document
from starpullm.report.folder import JSON_NAME, PAGE_NAME, ReportFolder, remake_page, require_packages

__all__ = [
    "JSON_NAME",
    "PAGE_NAME",
    "VERSION",
    "Document",
    "ReportFolder",
    "new_document",
    "read_document",
    "remake_page",
    "require_packages",
    "write_document",
]
