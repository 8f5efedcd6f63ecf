"""The documentation's site: it is built without a warning, and its reference pages are complete.

Skipped without Sphinx; the environment of ``tox`` has it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import starpullm.errors
from starpullm.commands import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.mark.timeout(300)
def test_site(tmp_path: Path) -> None:
    """Every page is in it, and so are all commands, exceptions and functions of the C header."""
    for package in ("furo", "myst_parser", "sphinx", "sphinx_click"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install '.[docs]'")
    html = tmp_path / "html"
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "--builder", "html"]
    done = subprocess.run(
        [*command, "--doctree-dir", str(tmp_path / "doctrees"), str(DOCS), str(html)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    missing = [page for page in DOCS.rglob("*.md") if not (html / page.relative_to(DOCS)).with_suffix(".html").exists()]
    assert missing == []

    reference = (html / "reference.html").read_text("utf-8")
    anchors = set(re.findall(r'id="([^"]+)"', reference))

    header = "".join(path.read_text("utf-8") for path in (ROOT / "native" / "include").glob("*.h"))
    functions = set(re.findall(r"STARPULLM_API [^;]*?(starpullm_\w+)\(", header))
    assert len(functions) > 20
    assert {f"c.{name}" for name in functions} <= anchors
    page = re.sub(r"<[^>]*>", "", reference)
    assert "trainer.submit(inputs, targets)" in page
    start = (html / "start.html").read_text("utf-8")
    assert 'href="reference.html#python-api"' in start
    assert ".md" not in re.sub(r"<[^>]*>", "", start)  # the path of a page instead of a link to it
    types = re.findall(r"^((?:struct|enum) \w+) \{", header, re.MULTILINE)
    assert [name for name in types if f"{name} {{" not in page] == []
    assert "----" not in page
    assert {f"starpullm-{name}" for name in main.list_commands(click.Context(main))} <= anchors
    assert {f"starpullm.errors.{name}" for name in starpullm.errors.__all__} <= anchors
    assert {"starpullm.Runtime", "starpullm.Trainer", "starpullm.trace.Trace"} <= anchors
