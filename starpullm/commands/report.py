"""``starpullm report``: makes the page of a report again."""

from __future__ import annotations

from pathlib import Path

import click

from starpullm.commands import options
from starpullm.commands.render import OUT
from starpullm.report.folder import PAGE_NAME, remake_page


@click.command("report", epilog=options.example("starpullm report out"))
@click.argument("folder", metavar="DIR", type=options.PATH)
def command(folder: Path) -> None:
    """Make a report's page again.

    DIR is a folder that pytest --starpullm-report, parity --report or bench --report has written. Its index.html is
    made from its report.json, which is checked first.
    """
    remake_page(folder)
    OUT.print(f"saved {folder / PAGE_NAME}")
