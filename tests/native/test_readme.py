"""README's example, run as it stands."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .children import run_cli, run_python

README = Path(__file__).parents[2] / "README.md"


def test_example(tmp_path: Path) -> None:
    text = README.read_text()
    [example] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    [options] = re.findall(r"`starpullm (checkpoint new [^`]*) model\.bin`", text)
    made = run_cli(*options.split(), tmp_path / "model.bin")
    assert made.returncode == 0, made.stderr
    run = run_python(f"import os\nos.chdir({os.fspath(tmp_path)!r})\n{example}")
    loss, shape = run.stdout.splitlines()
    assert 0 < float(loss) < 10
    assert shape == "(2, 48, 16)"
    assert (tmp_path / "trained.bin").stat().st_size == (tmp_path / "model.bin").stat().st_size
