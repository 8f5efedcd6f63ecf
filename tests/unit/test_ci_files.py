"""Files for services and installers that aren't at hand: they parse, call existing scripts, and name what is needed."""

from __future__ import annotations

import ast
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
LIBRARIES = ("hwloc", "xxhash", "zlib")
"""What the C library links besides StarPU and MPI; ``ci/bootstrap.sh`` installs them by Debian's names."""


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


def container() -> Iterator[str]:
    text = (CI / "container" / "Containerfile").read_text("utf-8")
    assert text.count("\nFROM ") == 1
    yield from re.findall(r"^RUN (.*)$", text, re.MULTILINE)


@pytest.mark.parametrize("commands", [gitlab, github, container])
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


def flags(text: str) -> set[str]:
    return set(re.findall(r"--enable-[\w=-]+", text))


def needed_flags() -> set[str]:
    found = flags((CI / "starpu.sh").read_text("utf-8").partition("STARPU_OPTIONS=(")[2].partition(")")[0])
    assert len(found) == 4
    return found


def test_spack() -> None:
    environment = loaded(CI / "spack" / "spack.yaml")["spack"]
    specs = " ".join(environment["specs"])
    assert [
        name for name in (*LIBRARIES, "cmake", "ninja", "openmpi", "pkgconf", "python", "starpu") if name not in specs
    ] == []
    [folder] = environment["repos"].values()
    assert loaded(CI / "spack" / folder / "repo.yaml")["repo"]["namespace"] == "starpullm"
    package = (CI / "spack" / folder / "packages" / "starpu" / "package.py").read_text("utf-8")
    calls = [node for node in ast.walk(ast.parse(package)) if isinstance(node, ast.Call)]
    variants = [ast.literal_eval(call.args[0]) for call in calls if getattr(call.func, "id", "") == "variant"]
    assert [name for name in variants if f"+{name}" in specs] == ["parallel_worker"]
    assert flags(package) == needed_flags()


def test_guix() -> None:
    text = (CI / "guix" / "manifest.scm").read_text("utf-8")
    code = re.sub(r'"[^"]*"|;.*', lambda match: match[0] if match[0].startswith('"') else "", text)
    depth = 0
    for bracket in re.findall(r"[()]", re.sub(r'"[^"]*"', "", code)):
        depth += 1 if bracket == "(" else -1
        assert depth >= 0
    assert depth == 0
    assert flags(code) == needed_flags()
    names = re.findall(r'"([\w-]+)"', code)
    needed = (*LIBRARIES, "cmake", "gcc-toolchain", "ninja", "openmpi", "pkg-config", "python")
    assert [name for name in needed if name not in names] == []
