"""The suite, collected once and then run on one library after the other, each time in a fork of this process.

A laboratory starts it: ``python -m tests.mutation.generated.server FD RANKS PYTEST-ARGUMENTS``. The requests and the
results are lines of JSON on a socket. With several ranks the checks run in jobs of mpirun, as they do when pytest runs
over ranks; pytest itself is one process.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import pytest

import starpullm.pytest_plugin
from starpullm.checks import isolation
from starpullm.checks.check import all_checks
from starpullm.processes import children  # noqa: F401
from starpullm.pytest_plugin import options as plugin_options
from starpullm.pytest_plugin import validation_of

from .forked import Clock, forked_or_started

LAST_TEST = "the end of a process"
"""What a child that fails when all checks have been answered is reported as."""


class Server:
    """A plugin of pytest that runs what is asked for in place of all collected tests."""

    def __init__(self, connection: socket.socket, ranks: int) -> None:
        self._stream = connection.makefile("rw", encoding="utf-8", newline="\n")
        self._ranks = ranks
        self._failed = False
        self._limit = 60

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Answer requests until the laboratory closes the connection."""
        items = {item.nodeid: item for item in session.items}
        self._send({"tests": list(items)})
        for line in self._stream:
            request = json.loads(line)
            pid = os.fork()
            if pid == 0:
                self._run([items[name] for name in request["tests"]], request)
            ending = _wait(pid, time.monotonic() + request["seconds"])
            self._send({"ending": ending})
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        """Start the clock of a test."""
        Clock.start(self._limit)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send what has become of a test."""
        if report.when == "call" or report.outcome != "passed":
            self._failed |= report.failed
            message = "" if report.passed else str(report.longrepr if report.failed else report.longreprtext)
            self._send({"test": report.nodeid, "outcome": report.outcome, "message": message[:2000], "cpu": Clock.used})

    def _run(self, items: Sequence[pytest.Item], request: Mapping[str, Any]) -> NoReturn:
        """Run tests until one fails, in a process that was just forked."""
        os.setsid()
        os.chdir(request["folder"])
        tempfile.tempdir = request["folder"]
        os.environ.update(request["environment"])
        self._limit = request["limit"]
        if self._ranks > 1:  # of the processes that mpirun starts
            _, hard = resource.getrlimit(resource.RLIMIT_CPU)
            resource.setrlimit(resource.RLIMIT_CPU, (self._limit, hard))
        try:
            for number, item in enumerate(items):
                following = items[number + 1] if number + 1 < len(items) else None
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if self._failed:
                    os._exit(0)  # the server ends the children
            pool = validation_of(items[0].config).pool
            pool.close()
            for failure in pool.failures:
                self._send({"test": LAST_TEST, "outcome": "failed", "message": failure[:2000], "cpu": 0})
        except BaseException as error:  # a fork must not go on as the server
            self._send({"test": "pytest", "outcome": "failed", "message": repr(error), "cpu": 0})
        finally:
            os._exit(0)

    def _send(self, message: Mapping[str, object]) -> None:
        self._stream.write(json.dumps(message) + "\n")
        self._stream.flush()


def _wait(pid: int, deadline: float) -> str:
    """Return how a fork has ended, and end what it leaves."""
    ending = ""
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            number = os.waitstatus_to_exitcode(status)
            ending = ending or ("" if number == 0 else f"pytest ended with {number}")
            break
        if time.monotonic() > deadline and not ending:
            ending = "time limit"
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return ending


class OneProcess:
    """In place of the plugin's connection to the other ranks of pytest, of which there are none."""

    def __init__(self, config: pytest.Config, time_limit: float) -> None:
        del config, time_limit

    def refuse_together(self, error: pytest.UsageError | None) -> None:
        """Leave the refusal to the caller."""


def main() -> int:
    """Run the command line."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    ranks = int(sys.argv[2])
    all_checks()  # imported once, before the forks
    setattr(isolation, "Child", forked_or_started)  # noqa: B010
    if ranks > 1:
        for module in (plugin_options, starpullm.pytest_plugin):
            setattr(module, "rank_and_size", lambda *_: (0, ranks))  # noqa: B010
        setattr(starpullm.pytest_plugin, "RankedRun", OneProcess)  # noqa: B010
    return int(pytest.main(sys.argv[3:], plugins=[Server(connection, ranks)]))


if __name__ == "__main__":
    sys.exit(main())
