"""The pictures of reports in ``docs/``, made anew: ``python -m tests.report.pictures``.

They show two runs on this machine: the suite on a library with a wrong access mode, and parity on two workers. The
command needs the project's environment, Chromium and matplotlib. ``docs/pictures.json`` says what they were made of.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from starpullm.checks.check import all_checks
from starpullm.report import folder

DOCS = Path(__file__).parents[2] / "docs"
PICTURES = ("report.png", "timeline.png")
RECORD = DOCS / "pictures.json"

_TEMPLATES = Path(folder.__file__).parent / "templates"
_BIN = Path(sys.executable).parent
_DEFECT = "evaluation/mutation/defects/write_as_read_attention_forward.patch"
_CHECKS = "accesses or parity- or observed_order or gradient_bounds"
_SHOWN = ("accesses", "parity", "observed order", "gradient bounds")
_FIRST_SCREEN = "main, footer, nav { display: none }"
_TIMELINE = """header, footer, main > section:not(#workers), #workers > *:not(figure),
figure button, figure .told { display: none } body { max-width: none }"""

_FLAGS = "--headless --no-sandbox --hide-scrollbars --log-level=3 --blink-settings=preferredColorScheme=1".split()


def digest_of_sources() -> str:
    """Return a hash of what the pictures look like: the templates of the page, and the claims that they show."""
    templates = [path.read_text("utf-8") for path in sorted(_TEMPLATES.iterdir()) if path.is_file()]
    claims = [all_checks()[name].claim for name in _SHOWN]
    return hashlib.sha256("\0".join([*templates, *claims]).encode()).hexdigest()


def _run(*command: str | Path, may_fail: bool = False) -> None:
    run = subprocess.run(command, timeout=600, check=False, cwd=DOCS.parent)
    if run.returncode > may_fail:
        raise SystemExit(f"{command[0]}: found exit status {run.returncode}, expected 0")


def _photograph(report: Path, picture: Path, shown: str, size: Sequence[int]) -> None:
    """Draw the page of a report, without the machine's own names and with the rules `shown`; cut the empty end off."""
    import matplotlib.image
    import numpy as np

    document = json.loads((report / "report.json").read_text("utf-8"))
    document["host"] = "node1"
    document["environment"]["library"] = "build/libstarpullm.so"
    folder.ReportFolder(report).write(document)
    page = report / "index.html"
    page.write_text(page.read_text("utf-8").replace("</head>", f"<style>{shown}</style></head>"), "utf-8")
    files = [f"--user-data-dir={report}/profile", f"--screenshot={picture}"]
    _run("chromium", *_FLAGS, f"--window-size={size[0]},{size[1]}", *files, page.as_uri())
    image = matplotlib.image.imread(picture)
    last = np.flatnonzero((image[:, :, :3] < 1).any(axis=(1, 2)))[-1]
    matplotlib.image.imsave(picture, image[: last + 16])


def main() -> None:
    """Make all pictures, and record what they were made of."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        library = directory / "libstarpullm.so"
        _run(sys.executable, "-m", "evaluation.mutation.mutants", _DEFECT, "-o", library)
        options = f"--starpullm-library {library} --starpullm-partition 2x1 --starpullm-records tiny".split()
        report = f"--starpullm-report {directory}/failed".split()
        _run(_BIN / "pytest", "--pyargs", "starpullm.suite", "-q", "-k", _CHECKS, *options, *report, may_fail=True)
        _photograph(directory / "failed", DOCS / PICTURES[0], _FIRST_SCREEN, (1100, 2000))
        sizes = "--layers 4 --heads 4 --channels 256 --vocab 512 --batch-size 4 --seq-len 64 --steps 1".split()
        options = f"--partition 2x1 --sub-batches 4 --report {directory}/passed".split()
        _run(_BIN / "starpullm", "parity", *sizes, *options)
        _photograph(directory / "passed", DOCS / PICTURES[1], _TIMELINE, (1100, 1000))
    digests = dict.fromkeys(PICTURES, digest_of_sources())
    RECORD.write_text(json.dumps(digests, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
