"""The report's JSON file and page, without a browser: the verdict, claims, links, and what is refused."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from starpullm.checks.left_out import LeftOut, beyond
from starpullm.checks.result import Outcome, Result
from starpullm.errors import MissingDependencyError
from starpullm.report.document import new_document, write_document
from starpullm.report.failures import failure_groups, failures, reason_of
from starpullm.report.folder import PageError, ReportFolder, require_packages
from starpullm.report.page import render
from starpullm.report.pipeline import passes_of
from starpullm.report.tables import matrices
from starpullm.report.verdict import claim_rows, not_checked, verdict_of
from starpullm.report.workers import workers_of

from . import pictures
from .report_json import read_report
from .reports import entry, failing, gradients, killed, parity, passing, recording

Document = dict[str, Any]
SECTIONS = "chosen not-checked parity failures workers errors tests environment".split()


class Page(HTMLParser):
    """What a page links to, what it contains, and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.headings: list[int] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        if values.get("id"):
            self.ids.append(str(values["id"]))
        if tag == "a":
            self.links.append(str(values["href"]))
        elif tag == "link":
            self.loaded += [str(values["href"])]
        self.loaded += [str(values["src"])] if values.get("src") else []
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))


@pytest.mark.parametrize("make", [passing, failing, killed])
def test_what_is_written_can_be_read(make: Callable[[], Document], tmp_path: Path) -> None:
    document = make()
    write_document(document, tmp_path / "report.json")
    assert read_report(tmp_path / "report.json") == document


@pytest.mark.parametrize("make", [passing, failing, killed])
def test_page(make: Callable[[], Document]) -> None:
    """Links lead somewhere, nothing is loaded, headings skip no level, and text of a run isn't taken for HTML."""
    text = render(make())
    page = Page(text)
    assert len(set(page.ids)) == len(page.ids)
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    assert page.loaded == ["data:,"]
    assert "@import" not in text.partition("</style>")[0]
    assert all(after - before <= 1 for before, after in zip(page.headings, page.headings[1:], strict=False))
    assert "<script>alert" not in text
    assert "<b>step 1</b>" not in text
    assert "</script><i>" not in text
    absent = {
        passing: ["failures"],
        failing: [],
        killed: ["failures", "workers"],
    }[make]
    assert [name for name in page.ids if name in SECTIONS] == [name for name in SECTIONS if name not in absent]


def test_verdicts() -> None:
    def verdict(**changes: Any) -> tuple[str, str]:
        return verdict_of({**passing(), **changes})[:2]

    skipped = entry("test_a", "parity", "skipped", message="inconclusive")
    failed = entry("test_b", "parity", "failed")
    some = passing()["tests"]
    assert verdict() == ("passed", "Passed")
    assert verdict(tests=[*some, skipped]) == ("passed", "Passed, as far as it was checked")
    assert verdict(tests=[*some, failed], exit_status=1) == ("failed", "Failed")
    assert verdict(tests=[*some, failed], exit_status=1, stopped="stopping after 1 failures")[0] == "failed"
    assert verdict(stopped="it was interrupted", exit_status=2) == ("unfinished", "Stopped early")
    not_run = entry("test_c", "parity", "unfinished", ending="not run")
    assert verdict(tests=[*some, not_run]) == ("unfinished", "Stopped early")  # by pytest.exit with status 0
    assert verdict(state="running", exit_status=None) == ("unfinished", "Not finished")
    assert verdict(exit_status=1, failed=True) == ("failed", "Failed")  # something else in the run has failed
    assert verdict(tests=[skipped]) == ("nothing", "Nothing was checked")
    assert verdict(tests=[], exit_status=5) == ("nothing", "Nothing was checked")


def own(check: str, compared: int, unit: str, outcome: Outcome = Outcome.PASSED) -> Document:
    return Result(check=check, outcome=outcome, sentence="so", compared=compared, unit=unit).as_json()


def test_what_was_compared_is_counted() -> None:
    rows = {row["claim"]: row for row in claim_rows(failing())}
    bits = rows["every tensor of every step has the bits of llm.c"]
    expected = {"compared": "3,420 tensors", "kind": "failed", "endings": "4 passed, 1 failed, 1 not comparable"}
    assert bits.items() >= expected.items()
    bounds = rows["every gradient is within the error bound of its sum"]
    assert (bounds["compared"], bounds["endings"]) == ("45 elements", "1 passed, 1 failed")
    left_out = [(what, reason) for what, reason, _ in not_checked(failing())]
    assert left_out[0] == ("not comparable (parity)", "parity: not comparable: matmuls by blas, expected strict ones")
    assert ("throughput", "only with --starpullm-benchmark") in left_out


def test_an_own_check_is_its_own_claim() -> None:
    document = passing()
    results = [own("energy", 3, "atoms", Outcome.FAILED), own("energy", 5, "bonds")]
    document["tests"] = [entry("test_mine", "other", "failed", *results)]
    [row] = claim_rows(document)
    assert row.items() >= {"claim": "energy", "compared": "3 atoms, 5 bonds", "endings": "0 passed, 2 failed"}.items()


def rows_of(*tests: Document, **changes: Any) -> list[tuple[str, str]]:
    return [(row["kind"], row["endings"]) for row in claim_rows({**passing(), "tests": list(tests), **changes})]


def test_a_claim_is_green_only_if_every_test_of_it_has_passed() -> None:
    """Whatever else has happened to one of them, before, in or after the check."""
    one = entry("test_bits[one]", "parity", "passed", parity("1x1"))
    assert rows_of(one) == [("passed", "1 passed, 0 failed")]
    without = {**parity("1x1"), "outcome": "no result", "compared": 0}
    for result, outcome, ending, kind in [
        (without, "failed", "hit its time limit", "failed"),
        (without, "unfinished", "not run", "undecided"),
        (parity("1x1"), "failed", "error in teardown", "failed"),
        (parity("1x1"), "skipped", "skipped", "undecided"),
        (parity("1x1"), "unfinished", "interrupted", "undecided"),
    ]:
        other = entry("test_bits[two]", "parity", outcome, result, ending=ending)
        assert rows_of(one, other) == [(kind, f"1 passed, 0 failed, 1 {ending}")]
        [matrix] = matrices({**passing(), "tests": [one, other]})
        [cell] = matrix["cells"].values()
        assert (cell.kind, cell.text, bool(cell.anchor)) == (kind, ending, outcome == "failed")
        assert matrices({**passing(), "tests": [other, one]})[0]["cells"].popitem()[1].kind == kind
    # Its fixture has failed, or it has not begun: the check isn't known, but that of its function's other tests.
    for outcome, ending, kind in (("failed", "error in setup", "failed"), ("unfinished", "not run", "undecided")):
        assert rows_of(one, entry("test_bits[two]", "parity", outcome, ending=ending)) == [
            (kind, f"1 passed, 0 failed, 1 {ending}")
        ]
    # A command tells only of comparisons that have ended.
    assert rows_of(one, command="starpullm parity") == [("passed", "1 passed, 0 failed")]
    assert rows_of(one, command="starpullm parity", stopped="by signal 15")[0][0] == "undecided"
    assert rows_of(one, command="starpullm parity", state="running")[0][0] == "undecided"


PYTEST_MESSAGE = """request = <FixtureRequest for <Function test_mine>>

    def test_mine(request):
>       assert 1 == 2
E       assert 1 == 2

test_mine.py:4: AssertionError
"""


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (PYTEST_MESSAGE, "assert 1 == 2"),
        ('Traceback (most recent call last):\n  File "x", line 1\nValueError: bad', "ValueError: bad"),
        (
            "  + Exception Group Traceback (most recent call last):\n    | ValueError: one\n    +------",
            "ValueError: one",
        ),
        ("parity: failed: 2 differ\n  first: step 1", "parity: failed: 2 differ"),
        ("", ""),
    ],
)
def test_a_failure_is_named_by_check_and_configuration(message: str, reason: str) -> None:
    assert reason_of(message) == reason
    document = passing()
    failed = own("runtime graph", 1, "required edges", Outcome.FAILED)
    document["tests"] = [
        entry("test_a[tiny]", "dependencies", "failed", failed, message=message),
        entry("test_b[odd]", "dependencies", "failed", failed, message=message),
        entry("test_mine[1]", "other", "failed", message=message),
        {**entry("test_mine[2]", "other", "failed", message=message), "configuration": "-"},
    ]
    found = failures(document)
    names = ["runtime graph on 2x1 lws", "runtime graph on 2x1 lws", "test_mine on 2x1 lws", "test_mine"]
    reasons = ["so", "so", reason, reason]  # a check has said its own
    assert [(failure.name, failure.reason) for failure in found] == list(zip(names, reasons, strict=True))
    assert [len(group) for group in failure_groups(found)] == [2, 1, 1]


def test_a_failed_check_is_shown_with_its_first_finding() -> None:
    document, message = passing(), "parity: failed: 2 differ\n\n  differs  grads/qkvw\n  differs  grads/qkvb"
    failed = own("parity", 1, "tensors", Outcome.FAILED)
    document["tests"] = [
        entry("test_a[tiny]", "parity", "failed", failed, message=message),
        entry("test_mine[1]", "other", "failed", message=message),
    ]
    assert [failure.finding for failure in failures(document)] == ["differs  grads/qkvw", ""]


def test_a_cell_leads_to_its_failure() -> None:
    text = render(failing())
    [anchor] = re.findall(r'<a href="#([^"]+)">step 1, grads/qkvw\[1\]</a>', text)
    failure = text.partition(f'id="{anchor}"')[2].partition("</article>")[0]
    assert "parity on 2x1 lws</h3>" in failure
    assert "first: &lt;b&gt;step 1&lt;/b&gt;" in failure


def test_workers() -> None:
    chart = workers_of(recording(workers=3))
    assert chart is not None
    tasks = [row["tasks"] for row in chart["rows"]]
    assert tasks == tasks[::-1]
    assert chart["num_tasks"] == sum(tasks)
    assert chart["rows"][0]["busy"] == pytest.approx(0.0009 * tasks[0])
    assert chart["rows"][1]["gap"] == pytest.approx(0.0021)  # two tasks of others, and the pauses around them


def test_passes_of_a_pipeline() -> None:
    """A worker's tasks of a kind for a sub-batch are one pass; of two stages and two sub-batches a third is idle."""
    recorded = recording(workers=1)
    assert passes_of(recorded) is None
    recorded["tasks"]["rank"] = [int(layer == 1) for layer in recorded["tasks"]["layer"]]
    drawn = passes_of(recorded)
    assert drawn is not None
    assert drawn["name"].endswith("the last as 1 × 2 stages; 33% idle by the formula")
    tasks = drawn["tasks"]
    of_last = [number for number, rank in enumerate(tasks["rank"]) if rank == 1]
    named = [f"{drawn['operations'][tasks['operation'][number]]} {tasks['sub_batch'][number]}" for number in of_last]
    assert named == ["forward 0", "forward 1", "backward 0", "weights 0", "backward 1", "weights 1"]
    chart = workers_of(drawn)
    assert chart is not None
    assert (chart["unit"], list(chart["colours"])) == ("passes", ["forward", "backward", "weights"])
    document = passing()
    document["recordings"] = [recorded]
    assert "33% idle by the formula" in render(document)


def test_many_tasks_take_little_space() -> None:
    document = passing()
    document["recordings"] = [recording(layers=12, steps=90)]
    assert len(document["recordings"][0]["tasks"]["step"]) > 10_000
    assert len(render(document)) < 1_600_000


def test_cores_of_a_rank() -> None:
    assert beyond(1, 2) == LeftOut("partitions of more than 1 core", "each rank has 1 core")
    assert beyond(2, 1) == LeftOut("partitions of more than 2 cores", "this machine has 2 cores")


def test_a_page_that_cannot_be_made_ends_nothing(tmp_path: Path) -> None:
    """During the run nothing is said; at its end the data are there, and one sentence."""
    document = passing()
    document["recordings"] = [{"tasks": {}}]
    folder = ReportFolder(tmp_path / "out")
    folder.renew(document)
    (tmp_path / "out" / "report.json").unlink()
    with pytest.raises(PageError, match=r"index.html: can't be made of report.json: KeyError: 'operations'"):
        folder.write(document)
    assert json.loads((tmp_path / "out" / "report.json").read_text())["tests"] == document["tests"]


def test_the_pictures_are_as_new_as_the_templates() -> None:
    """Drawings are sources themselves; every other picture of the pages is made by one command."""
    made_of = json.loads(pictures.RECORD.read_text("utf-8"))
    assert made_of == dict.fromkeys(pictures.PICTURES, pictures.digest_of_sources()), "python -m tests.report.pictures"
    assert {path.name for path in pictures.DOCS.iterdir() if path.suffix in (".png", ".jpg")} == set(made_of)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingDependencyError, match=r"needs jinja2, .*: pip install 'starpullm\[report\]'"):
        require_packages()
    with pytest.raises(MissingDependencyError):
        ReportFolder(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unfinished_report_is_renewed_now_and_then(tmp_path: Path) -> None:
    """Not after every test, which would slow a run down."""
    folder = ReportFolder(tmp_path / "out")
    document = new_document("pytest", [])
    folder.renew(document)
    first = (tmp_path / "out" / "report.json").read_text()
    document["tests"].append(entry("test_a", "parity", "passed", parity("1x1"), gradients(0.5)))
    folder.renew(document)
    assert (tmp_path / "out" / "report.json").read_text() == first
    folder.write(document)
    assert len(json.loads((tmp_path / "out" / "report.json").read_text())["tests"]) == 1
