"""Settings of the documentation's site; `tox -e docs` builds it from these pages, and warnings are errors."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

import starpullm

project = "starpullm"
author = "the starpullm authors"
release = starpullm.__version__
extensions = ["c_header", "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
exclude_patterns = ["extensions"]
# Otherwise --json would become an en dash and json.
smartquotes = False
html_theme = "furo"
html_title = "starpullm"
html_copy_source = False
html_show_copyright = False

# The anchors that GitHub makes of headings.
myst_heading_anchors = 4
# Of pages that are also read as files: commands and outputs have no language.
highlight_language = "none"

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = False
napoleon_use_rtype = False


def name_files_outside(app: Any, page: str, source: list[str]) -> None:
    """Replace a link to a file that is no page of the site, such as ../starpullm/golden, by its text and path."""
    source[0] = re.sub(r"\[([^]]*)\]\(\.\./([^)]*)\)", r"\1 (`\2`)", source[0])


def setup(app: Any) -> None:
    """Register what the pages need."""
    app.connect("source-read", name_files_outside)
