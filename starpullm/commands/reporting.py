"""The reports of commands: a folder that is renewed after each result, on rank 0 only."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from starpullm.checks.left_out import LeftOut
from starpullm.commands.main import EXIT_NOT_COMPARABLE, exit_status
from starpullm.commands.render import ERR
from starpullm.errors import StarpullmError
from starpullm.machine import inspect_machine
from starpullm.processes import Comm
from starpullm.report.document import Document, new_document
from starpullm.report.folder import ReportFolder


class CommandReport:
    """The report of a command; without a folder nothing is written."""

    def __init__(self, folder: ReportFolder | None, document: Document) -> None:
        self._folder = folder
        self.document = document
        self.status = 0
        """The command's exit status, unless an error ends it."""

    def renew(self) -> None:
        """Write what is known so far."""
        if self._folder is not None:
            self._folder.renew(self.document)

    def end(self, status: int, stopped: str | None = None) -> None:
        """Write the final state; ``stopped`` says why the command ended before its end, if it did."""
        if self._folder is not None:
            failed = status not in (0, EXIT_NOT_COMPARABLE)
            self.document.update(state="ended", exit_status=status, failed=failed, stopped=stopped, running=[])
            self._folder.write(self.document)

    def leave_out(self, entries: Iterable[LeftOut]) -> None:
        """Add what the command doesn't check."""
        self.document["not_checked"] += [asdict(entry) for entry in entries]


@contextmanager
def command_report(path: Path | None, command: str, comm: Comm | None = None) -> Iterator[CommandReport]:
    """Provide the report of a command; if the command raises an error, the report says so."""
    document = new_document(command, sys.argv[2:], ranks=comm.Get_size() if comm else 1)
    folder = None
    if path is not None and not (comm and comm.Get_rank()):
        folder = ReportFolder(path)
        document["environment"] = inspect_machine()
        folder.write(document)
    report = CommandReport(folder, document)
    try:
        yield report
    except BaseException as error:
        status = exit_status(error)
        try:
            report.end(status, _why_stopped(error, status))
        except StarpullmError as failure:
            ERR.print(f"Error: {failure}")
        raise
    report.end(report.status)


def _why_stopped(error: BaseException, status: int) -> str | None:
    """Return why an error has ended a command before its end; None for an exit status after its end."""
    if isinstance(error, SystemExit):
        return f"by signal {status - 128}" if status > 128 else None
    return str(error) or type(error).__name__
