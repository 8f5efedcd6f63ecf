"""The report's page in a real browser: no error, nothing loaded, no overlap, nothing empty, in both colours.

Skipped where there is no Chromium; ``ci/bootstrap.sh tox`` installs it where it can.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from starpullm.report.folder import ReportFolder

from .reports import failing, killed, passing, recording

FLAGS = (
    "--headless --no-sandbox --disable-gpu --hide-scrollbars --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync --virtual-time-budget=3000"
).split()

# Before anything else on the page: what goes wrong, also while something is loaded.
NARROWEST_WINDOW = 500

BEGIN = "window.errors = []; addEventListener('error', (event) => errors.push(event.message ?? 'not loaded'), true)"

# After everything: the answer becomes an element of the page, which Chromium prints.
END = """
addEventListener('load', () => setTimeout(() => {
  const answer = document.createElement('pre')
  answer.id = 'answer'
  answer.textContent = JSON.stringify((() => { QUESTION })())
  window.parent.document.body.append(answer)
}, 200))
"""


def ask(page: Path, question: str, *, width: int = 1440, dark: bool = False) -> Any:
    """The answer of a page's JavaScript, in a window of this width."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium: apt-get install chromium")
    text = page.read_text()
    text = text.replace("<head>", f"<head><script>{BEGIN}</script>")
    text = text.replace("</body>", f"<script>{END.replace('QUESTION', question)}</script></body>")
    if width < NARROWEST_WINDOW:  # the page in a frame
        text = f'<body><iframe style="width: {width}px; border: 0" srcdoc="{html.escape(text)}"></iframe></body>'
    changed = page.with_name("asked.html")
    changed.write_text(text)
    profile = page.with_name("profile")
    command = [chromium, *FLAGS, f"--user-data-dir={profile}", f"--window-size={width},900"]
    command += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom", changed.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    found = re.search('<pre id="answer">(.*?)</pre>', shown, re.DOTALL)
    assert found, shown[-2000:]
    return json.loads(html.unescape(found[1]))


LOOK = """
const all = (selector) => [...document.querySelectorAll(selector)], name = (e) => `${e.tagName} ${e.id} ${e.className}`
// Boxes that lie side by side or one above the other: none may cover a part of another one.
const overlaps = []
for (const group of [all('main > section, header, footer'), all('.card'), all('article.failure')]) {
  const boxes = group.map((element) => [element, element.getBoundingClientRect()])
  for (const [a, x] of boxes) for (const [b, y] of boxes)
    if (a !== b && x.left < y.right - 1 && y.left < x.right - 1 && x.top < y.bottom - 1 && y.top < x.bottom - 1)
      overlaps.push(`${name(a)} and ${name(b)}`)
}
// What isn't inside a region that scrolls by itself has to fit into the window.
const wide = all('body *').filter((e) => !e.closest('.wide') && !e.closest('svg') && !e.closest('.skip'))
  .filter((e) => e.getBoundingClientRect().right > window.innerWidth + 1).map(name)
const cut = all('.wide').filter((e) => window.innerWidth < 500 && e.scrollWidth > e.clientWidth).map(name)
const empty = all('main > section, .card, figure').filter((e) => e.getBoundingClientRect().height < 40
  || (e.tagName !== 'FIGURE' && e.innerText.trim().split('\\n').length < 2)).map(name)
// WCAG 2: the contrast of texts with what lies behind them.
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
for (const e of all('p, li, td, th, a, h1, h2, h3, summary, code, pre, caption, svg text')) {
  const style = getComputedStyle(e)
  const [a, b] = [light(parse(e.closest('svg') ? style.fill : style.color)), light(behind(e))]
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)
  if (ratio < 4.5) poor.add(`${name(e)}: ${ratio.toFixed(2)}`)
}
const loaded = performance.getEntriesByType('resource').map((entry) => entry.name)
return {
  errors: window.errors, overlaps, wide, cut, empty, poor: [...poor],
  loaded: loaded.filter((url) => !url.startsWith('data:')),
  scrolls: document.documentElement.scrollWidth > window.innerWidth,
  // What scrolls gets the keyboard's focus, and landmarks and pictures have names.
  nameless: all('.wide:not([tabindex]), section:not([aria-labelledby]), figure:not([aria-label])').map(name),
  dark: matchMedia('(prefers-color-scheme: dark)').matches, width: window.innerWidth,
}
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("document", "width", "dark"),
    [
        pytest.param(passing(), 1024, False, id="passing"),
        pytest.param(failing(), 1440, True, id="failing"),
        pytest.param(failing(), 420, False, id="narrow"),
        pytest.param(failing(), 320, True, id="narrowest"),
        pytest.param(killed(), 1024, True, id="killed"),
    ],
)
def test_page_in_a_browser(document: dict[str, Any], width: int, dark: bool, tmp_path: Path) -> None:
    ReportFolder(tmp_path / "out").write(document)
    found = ask(tmp_path / "out" / "index.html", LOOK, width=width, dark=dark)
    assert (found.pop("dark"), found.pop("width")) == (dark, width)
    assert not any(found.values()), found


ZOOM = """
const figure = document.querySelector('figure.workers'), told = figure.querySelector('.told')
const all = told.textContent, width = figure.querySelector('canvas').width, start = performance.now()
for (let times = 0; times < 9; times++) figure.querySelector('[data-zoom="0.5"]').click()
const few = told.textContent
figure.querySelector('[data-zoom="all"]').click()
return {all, few, again: told.textContent, width, errors: window.errors}
"""


@pytest.mark.timeout(120)
def test_many_tasks_are_zoomed(tmp_path: Path) -> None:
    """The timeline shows all tasks, and after zooming some of them."""
    document = passing()
    document["recordings"] = [recording(layers=12, steps=90, workers=8)]
    count = len(document["recordings"][0]["tasks"]["step"])
    assert count > 10_000
    ReportFolder(tmp_path / "out").write(document)
    found = ask(tmp_path / "out" / "index.html", ZOOM)
    assert found["all"] == found["again"] == f"0.000 to {count / 1000 - 0.0001:.3f} ms: {count:,} tasks"
    assert 20 < int(found["few"].rpartition("ms: ")[2].removesuffix(" tasks")) < 40
    assert found["width"] > 1000
    assert found["errors"] == []
