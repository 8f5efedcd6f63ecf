"""The commands of the pages for beginners run as they stand, one after the other."""

from __future__ import annotations

import re
import shlex
from importlib import resources
from pathlib import Path

from .children import TWO_CORES, run_cli

ROOT = Path(__file__).parents[2]
MARK = f"<!-- run by {Path(__file__).relative_to(ROOT)} -->"


def run_page(name: str, directory: Path) -> dict[str, str]:
    """Run the marked commands of a page and return what each of them has printed."""
    page = (ROOT / "docs" / name).read_text("utf-8")
    blocks = re.findall(rf"{re.escape(MARK)}\n```\n(.*?)```", page, re.DOTALL)
    outputs = {}
    for line in "".join(blocks).splitlines():
        program, *arguments = shlex.split(line)
        assert program == "starpullm"
        outputs[line] = run_cli(*arguments, cwd=directory, environment=TWO_CORES).check().stdout
    return outputs


def test_first_five_minutes(tmp_path: Path) -> None:
    """docs/get-started.md, whose only other command is that of docs/own-machine.md."""
    doctor, parity = run_page("get-started.md", tmp_path).items()
    assert doctor[0] == "starpullm doctor"
    assert (ROOT / "docs" / "own-machine.md").read_text("utf-8").count(f"{MARK}\n```\nstarpullm doctor\n```") == 1
    assert parity[1].endswith(" 0 differ\n")


def test_train_and_sample(tmp_path: Path) -> None:
    """docs/train-and-sample.md, with a part of the demo's sonnets as the text."""
    text = (resources.files("starpullm.training") / "sonnets.txt").read_bytes()
    (tmp_path / "text.txt").write_bytes(text)
    outputs = run_page("train-and-sample.md", tmp_path)
    tokenized, new, first, second, sample, converted = outputs.values()
    assert f"{len(text)} tokens, bytes, vocabulary 257" in tokenized
    assert "untrained.bin" in new
    assert "step 20/20: loss " in first
    assert "step 21/30: loss " in second
    assert "step 30/30: loss " in second
    assert sample.startswith("Shall I")
    assert "trained-folder" in converted
    assert sorted(path.name for path in (tmp_path / "trained-folder").iterdir()) == ["config.json", "model.safetensors"]
