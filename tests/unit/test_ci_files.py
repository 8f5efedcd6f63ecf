"""Files for services that aren't at hand: they parse, and call existing scripts."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CI = ROOT / "ci"
SUBMIT = CI / "slurm" / "submit.sh"


def loaded(path: Path) -> dict[Any, Any]:
    content = yaml.safe_load(path.read_text("utf-8"))
    assert isinstance(content, dict), path
    return content


def gitlab() -> Iterator[str]:
    content = loaded(CI / "gitlab-ci.yml")
    stages = content.pop("stages")
    for name, job in content.items():
        assert job["stage"] in stages, name
        yield from (*job.get("before_script", ()), *job["script"])
    assert content["cluster"]["artifacts"]["paths"] == ["results"]


def github() -> Iterator[str]:
    content = loaded(ROOT / ".github" / "workflows" / "tests.yml")
    assert {"push", "pull_request", "schedule"} <= content[True].keys()  # YAML 1.1 reads `on` as true
    for name, job in content["jobs"].items():
        assert {"runs-on", "steps", "timeout-minutes"} <= job.keys(), name
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step), name
            if "run" in step:
                yield step["run"]


@pytest.mark.parametrize("commands", [gitlab, github])
def test_commands(commands: Any) -> None:
    """They are shell, their scripts exist and can be run, and submit.sh has the options that it is called with."""
    scripts = []
    for command in commands():
        done = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr
        found = re.findall(r"(?<![\w/])\.?ci/[\w./-]+", command)
        assert all(os.access(ROOT / script, os.X_OK) for script in found), command
        scripts += found
        if "submit.sh" in command:
            usage = SUBMIT.read_text("utf-8").partition("EOT'")[2].partition("\nEOT")[0]
            own = command.partition("submit.sh")[2]
            assert [option for option in re.findall(r"--[\w-]+", own) if f"  {option} " not in usage] == []
            assert '/results"' in command
    assert scripts
