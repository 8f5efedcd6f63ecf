"""``starpullm report``: makes the page of a report again, or one report of several runs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from starpullm.commands import options
from starpullm.commands.render import OUT
from starpullm.report.folder import PAGE_NAME, ReportFolder, remake_page, require_packages
from starpullm.report.runs import merge, read_jobs, read_run


@click.command(
    "report",
    epilog=options.example(
        "starpullm report out",
        "starpullm report night --merge suite --merge ranks-2",
        "starpullm report results/report --jobs results/summary.json",
    ),
)
@click.argument("folder", metavar="DIR", type=options.PATH)
@options.repeated(
    "--merge", "reports", type=options.PATH, metavar="RUN", help="Folder or JSON file of a report to put into DIR's"
)
@click.option(
    "--jobs",
    type=options.PATH,
    metavar="FILE",
    help="Put the reports of Slurm jobs into DIR's: the summary.json of ci/slurm, which names them.",
)
def command(folder: Path, reports: tuple[Path, ...], jobs: Path | None) -> None:
    """Make a report's page again, or one report of several.

    DIR is a folder that pytest --starpullm-report, parity --report or bench --report has written. Its index.html is
    made from its report.json, which is checked first. With --merge or --jobs, DIR is the
    folder of a new report, which is made of those of other runs and says how each of them ended.
    """
    if not reports and jobs is None:
        remake_page(folder)
    else:
        require_packages()
        runs, status = read_jobs(jobs) if jobs else ([], None)
        if folder.resolve() in {path.resolve() for path in reports}:
            raise click.BadParameter(f"found DIR itself, {folder}, expected another folder", param_hint="--merge")
        runs += [read_run(path) for path in reports]
        document = merge(runs, sys.argv[2:], status)
        ReportFolder(folder).write(document)
    OUT.print(f"saved {folder / PAGE_NAME}")
