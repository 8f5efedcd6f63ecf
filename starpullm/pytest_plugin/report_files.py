"""Writes the report of a run: into a folder while the run goes on, or into one JSON file at its end."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from starpullm.errors import FileError, StarpullmError
from starpullm.pytest_plugin.entries import REFUSAL, is_worker, new_entry, uses_plugin
from starpullm.pytest_plugin.plugin_options import UnknownMachineError

if TYPE_CHECKING:
    from starpullm.checks.left_out import LeftOut
    from starpullm.pytest_plugin.validation import Validation
    from starpullm.report.folder import ReportFolder

_ENDINGS = {
    pytest.ExitCode.INTERRUPTED: "it was interrupted",
    pytest.ExitCode.INTERNAL_ERROR: "pytest or one of its plugins has failed; its output says how",
}
"""Exit statuses of a run that ended before its last test."""


class ReportFiles:
    """The file or the folder of ``--starpullm-report``; a plugin, of which only the process that reports writes."""

    def __init__(self, config: pytest.Config, validation: Validation) -> None:
        self._config = config
        self._validation = validation
        self._results = validation.results
        self._deselected: list[pytest.Item] = []
        self._document: dict[str, Any] | None = None
        self._not_chosen: list[LeftOut] | None = None
        """Doesn't change in a run; to find it, all records are read."""
        self._start = time.time()

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Keep those of the deselected tests that use the plugin."""
        self._deselected += filter(uses_plugin, items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note what was collected, and write the first state of a folder."""
        if REFUSAL in self._config.stash or self._config.option.collectonly:
            return
        self._results.expect({item.nodeid: vars(new_entry(item)) for item in session.items if uses_plugin(item)})
        self._renew()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Say that a test has begun."""
        if (test := self._results.tests.get(nodeid)) and test["outcome"] == "unfinished":
            test["ending"] = "running"
        self._renew()

    def finish(self, session: pytest.Session) -> None:
        """Write the final state to ``--starpullm-report`` or into pytest's cache, if a test uses the plugin."""
        self._results.end()
        if not self._results.tests:
            return
        path = self._validation.report or self._path_in_cache()
        if path is None:
            return
        document = self._current()
        document.update(
            state="ended",
            exit_status=int(session.exitstatus),
            failed=session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED),
            stopped=self._stopped(session),
            not_checked=self._not_checked(),
            isolation=dict(self._results.costs) or None,
        )
        self._write_last(path, document, session)

    @property
    def _writes_folder(self) -> bool:
        return self._validation.report_is_folder and self._validation.rank == 0 and not is_worker(self._config)

    def _write_last(self, path: Path, document: dict[str, Any], session: pytest.Session) -> None:
        from starpullm.report.document import write_document

        try:
            if self._validation.report_is_folder:
                self._folder.write(document)
                path = self._folder.page_path
            else:
                write_document(document, path)
        except StarpullmError as error:
            asked = self._validation.report is not None
            self._results.notes.append(f"{self._validation.label('report') if asked else 'report'}: {error}")
            if asked:
                session.exitstatus = pytest.ExitCode.USAGE_ERROR
        else:
            self._results.notes.append(f"report: {path}")

    def _path_in_cache(self) -> Path | None:
        why = "not written: pytest's cache is switched off, expected --starpullm-report"
        try:
            if self._config.pluginmanager.has_plugin("cacheprovider"):
                return self._config.cache.mkdir("starpullm") / "report.json"
        except OSError as error:
            why = str(error)
        self._results.notes.append(f"report: {why}")
        return None

    def _renew(self) -> None:
        """Write the state so far into a folder; a failure is reported at the end, when it is tried again."""
        if self._results.tests and self._writes_folder:
            with suppress(FileError):
                self._folder.renew(self._current())

    @cached_property
    def _folder(self) -> ReportFolder:
        from starpullm.report.folder import ReportFolder

        assert self._validation.report is not None
        return ReportFolder(self._validation.report)

    def _current(self) -> dict[str, Any]:
        """Return the document as far as it is known now."""
        from starpullm.report.document import new_document

        options = self._validation
        if self._document is None:
            arguments = [str(argument) for argument in self._config.invocation_params.args]
            self._document = new_document("pytest", arguments, ranks=options.ranks, seed=options.seed)
            self._document["time"] = self._start
        if self._document["environment"] is None and (self._deselected or self._results.tests):
            from starpullm.pytest_plugin.not_checked import selection

            with suppress(UnknownMachineError):
                self._document["environment"] = options.machine
                self._document["selection"] = selection(options)
        self._document.update(
            tests=list(self._results.tests.values()),
            running=[name for name, test in self._results.tests.items() if test["ending"] == "running"],
            not_checked=self._not_checked(),
            notes=list(self._results.notes),
        )
        return self._document

    def _not_checked(self) -> list[dict[str, Any]]:
        if self._document is None or self._document["environment"] is None:
            return []
        from starpullm.checks.left_out import LeftOut
        from starpullm.pytest_plugin import not_checked

        entries: list[LeftOut] = []
        if self._config.pluginmanager.hasplugin("dsession"):
            entries.append(
                LeftOut("tests that were deselected", "not known: the workers of pytest-xdist have collected")
            )
        entries += not_checked.deselected(self._deselected, self._validation)
        if self._not_chosen is None:
            self._not_chosen = list(not_checked.not_chosen(self._validation))
        entries += self._not_chosen
        entries += self._validation.left_out.values()
        return [dataclasses.asdict(entry) for entry in entries]

    def _stopped(self, session: pytest.Session) -> str | None:
        """Return why the run ended before its last test, if it did."""
        reason = session.shouldfail or session.shouldstop
        if reason:
            return str(reason)
        return _ENDINGS.get(session.exitstatus)  # type: ignore[call-overload,no-any-return]
