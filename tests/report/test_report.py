"""The report's JSON file and page, without a browser: the schema, the verdict, links, and what is refused."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from starpullm.commands import main
from starpullm.commands.main import EXIT_BAD_INPUT
from starpullm.errors import FormatError, MissingDependencyError
from starpullm.report import ReportFolder, new_document, read_document, require_packages, write_document
from starpullm.report.block_graph import block_graph_of
from starpullm.report.document import schema
from starpullm.report.left_out import LeftOut, beyond
from starpullm.report.page import render
from starpullm.report.scaling_plots import scaling_plots
from starpullm.report.task_graph import task_graph_of
from starpullm.report.throughput import speeds_of
from starpullm.report.verdict import check_rows, not_checked, verdict_of
from starpullm.report.violations import violations_of
from starpullm.report.workers import workers_of

from .reports import entry, failing, gradients, killed, merged, parity, passing, recording, throughput

Document = dict[str, Any]
SECTIONS = (
    "runs checked not-checked parity failures graph workers reductions throughput mutation tests environment".split()
)


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


@pytest.mark.parametrize("make", [passing, failing, killed, merged])
def test_documents_are_as_the_schema_says(make: Callable[[], Document], tmp_path: Path) -> None:
    """jsonschema and the package's own validator agree."""
    jsonschema.Draft7Validator.check_schema(schema())
    document = make()
    jsonschema.Draft7Validator(schema()).validate(document)
    write_document(document, tmp_path / "report.json")
    assert read_document(tmp_path / "report.json") == document


@pytest.mark.parametrize("make", [passing, failing, killed, merged])
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
    assert "</script><i>" not in text  # charts have the names of tests too
    absent = {
        passing: ["runs", "failures"],
        failing: ["runs"],
        killed: ["runs", "failures", "graph", "workers"],
        merged: ["mutation"],
    }[make]
    assert [name for name in page.ids if name in SECTIONS] == [name for name in SECTIONS if name not in absent]


def test_verdicts() -> None:
    def verdict(**changes: Any) -> tuple[str, str]:
        found = verdict_of({**passing(), **changes})
        return found.kind, found.word

    skipped = entry("test_a", "parity", "skipped", message="inconclusive")
    failed = entry("test_b", "parity", "failed")
    some = passing()["tests"]
    assert verdict() == ("passed", "Passed")
    assert verdict(tests=[*some, skipped]) == ("passed", "Passed, as far as it was checked")
    assert verdict(tests=[*some, failed], exit_status=1) == ("failed", "Failed")
    assert verdict(tests=[*some, failed], exit_status=1, stopped="stopping after 1 failures")[0] == "failed"
    assert verdict(stopped="it was interrupted", exit_status=2) == ("unfinished", "Stopped early")
    assert verdict(state="running", exit_status=None) == ("unfinished", "Not finished")
    assert verdict(exit_status=1) == ("failed", "Failed")  # something else in the run has failed
    assert verdict(tests=[skipped], throughput=[], mutation=None) == ("nothing", "Nothing was checked")
    assert verdict(tests=[], throughput=[], mutation=None, exit_status=5) == ("nothing", "Nothing was checked")
    assert verdict(tests=[]) == ("unfinished", "Open mutants")
    assert verdict(tests=[], mutation=None) == ("passed", "Measured")
    assert verdict(tests=[], throughput=[{**throughput(1.0), "failure": "died"}])[0] == "failed"


def test_what_was_compared_is_counted() -> None:
    rows = {row.name: row for row in check_rows(failing())}
    assert (rows["parity"].compared, rows["parity"].unit) == (6 * 570, "tensors")
    assert (rows["parity"].passed, rows["parity"].failed, rows["parity"].undecided) == (4, 1, 1)
    assert (rows["gradient error"].compared, rows["gradient error"].failed) == (9 * 5, 1)
    left_out = [(what, reason) for what, reason, _ in not_checked(failing())]
    assert left_out[0] == ("not comparable (parity)", "parity: not comparable: this libm has another expf")
    assert ("throughput", "only with --starpullm-benchmark") in left_out


def test_a_cell_leads_to_its_failure() -> None:
    text = render(failing())
    [anchor] = re.findall(r'<a href="#([^"]+)">step 1, grads/qkvw\[1\]</a>', text)
    failure = text.partition(f'id="{anchor}"')[2].partition("</article>")[0]
    for words in ("[1, 1], number 17", "1 (0x3f800000)", "1.0000004 (0x3f800003)", "3 ULP", "3 of 768"):
        assert words in failure
    assert "matmul_backward_weight (step 1, sub-batch 0, layer 1) on worker 1 of rank 0" in failure


def test_task_graph() -> None:
    """Twelve blocks are twelve rows; every edge is drawn or counted; a violation joins the boxes of its tasks."""
    document = failing()
    picture = task_graph_of(document["recordings"][0], violations_of(document))
    assert picture is not None
    assert [name for name, _ in picture.rows][:2] == ["embedding", "block 0"]
    assert len(picture.rows) == 14
    assert [name for name, _ in picture.columns] == ["forward 0", "forward 1", "backward 0", "backward 1", "update"]
    between = sum(count for before, _, _, count in picture.table if before != "the step before")
    assert between == sum(line.count for line in picture.lines)
    assert {line.kind for line in picture.lines} <= {"activation", "gradient", "parameter", "reuse"}
    [violation] = picture.violations
    assert "attention_backward (step 1, sub-batch 0, layer 1) → matmul_backward_weight" in violation.title
    crowded = task_graph_of(recording(sub_batches=8), [])
    assert crowded is not None
    assert [name for name, _ in crowded.columns] == ["forward", "backward", "update"]


def test_unfolded_block() -> None:
    """It is the block of the violation, with the violation; without one it is the middle block."""
    document = failing()
    picture = block_graph_of(document["recordings"][0], violations_of(document))
    assert picture is not None
    assert (picture.layer, picture.sub_batch) == (1, 0)
    assert [name for name, _ in picture.columns] == ["forward", "backward", "update"]
    assert len(picture.boxes) == 5
    assert len(picture.table) == len(picture.lines) > 0
    assert len(picture.violations) == 1
    quiet = block_graph_of(document["recordings"][0], [])
    assert quiet is not None
    assert (quiet.layer, quiet.violations) == (6, ())


def test_workers() -> None:
    chart = workers_of(recording(workers=3))
    assert chart is not None
    assert [row.tasks for row in chart.rows] == [row.tasks for row in chart.rows][::-1]
    assert chart.num_tasks == sum(row.tasks for row in chart.rows)
    assert chart.rows[0].busy == pytest.approx(0.0009 * chart.rows[0].tasks)
    assert chart.rows[1].longest_gap == pytest.approx(0.0021)  # two tasks of others, and the pauses around them


def test_a_hundred_thousand_tasks_take_little_space() -> None:
    document = passing()
    document["recordings"] = [recording(layers=12, steps=900)]
    assert len(document["recordings"][0]["tasks"]["step"]) > 100_000
    assert len(render(document)) < 16_000_000


def test_limit_in_tokens() -> None:
    """8 · 64 tokens take 10^9 operations, of which the limit is 100 · 10^9 a second."""
    [row] = speeds_of({**passing(), "throughput": [throughput(12.0)]})
    assert row.limit == pytest.approx(8 * 64 / 10)
    assert row.fraction == "50.0 %"
    noisy = {**throughput(12.0), "matmul_gflops": 40.0, "matmul_limit_range": [80.0, 100.0]}
    assert speeds_of({**passing(), "throughput": [noisy]})[0].fraction == "40.0 to 50.0 %"


def test_charts_of_scaling() -> None:
    """They are the paper's figures, as far as there are several points on a line."""
    document = passing()
    assert [plot.title for plot in scaling_plots(document)] == [
        "Strong scaling: small, B = 8",
        "Strong scaling: small, B = 16",
        "Weak scaling: small, B = 8 per core",
        "Partitions by batch size: small, 1 core",
        "Partitions by batch size: small, 2 cores",
    ]
    for plot in scaling_plots(document):
        assert len(plot.draw().renderers) >= 3  # a line, its points and the limit
    assert scaling_plots({**document, "throughput": document["throughput"][:1]}) == []


def test_a_transfer_has_no_worker() -> None:
    document = failing()
    [writer] = document["tests"][5]["results"][0]["first"]["writers"]
    writer.update(operation="transfer", worker=-1)
    assert "transfer (step 1, sub-batch 0, layer 1) on rank 0" in render(document, charts=False)


def test_cores_of_a_rank() -> None:
    assert beyond(1, 2) == LeftOut("partitions of more than 1 core", "each rank has 1 core")
    assert beyond(2, 1) == LeftOut("partitions of more than 2 cores", "this machine has 2 cores")


def refused(change: Callable[[Document], object], tmp_path: Path) -> str:
    document = copy.deepcopy(passing())
    change(document)
    path = tmp_path / "report.json"
    path.write_text(json.dumps(document))
    with pytest.raises(FormatError) as error:
        read_document(path)
    return str(error.value)


def test_other_content_is_refused(tmp_path: Path) -> None:
    def of(change: Callable[[Document], object]) -> str:
        return refused(change, tmp_path).removeprefix(f"{tmp_path}/report.json: ")

    assert of(lambda document: document.update(version=1)) == "found version 1, expected a report of version 3"
    assert "tests[0].outcome must be one of" in of(lambda document: document["tests"][0].update(outcome="good"))
    assert "must contain" in of(lambda document: document.pop("seed"))
    assert of(lambda document: document["recordings"][0]["tasks"]["step"].pop()).startswith(
        "recordings, tasks: found columns of l"
    )
    assert of(lambda document: document["recordings"][0]["edges"]["before"].__setitem__(0, 10**6)) == (
        "recordings, before: found 1000000, expected numbers below 234"
    )


def test_report_command(tmp_path: Path) -> None:
    """The page is made again; without a report in the folder there is one sentence, and no page."""
    folder = tmp_path / "out"
    ReportFolder(folder).write(passing())
    first = (folder / "index.html").read_text()
    (folder / "index.html").unlink()
    done = CliRunner().invoke(main, ["report", str(folder)])
    assert done.exit_code == 0, done.output
    assert done.output == f"saved {folder}/index.html\n"
    again = (folder / "index.html").read_text()
    assert Page(again).links == Page(first).links
    empty = tmp_path / "empty"
    empty.mkdir()
    refusal = CliRunner().invoke(main, ["report", str(empty)])
    assert refusal.exit_code == EXIT_BAD_INPUT
    assert refusal.output == f"Error: {empty}/report.json: can't be read: No such file or directory\n"
    (empty / "report.json").write_text("{")
    refusal = CliRunner().invoke(main, ["report", str(empty)])
    assert refusal.exit_code == EXIT_BAD_INPUT
    assert refusal.output.startswith(f"Error: {empty}/report.json: expected a report in JSON: ")
    assert [path.name for path in empty.iterdir()] == ["report.json"]


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
