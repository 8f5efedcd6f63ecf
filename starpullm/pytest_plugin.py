"""The pytest plugin: options, markers, fixtures, and what a run says about itself at its beginning and at its end.

pytest loads it with every run. Importing it loads nothing else of the package, and a run that uses none of its fixtures
and markers sees nothing of it but its options.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from starpullm import Runtime, Trainer
    from starpullm.checks.result import CheckResult
    from starpullm.isolation import Answer, CheckReport, Configuration, Pool
    from starpullm.records import GoldenRecord
    from starpullm.trace import Trace

__all__ = ["Checker", "Validation", "validation_of"]

MARKERS = {
    "parity": "every tensor has the bits of a golden record",
    "dependencies": "tasks run in the order that their accesses require",
    "reduction": "errors of sums are within their bounds, and bits as stable as promised",
}

FIXTURES = frozenset(
    {"starpullm_configuration", "starpullm_check", "starpullm_validation", "starpu_runtime", "trainer", "golden"}
    | {"task_trace"}
)
"""Whoever asks for one of them uses the plugin."""

DEFAULT_RECORDS = ("tiny", "odd", "small", "deep")
DEFAULT_TIME_LIMIT = 60.0
MAX_LINES = 25
"""So many lines of a result are shown; the report has all of it."""

REPORT_VERSION = 1


# ---- Options and markers ----


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("starpullm", "validation of starpullm")
    add = group.addoption
    add("--starpullm-lib", metavar="PATH", help="native library to validate, instead of the installed one")
    add(
        "--starpullm-partition",
        metavar="WxT",
        action="append",
        help="W workers of T threads, may be repeated; all (the default): 1x1 and those that use every core",
    )
    add("--starpullm-schedulers", metavar="NAME,…", help="StarPU's schedulers; lws by default")
    add("--starpullm-sub-batches", metavar="N,…", help="numbers, or all; 1 and one per sequence by default")
    add("--starpullm-reductions", metavar="NAME,…", help="ordered, tree, redux; all of them by default")
    add(
        "--starpullm-records",
        metavar="RECORD,…",
        help=f"golden records, by name or file; {','.join(DEFAULT_RECORDS)} by default",
    )
    add("--starpullm-seed", metavar="N", type=int, default=1, help="seed of generated batches and of StarPU; default 1")
    add(
        "--starpullm-timeout",
        metavar="SECONDS",
        type=float,
        default=DEFAULT_TIME_LIMIT,
        help=f"time limit of each check; {DEFAULT_TIME_LIMIT:g} by default",
    )
    add("--starpullm-fresh", action="store_true", help="a fresh process for each check")
    add("--starpullm-report", metavar="PATH", help="write the results to a JSON file")
    add("--starpullm-strict", action="store_true", help="skipped, not comparable, inconclusive: each is a failure")


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and refuse options that can't be served."""
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning} (starpullm)")
    validation = config.stash[_VALIDATION] = Validation(config)
    config.pluginmanager.register(validation, "starpullm-validation")
    validation.choose_library()
    if validation.has_options and not config.option.help:
        validation.check_options()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing running, and the environment as it was."""
    if _VALIDATION in config.stash:
        config.stash[_VALIDATION].close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise the fixtures by the options; tests with the same runtime come one after the other."""
    validation = validation_of(metafunc.config)
    if "starpullm_configuration" in metafunc.fixturenames:
        configurations = validation.configurations
        metafunc.parametrize(
            "starpullm_configuration",
            configurations,
            indirect=True,
            scope="session",
            ids=["-".join(configuration) for configuration in configurations],
        )
    if "golden" in metafunc.fixturenames:
        metafunc.parametrize("golden", validation.records, indirect=True, scope="session", ids=_record_id)


# ---- Fixtures ----


@pytest.fixture(scope="session")
def starpullm_validation(request: pytest.FixtureRequest) -> Validation:
    """Give the run's options, and the processes that its checks run in."""
    return validation_of(request.config)


@pytest.fixture(scope="session")
def starpullm_configuration(request: pytest.FixtureRequest) -> Configuration:
    """Partition and scheduler; a test that asks for it runs once for each."""
    configuration: Configuration = request.param
    return configuration


@pytest.fixture
def starpullm_check(
    request: pytest.FixtureRequest, starpullm_validation: Validation, starpullm_configuration: Configuration
) -> Checker:
    """Run a check in a process of its own: ``starpullm_check(function, **arguments)``.

    The function gets a ``starpullm.checks.runs.Place`` and the arguments, and returns a result. Unless that passed, the
    test fails, or is skipped if nothing could be compared. A crash or a hang fails this test only.
    """
    return Checker(starpullm_validation, request.node, starpullm_configuration)


@pytest.fixture(scope="session")
def starpu_runtime(
    starpullm_configuration: Configuration, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runtime]:
    """Start a ``Runtime`` in pytest's own process, one after the other for each partition and scheduler."""
    from starpullm import Runtime

    with pytest.MonkeyPatch.context() as patch:
        if "STARPU_HOME" not in os.environ:
            patch.setenv("STARPU_HOME", str(tmp_path_factory.mktemp("starpu")))
        with Runtime(starpullm_configuration.partition, starpullm_configuration.scheduler) as runtime:
            yield runtime


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> GoldenRecord:
    """Give a ``GoldenRecord``; a test that asks for it runs once for each of the chosen ones."""
    from starpullm.checks.runs import find_record

    return find_record(request.param)


@pytest.fixture
def trainer(starpu_runtime: Runtime, golden: GoldenRecord, tmp_path: Path) -> Iterator[Trainer]:
    """Make a ``Trainer`` of the record's model and settings, before its first step; it keeps activations and traces."""
    from starpullm.checks.runs import Place, new_trainer

    with new_trainer(Place(starpu_runtime, tmp_path), golden, trace=True) as new:
        yield new


@pytest.fixture
def task_trace(request: pytest.FixtureRequest, trainer: Trainer) -> Trace:
    """Give the ``Trace`` of four steps of generated batches, submitted one upon the other to ``trainer``."""
    from starpullm.checks.runs import trace_steps

    return trace_steps(trainer, request.config.getoption("--starpullm-seed"))


class Checker:
    """Runs checks for one test, and makes their outcomes the test's."""

    def __init__(self, validation: Validation, node: pytest.Item, configuration: Configuration | None) -> None:
        self.configuration = configuration
        self._validation = validation
        self._entry = node.stash.setdefault(_ENTRY, _Entry())
        self._entry.configuration = str(configuration) if configuration else "all"

    def __call__(self, function: Callable[..., CheckResult], **arguments: object) -> None:
        """Run a check where the test runs, and fail or skip the test unless it passed."""
        assert self.configuration is not None
        answer = self.run(self.configuration, function, **arguments)
        if not answer.reports:
            pytest.fail(f"{function.__name__} returned nothing, expected a result", pytrace=False)
        self.judge(answer.reports[0])

    def run(
        self, configuration: Configuration, function: Callable[..., CheckResult | None], **arguments: object
    ) -> Answer:
        """Call a function in the process of a configuration; fail the test if it doesn't answer."""
        answer = self._validation.pool.call(
            configuration, function, time_limit=self._validation.time_limit, **arguments
        )
        if answer.ending != "answered":
            self._entry.failure = answer.failure
            pytest.fail(answer.failure, pytrace=False)
        return answer

    def judge(self, report: CheckReport) -> None:
        """Fail or skip the test unless the check passed."""
        from starpullm.checks.result import Outcome

        self._entry.results.append({**report.details, "name": report.name, "outcome": report.outcome.value})
        if report.outcome is Outcome.PASSED:
            return
        more = len(report.lines) - MAX_LINES
        text = "\n".join([*report.lines[:MAX_LINES], *([f"  … and {more} lines more"] if more > 0 else [])])
        if report.outcome is Outcome.FAILED:
            pytest.fail(text, pytrace=False)
        pytest.skip(text)


# ---- The run ----


@dataclass
class _Entry:
    """What the plugin knows of one test beyond pytest's own report."""

    configuration: str = ""
    results: list[dict[str, Any]] = field(default_factory=list)
    failure: str = ""


class Validation:
    """One run of pytest: its options, the processes of its checks, and what came out."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._patch = pytest.MonkeyPatch()
        self._pool: Pool | None = None
        self._tests: dict[str, dict[str, Any]] = {}
        self._notes: list[str] = []
        self._used = False
        self._start = time.time()

    # Options

    @property
    def has_options(self) -> bool:
        """Whether options were given that have to be checked before anything runs."""
        names = ("lib", "partition", "schedulers", "sub_batches", "reductions", "records", "report", "timeout")
        values = {name: getattr(self._config.option, f"starpullm_{name}") for name in names}
        return values.pop("timeout") != DEFAULT_TIME_LIMIT or any(value is not None for value in values.values())

    @property
    def seed(self) -> int:
        """``--starpullm-seed``."""
        seed: int = self._config.getoption("--starpullm-seed")
        return seed

    @property
    def time_limit(self) -> float:
        """``--starpullm-timeout``."""
        seconds: float = self._config.getoption("--starpullm-timeout")
        return seconds

    @cached_property
    def machine(self) -> dict[str, Any]:
        """What ``starpullm doctor --json`` says, from a process of its own."""
        from starpullm.errors import StarpullmError
        from starpullm.isolation import machine_in_child

        try:
            return machine_in_child()
        except StarpullmError as error:
            raise pytest.UsageError(f"starpullm: this machine can't be inspected: {error}") from error

    @cached_property
    def configurations(self) -> list[Configuration]:
        """Partitions with schedulers, the partition's changing slowest."""
        from starpullm.isolation import Configuration

        return [
            Configuration(partition, scheduler) for partition in self._partitions() for scheduler in self._schedulers()
        ]

    @cached_property
    def records(self) -> list[str]:
        """Names of shipped records, and paths of others."""
        from starpullm.checks.runs import find_record
        from starpullm.errors import StarpullmError
        from starpullm.records import SHIPPED_RECORDS

        names = self._list("records") or list(DEFAULT_RECORDS)
        found = []
        for name in names:
            path = Path(self._config.invocation_params.dir, name)
            if name not in SHIPPED_RECORDS and not path.is_file():
                raise pytest.UsageError(
                    f'--starpullm-records: found "{name}", expected a file or one of {", ".join(SHIPPED_RECORDS)}'
                )
            found.append(name if name in SHIPPED_RECORDS else str(path))
            try:
                find_record(found[-1])
            except StarpullmError as error:
                raise pytest.UsageError(f"--starpullm-records: {error}") from error
        return found

    @cached_property
    def reductions(self) -> list[str]:
        """Reduction modes."""
        from starpullm.trainer import REDUCTIONS

        chosen = self._list("reductions") or list(REDUCTIONS)
        for name in chosen:
            if name not in REDUCTIONS:
                raise pytest.UsageError(
                    f'--starpullm-reductions: found "{name}", expected one of {", ".join(REDUCTIONS)}'
                )
        return chosen

    def sub_batches(self, record: str) -> list[int]:
        """Return the numbers of sub-batches for a record: those chosen that divide its batch."""
        from starpullm.checks.runs import find_record

        batch_size = find_record(record).batch_size
        chosen = self._list("sub_batches")
        if not chosen:
            return sorted({1, batch_size})
        divisors = [count for count in range(1, batch_size + 1) if batch_size % count == 0]
        if chosen == ["all"]:
            return divisors
        for text in chosen:
            if not text.isascii() or not text.isdigit() or int(text) < 1:
                raise pytest.UsageError(
                    f'--starpullm-sub-batches: found "{text}", expected positive numbers with commas between, or all'
                )
        return [count for count in divisors if str(count) in chosen]

    def check_options(self) -> None:
        """Raise a usage error for the first option that can't be served."""
        if not self.time_limit > 0:
            raise pytest.UsageError(f"--starpullm-timeout: found {self.time_limit:g}, expected a positive number")
        if not any(self.sub_batches(record) for record in self.records):
            raise pytest.UsageError(
                "--starpullm-sub-batches: expected a number that divides the batch of one of the records"
            )
        report = self._report_path()
        if report is not None and not report.parent.is_dir():
            raise pytest.UsageError(f"--starpullm-report: {report}: there is no directory {report.parent}")
        assert self.reductions
        assert self.configurations

    def choose_library(self) -> None:
        """Let this process and its children open the library that the user named."""
        chosen = self._config.getoption("--starpullm-lib")
        if chosen is not None:
            path = Path(self._config.invocation_params.dir, chosen)
            if not path.is_file():
                raise pytest.UsageError(f"--starpullm-lib: {path}: no such file")
            self._patch.setenv("STARPULLM_LIB", str(path))

    def _report_path(self) -> Path | None:
        path: str | None = self._config.getoption("--starpullm-report")
        return None if path is None else Path(self._config.invocation_params.dir, path)

    def _list(self, option: str) -> list[str]:
        text: str | None = getattr(self._config.option, f"starpullm_{option}")
        if text is None:
            return []
        parts = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if not parts:
            raise pytest.UsageError(f"--starpullm-{option.replace('_', '-')}: found nothing")
        return parts

    def _partitions(self) -> list[str]:
        from starpullm.errors import StarpullmError
        from starpullm.runtime import Partition

        cores = int(self.machine["cores"])
        chosen = []
        for text in self._config.getoption("--starpullm-partition") or ["all"]:
            if text == "all":
                divisors = [count for count in range(cores, 0, -1) if cores % count == 0]
                chosen += ["1x1", *(f"{workers}x{cores // workers}" for workers in divisors)]
                continue
            try:
                workers, threads = Partition.parse(text)
            except StarpullmError as error:
                raise pytest.UsageError(f"--starpullm-partition: {error}, or all") from error
            if workers * threads > cores:
                raise pytest.UsageError(
                    f"--starpullm-partition: found {text}, which needs {workers * threads} cores, expected at most "
                    f"{cores}: this machine has no more"
                )
            chosen.append(text)
        return list(dict.fromkeys(chosen))

    def _schedulers(self) -> list[str]:
        from starpullm.runtime import DEFAULT_SCHEDULER

        chosen = self._list("schedulers") or [DEFAULT_SCHEDULER]
        for name in chosen:
            if name not in self.machine["schedulers"]:
                raise pytest.UsageError(
                    f'--starpullm-schedulers: found "{name}", expected one of {", ".join(self.machine["schedulers"])}'
                )
        return chosen

    # Processes

    @property
    def pool(self) -> Pool:
        """The processes of the checks, from the first use on."""
        from starpullm.isolation import Pool

        if self._pool is None:
            fresh = self._config.getoption("--starpullm-fresh")
            self._pool = Pool({"STARPU_RAND_SEED": str(self.seed)}, sticky=not fresh)
        return self._pool

    def close(self) -> None:
        """End the processes; may be called twice."""
        if self._pool is not None:
            self._pool.close()
        self._patch.undo()

    # What pytest asks for

    def pytest_report_collectionfinish(self, config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
        """Show the environment, if a test uses the plugin."""
        self._used = any(_uses_plugin(item) for item in items)
        if not self._used or config.option.collectonly:
            return []
        machine = self.machine
        known = "known" if machine["libm_known"] else "unknown: golden records aren't comparable"
        return [
            f"starpullm: {machine['version']}, {machine['library']}",
            f"starpullm: StarPU {machine['starpu_version']}, kernels {machine['simd_level']}, libm {known}, "
            f"{machine['cores']} cores, {machine['processor']}",
        ]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add what the plugin knows to the report, and make skips failures if that was asked for."""
        report = yield
        if not _uses_plugin(item):
            return report
        strict = self._config.getoption("--starpullm-strict")
        if strict and report.skipped and not hasattr(report, "wasxfail"):
            reason = _message(report)
            report.outcome = "failed"
            report.longrepr = f"{reason}\n--starpullm-strict: expected a result, not a skip"
        if report.when == "call" or not report.passed:
            entry = item.stash.get(_ENTRY, _Entry())
            vars(report)["starpullm"] = {  # as pytest does with what plugins add: it also crosses processes
                "family": next((name for name in MARKERS if item.get_closest_marker(name)), "other"),
                "configuration": entry.configuration or _configuration_of(item),
                "results": entry.results,
                "failure": entry.failure,
            }
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what the summary and the JSON file need."""
        told = getattr(report, "starpullm", None)
        if told is None:
            return
        known = self._tests.get(report.nodeid)
        if known is not None and report.passed:
            return
        self._tests[report.nodeid] = {
            "test": report.nodeid,
            **told,
            "outcome": report.outcome,
            "seconds": report.duration + (known["seconds"] if known else 0),
            "message": "" if report.passed else _message(report),
        }

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """End the processes, and write the report."""
        if self._pool is not None:
            self._pool.close()
        path = self._report_path()
        if path is not None and not hasattr(self._config, "workerinput"):
            try:
                self._write_report(path)
            except OSError as error:
                self._notes.append(f"--starpullm-report: {path} can't be written: {error.strerror}")
                session.exitstatus = pytest.ExitCode.USAGE_ERROR

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, object, object]:
        """Write a line for each family and configuration, before pytest shows the failures."""
        if self._tests or self._notes:
            terminalreporter.section("starpullm", "=")
            for line in self.summary_lines():
                terminalreporter.line(line)
        return (yield)

    def summary_lines(self) -> list[str]:
        """Return a line for each family and configuration, and what the processes cost."""
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for test in self._tests.values():
            groups.setdefault((test["family"], test["configuration"]), []).append(test)
        order = [*MARKERS, "other"]
        rows = []
        for (family, configuration), tests in sorted(groups.items(), key=lambda item: order.index(item[0][0])):
            counts = Counter(test["outcome"] for test in tests)
            told = ", ".join(
                f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped") if counts[outcome]
            )
            rows.append((family, configuration, told, f"{sum(test['seconds'] for test in tests):.1f} s"))
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
        lines = [
            f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]:{widths[2]}}  {row[3]:>{widths[3]}}" for row in rows
        ]
        if self._pool is not None and self._pool.costs.served:
            lines.append(f"isolation: {self._pool.costs}")
        return lines + self._notes

    def _write_report(self, path: Path) -> None:
        costs = self._pool.costs if self._pool is not None else None
        report = {
            "version": REPORT_VERSION,
            "time": self._start,
            "environment": self.machine if self._used else None,
            "seed": self.seed,
            "isolation": {
                "processes": len(costs.starts),
                "served": costs.served,
                "seconds_per_process": costs.per_process,
                "seconds_saved": costs.saved,
            }
            if costs
            else None,
            "tests": list(self._tests.values()),
        }
        unfinished = path.with_name(f"{path.name}.unfinished")
        unfinished.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", "utf-8")
        unfinished.rename(path)


def validation_of(config: pytest.Config) -> Validation:
    """Return the run that a configuration of pytest belongs to."""
    return config.stash[_VALIDATION]


_VALIDATION = pytest.StashKey[Validation]()
_ENTRY = pytest.StashKey[_Entry]()


def _uses_plugin(item: pytest.Item) -> bool:
    return not FIXTURES.isdisjoint(getattr(item, "fixturenames", ())) or any(
        item.get_closest_marker(name) for name in MARKERS
    )


def _configuration_of(item: pytest.Item) -> str:
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get("starpullm_configuration", "-")) if callspec else "-"


def _record_id(record: str) -> str:
    return Path(record).stem


def _message(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return report.longreprtext
