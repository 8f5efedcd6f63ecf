"""The folder of a report: its two files, which are renewed while the run goes on."""

from __future__ import annotations

import importlib
import time
from contextlib import suppress
from pathlib import Path

from starpullm.errors import MissingDependencyError, StarpullmError
from starpullm.files.atomic import atomic_write
from starpullm.files.header import file_errors
from starpullm.report.document import JSON_NAME, Document, write_document

PAGE_NAME = "index.html"

_SHARE = 0.05
"""Of a run's time, the part that is spent on renewing the files of an unfinished report."""

_LONGEST_SECONDS = 2.0
"""An unfinished report is renewed at the next occasion after this time, however long that takes."""


class PageError(StarpullmError):
    """Raised when the page can't be made of a document; the JSON file has been written."""


def require_packages() -> None:
    """Raise a ``MissingDependencyError`` unless what makes a page is installed."""
    try:
        importlib.import_module("jinja2")
    except ImportError as error:
        raise MissingDependencyError(
            f"a report needs jinja2, which can't be imported ({error}): pip install 'starpullm[report]'"
        ) from error


class ReportFolder:
    """A folder with ``report.json`` and ``index.html``; created if only its last part is missing."""

    def __init__(self, path: Path) -> None:
        require_packages()
        with file_errors(path, "created"):
            path.mkdir(exist_ok=True)
        self.path = path
        self.page_path = path / PAGE_NAME
        self._earliest = 0.0
        """When an unfinished report may be renewed next; seconds of the monotonic clock."""

    def write(self, document: Document) -> None:
        """Write both files; each appears under its name only when it is complete."""
        start = time.monotonic()
        try:
            write_document(document, self.path / JSON_NAME)
            _write_page(document, self.page_path)
        finally:
            end = time.monotonic()
            self._earliest = end + min((end - start) / _SHARE, _LONGEST_SECONDS)

    def renew(self, document: Document) -> None:
        """Write both files unless that was done so recently that it would slow the run down.

        What can't be written now may not end a run of hours; ``write`` tries it again at the run's end.
        """
        if time.monotonic() >= self._earliest:
            with suppress(StarpullmError):
                self.write(document)


def _write_page(document: Document, path: Path) -> None:
    try:
        from starpullm.report.page import render

        text = render(document)
    except Exception as error:  # of any kind: a page shows whatever checks and measurements have put into a document
        raise PageError(f"{path}: can't be made of {JSON_NAME}: {type(error).__name__}: {error}") from error
    with atomic_write(path) as file:
        file.write(text.encode())
