"""The commands of docs/get-started.md run as they stand, one after the other, after a demo of no steps."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from starpullm.training.demo import encode_text, new_model

from .children import run_cli

PAGE = Path(__file__).parents[2] / "docs" / "get-started.md"


def test_first_five_minutes(tmp_path: Path) -> None:
    demo = tmp_path / "starpullm-demo"
    demo.mkdir()
    encode_text(demo)
    new_model(demo).rename(demo / "trained.bin")
    marked = rf"<!-- run by {Path(__file__).parent.parent.name}/native/{Path(__file__).name} -->\n```\n(.*?)```"
    lines = [line for block in re.findall(marked, PAGE.read_text("utf-8"), re.DOTALL) for line in block.splitlines()]
    outputs = {}
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "starpullm"
        outputs[arguments[0]] = run_cli(*arguments, cwd=tmp_path).check().stdout
    assert list(outputs) == ["doctor", "parity", "train", "generate", "convert"]
    assert outputs["parity"].endswith(" 0 differ\n")
    assert "step 20/20: loss " in outputs["train"]
    assert outputs["generate"].startswith("Shall I")
    assert sorted(path.name for path in (tmp_path / "more-folder").iterdir()) == ["config.json", "model.safetensors"]
