"""The report's page in a real browser: no error, nothing loaded, no overlap, nothing empty, in both colours and widths.

Skipped where there is no Chromium; ``ci/bootstrap.sh tox`` installs it where it can.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from starpullm.report import ReportFolder

from .reports import OPERATIONS, failing, killed, merged, passing, recording

WIDTHS = {"phone": 390, "desktop": 1440}
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Chromium without a window and with an empty profile."""
    chromium, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if chromium is None or driver is None:
        pytest.skip("no chromium with chromedriver: apt-get install chromium chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options, Service(driver))
    found.set_page_load_timeout(60)
    found.set_script_timeout(60)
    try:
        yield found
    finally:
        found.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages of all sample reports, by name."""
    large = passing()
    large["recordings"] = [recording(layers=12, steps=900, workers=8)]
    documents = {"passing": passing(), "failing": failing(), "killed": killed(), "merged": merged(), "large": large}
    directory = tmp_path_factory.mktemp("pages")
    for name, document in documents.items():
        ReportFolder(directory / name).write(document)
    return {name: directory / name / "index.html" for name in documents}


def open_page(browser: Any, page: Path, width: int = 1440, scheme: str = "light") -> None:
    """Open a page, and wait until its charts are drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(page.as_uri())
    drawn = "return document.querySelector('[data-root-id]') ? document.documentElement.dataset.charts : 'drawn'"
    WebDriverWait(browser, 60).until(lambda found: found.execute_script(drawn) == "drawn")


# Boxes that lie side by side or one above the other: none may cover a part of another one.
OVERLAPS = """
const found = []
for (const group of [document.querySelectorAll('main > section, header, footer'),
                     document.querySelectorAll('.card'), document.querySelectorAll('article.failure')]) {
  const boxes = [...group].map((element) => [element, element.getBoundingClientRect()])
  for (const [a, x] of boxes) for (const [b, y] of boxes)
    if (a !== b && x.left < y.right - 1 && y.left < x.right - 1 && x.top < y.bottom - 1 && y.top < x.bottom - 1)
      found.push(`${a.id || a.className} and ${b.id || b.className}`)
}
return found
"""

# What isn't inside a region that scrolls by itself has to fit into the window.
TOO_WIDE = """
return [...document.body.querySelectorAll('*')]
  .filter((element) => !element.closest('.wide') && !element.closest('[data-root-id]') && !element.closest('.skip'))
  .filter((element) => element.getBoundingClientRect().right > window.innerWidth + 1)
  .map((element) => `${element.tagName} ${element.id} ${element.className}`)
"""

EMPTY = """
return [...document.querySelectorAll('main > section, .card, figure')]
  .filter((element) => element.getBoundingClientRect().height < 40
    || (element.tagName !== 'FIGURE' && element.innerText.trim().split('\\n').length < 2))
  .map((element) => element.id || element.outerHTML.slice(0, 80))
"""

# WCAG 2: the contrast of texts with what lies behind them.
CONTRAST = """
const parse = (text) => (text.match(/[0-9.]+/g) ?? []).map(Number)
const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
  .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0)
const behind = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = parse(getComputedStyle(at).backgroundColor)
    if (colour.length === 3 || colour[3] > 0) return colour
  }
  return [255, 255, 255]
}
const poor = new Set()
for (const element of document.querySelectorAll('p, li, td, th, a, h1, h2, h3, dt, dd, summary, code, pre, caption')) {
  const [a, b] = [light(parse(getComputedStyle(element).color)), light(behind(element))]
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)
  if (ratio < 4.5) poor.add(`${element.tagName} ${element.className}: ${ratio.toFixed(2)}`)
}
return [...poor]
"""


VIEWS = {
    "passing": [("phone", "light"), ("desktop", "dark")],
    "failing": [("phone", "dark"), ("desktop", "light")],
    "killed": [("phone", "dark"), ("desktop", "light")],
    "merged": [("phone", "light"), ("desktop", "dark")],
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", VIEWS)
def test_page_in_a_browser(browser: Any, pages: dict[str, Path], name: str) -> None:
    for width, scheme in VIEWS[name]:
        open_page(browser, pages[name], WIDTHS[width], scheme)
        where = f"{name}, {width}, {scheme}"
        errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        assert errors == [], where
        assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth"), where
        assert browser.execute_script(TOO_WIDE) == [], where
        assert browser.execute_script(OVERLAPS) == [], where
        assert browser.execute_script(EMPTY) == [], where
        assert browser.execute_script(CONTRAST) == [], where
        loaded = "return performance.getEntriesByType('resource').map((entry) => entry.name)"
        assert [url for url in browser.execute_script(loaded) if not url.startswith("data:")] == [], where


@pytest.mark.timeout(60)
def test_a_failure_is_one_click_away(browser: Any, pages: dict[str, Path]) -> None:
    open_page(browser, pages["failing"])
    browser.find_element("css selector", "#parity td.failed a").click()
    shown = browser.execute_script("return document.querySelector(':target').innerText")
    assert "1.0000004 (0x3f800003)" in shown
    assert "written last by" in shown


@pytest.mark.timeout(60)
def test_everything_is_reached_by_the_keyboard(browser: Any, pages: dict[str, Path]) -> None:
    """The first stop skips to the content; what scrolls or folds gets the focus; landmarks and pictures have names."""
    from selenium.webdriver.common.keys import Keys

    open_page(browser, pages["failing"])
    browser.find_element("tag name", "body").send_keys(Keys.TAB)
    assert browser.execute_script("return document.activeElement.innerText") == "Skip to the content"
    for selector in (
        ".wide:not([tabindex])",
        "section:not([aria-labelledby])",
        "svg:not([aria-hidden]):not([aria-label])",
    ):
        outside = (
            f"return [...document.querySelectorAll({selector!r})].filter((e) => !e.closest('[data-root-id]')).length"
        )
        assert browser.execute_script(outside) == 0, selector
    assert browser.execute_script("return document.documentElement.lang") == "en"


@pytest.mark.timeout(60)
def test_a_hundred_thousand_tasks_are_zoomed_at_once(browser: Any, pages: dict[str, Path]) -> None:
    """The chart shows all tasks, and after zooming to a few of them their names."""
    from selenium.webdriver.support.ui import WebDriverWait

    open_page(browser, pages["large"])
    charts = "const plot = Bokeh.documents.flatMap((part) => part.roots()).find((plot) => plot.x_range.bounds)\n"
    every = "plot.x_range.js_property_callbacks['change:end'][0].args.parts"
    count = charts + f"return {every}.reduce((sum, part) => sum + part.every.data.left.length, 0)"
    assert browser.execute_script(count) > 100_000
    drawn = charts + f"return {every}.reduce((sum, part) => sum + part.drawn.data.left.length, 0)"
    assert 1000 < browser.execute_script(drawn) < 1440 * 8 * 4  # a box for each pixel, worker and phase
    browser.execute_script(charts + "plot.x_range.setv({start: 50.0, end: 50.02})")
    # One task for each microsecond is in view.
    WebDriverWait(browser, 30).until(lambda found: 10 < found.execute_script(drawn) < 30)
    names = charts + "return plot.renderers.find((r) => r.glyph.type === 'Text').data_source.data.text"
    found = [name.rstrip("…") for name in browser.execute_script(names)]
    assert found
    assert all(any(operation.startswith(name) for operation in OPERATIONS) for name in found)
