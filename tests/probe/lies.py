"""Lies: one access mode changed in StarPU's own examples, and whether the probe finds it; writes docs/probe-lies.md.

``python -m tests.probe.lies`` after ``tests/probe/build_examples.sh``; a part of a name chooses some of them. Each
lie is one rule, applied to one place of one source; the program is compiled alone, against the installed StarPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from starpullm.checks.result import Outcome
from starpullm.errors import StarpullmError
from starpullm.machine import inspect_machine
from starpullm.probe import probe_program

from .examples import BUILD, CHECKOUT, RESULTS

PAGE = CHECKOUT / "docs" / "probe-lies.md"
LIES = RESULTS.with_name("lies.json")
MOST_SECONDS = 5.0
"""Longer programs are left out."""

RULES = (
    ("STARPU_RW", "STARPU_R"),
    ("STARPU_RW", "STARPU_W"),
    ("STARPU_W", "STARPU_R"),
    ("STARPU_R", "STARPU_W"),
)
# Sources that are linked into several examples.
HELPERS = {"filters": "*_print.c *_cpu.c"}


def mutants(text: str) -> Iterator[tuple[int, str, str, str]]:
    """Yield line, the mode there, the other mode, and the changed source, for each place where a mode stands."""
    for number, line in enumerate(text.splitlines()):
        if not re.search(r"\.modes|STARPU_(R|W|RW)\s*,", line):
            continue
        for place in re.finditer(r"\bSTARPU_(RW|R|W)\b(?!\s*\|)", line):
            for before, after in RULES:
                if place.group() == before and "|" not in line[: place.start()][-3:]:
                    lines = text.splitlines(keepends=True)
                    lines[number] = line[: place.start()] + after + line[place.end() :] + "\n"
                    yield number + 1, before, after, "".join(lines)


def compile_lie(source: Path, text: str, prefix: Path, program: Path) -> bool:
    """Compile a changed source beside the original one."""
    changed = program.with_suffix(".c")
    changed.write_text(text)
    helpers = []
    for pattern in HELPERS.get(source.parent.name, "").split():
        helpers += [str(path) for path in source.parent.glob(pattern) if path != source]
    include = [f"-I{source.parent}", f"-I{source.parents[1]}", f"-I{prefix}/include/starpu/1.4"]
    command = ["cc", "-O1", "-w", "-o", str(program), str(changed), *helpers, *include, f"-L{prefix}/lib"]
    command += [f"-Wl,-rpath,{prefix}/lib", "-lstarpu-1.4", "-lm", "-lpthread"]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


def is_same_alone(source: Path, prefix: Path) -> bool:
    """Return whether the unchanged source can be compiled alone, and the probe says *same* of it."""
    with tempfile.TemporaryDirectory(prefix="starpullm-lie-") as directory:
        program = Path(directory, source.stem)
        text = source.read_text(errors="replace")
        return compile_lie(source, text, prefix, program) and judge(program)[0] in ("not found", "a note only")


def judge(program: Path) -> tuple[str, list[str]]:
    """Return the verdict on a lie, and what was said."""
    try:
        result = probe_program([str(program)], runs=3, workers=4, time_limit=20)
    except StarpullmError as error:
        return "refused", [str(error)]
    if result.outcome is Outcome.PASSED:
        return "a note only" if result.notes else "not found", [str(note) for note in result.notes]
    return "found", [str(finding) for finding in result.findings]


def page(rows: Mapping[str, Mapping[str, object]]) -> str:
    """Return the page with all results."""
    counts = Counter(str(row["verdict"]) for row in rows.values())
    lines = [
        "# Lies in StarPU's own examples, and what the probe says",
        "",
        "<!-- made by python -m tests.probe.lies -->",
        "",
    ]
    lines += [
        "One access mode is changed in a program on which the probe says *same*. Changes with which StarPU itself, or "
        "the program's own test, ends the program are left out. Three disturbed runs, "
        f"{time.strftime('%Y-%m-%d')}: "
        + ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
        + ".",
        "",
        "| program, line | change | verdict | what is said first |",
        "|---|---|---|---|",
    ]
    for name, row in sorted(rows.items()):
        details = row["details"]
        assert isinstance(details, list)
        said = re.sub(r"\s+", " ", details[0])[:220].replace("|", "\\|") if details else ""
        lines.append(f"| {name} | {row['change']} | {row['verdict']} | {said} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Try the lies in the programs whose names contain a text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="parts of the names of programs; default: all")
    parser.add_argument("--source", type=Path, default=BUILD.parent / "work" / "source", help="StarPU's source")
    parser.add_argument("--most", type=int, default=2, help="lies in one program")
    options = parser.parse_args()
    prefix = Path(inspect_machine().starpu_prefix)
    os.environ["LD_LIBRARY_PATH"] = f"{prefix}/lib"
    judged = json.loads(RESULTS.read_text())
    whole = [name for name, row in judged.items() if row["verdict"] == "same" and row["bare"] < MOST_SECONDS]
    rows = json.loads(LIES.read_text()) if LIES.exists() else {}
    for name in whole:
        source = options.source / "examples" / f"{name}.c"
        if not source.is_file() or (options.parts and not any(part in name for part in options.parts)):
            continue
        if not is_same_alone(source, prefix):
            print(name, "isn't the same, or doesn't compile, when it is compiled alone", flush=True)
            continue
        for number, (line, before, after, text) in enumerate(mutants(source.read_text(errors="replace"))):
            key = f"{name}.c:{line} {before[7:]}→{after[7:]}"
            if number >= options.most:
                break
            if key in rows:
                continue
            with tempfile.TemporaryDirectory(prefix="starpullm-lie-") as directory:
                program = Path(directory, source.stem)
                if not compile_lie(source, text, prefix, program):
                    print(key, "doesn't compile alone", flush=True)
                    break
                verdict, details = judge(program)
            if details and details[0].startswith("ending:"):
                print(key, "is refused by StarPU or ends the program", flush=True)
                continue
            rows[key] = {"change": f"{before} → {after}", "verdict": verdict, "details": details}
            print(key, verdict, *details[:2], sep=" | ", flush=True)
            LIES.write_text(json.dumps(rows, indent=1))
            PAGE.write_text(page(rows))


if __name__ == "__main__":
    main()
