"""Lies: one access mode changed in StarPU's own examples, and whether the probe finds it.

``python -m evaluation.probe.lies`` after ``python -m evaluation.probe.examples``; a part of a name chooses some of
them. Only codelets that run are changed, in programs that are *same*. Each program is compiled from a copy of its
sources, against the installed StarPU; the lie is one change in the copy, kept as a patch in
.cache/starpu-examples/lies.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starpullm.checks.result import Outcome
from starpullm.errors import StarpullmError
from starpullm.probe import ProbeResult, probe_program
from starpullm.probe.findings import Fault
from starpullm.probe.probe_schedules import REFERENCE
from starpullm.probe.recorded import record

from .access_modes import Lie, lies_of, with_included, with_names
from .built import BUILD, EXAMPLES, SOURCE, Example, examples, lock_results, prepare_environment
from .examples import RESULTS

RESULTS_OF_LIES = EXAMPLES / "lies.json"
PATCHES = EXAMPLES / "lies"
MOST_SECONDS = 10.0
"""Programs whose runs under the probe take longer are left out."""
WORKERS = 4
RUNS = 3
TIME_LIMIT = 20.0

FOLDERS = (Path("examples"), Path("mpi/examples"))

Row = dict[str, Any]


class Copy:
    """A copy of the examples' sources, from which whole and lying programs are compiled."""

    def __init__(self, root: Path, prefix: Path) -> None:
        self._root, self._prefix = root, prefix
        for folder in FOLDERS:
            shutil.copytree(SOURCE / folder, root / folder)
        self.include_roots = tuple(root / folder for folder in FOLDERS)
        for path in root.rglob("*.[ch]"):
            path.write_text(with_names(path.read_text(errors="replace")))

    def sources(self, example: Example) -> list[Path]:
        """Return the sources of a program, in this copy."""
        return [self._root / path.relative_to(SOURCE) for path in example.sources()]

    def compile(self, example: Example, program: Path) -> str:
        """Compile a program; return what the compiler says if it can't."""
        include = [*self.include_roots, SOURCE / "include", SOURCE / "mpi/include", BUILD / "include"]
        include += [BUILD / "src/common", SOURCE / "src"]
        command = ["mpicc" if example.ranks else "cc", "-O1", "-w", "-fopenmp", "-DHAVE_CONFIG_H", "-o", str(program)]
        sources = self.sources(example)
        include += {source.parent for source in sources}
        command += [*map(str, sources), *(f"-I{folder}" for folder in include)]
        command += [f"-L{self._prefix}/lib", f"-Wl,-rpath,{self._prefix}/lib", "-lstarpu-1.4"]
        if example.ranks:
            command.append("-lstarpumpi-1.4")
        command += ["-lblas", "-lnuma", "-lm", "-lpthread"]
        config = (BUILD / "include" / "starpu_config.h").read_text() + (BUILD / "src/common/config.h").read_text()
        libraries = {"STARPU_USE_OPENCL": "-lOpenCL", "STARPU_HAVE_X11": "-lX11"}
        command += [library for name, library in libraries.items() if f"define {name} " in config]
        run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        return "" if run.returncode == 0 else run.stderr


def probe(command: list[str]) -> ProbeResult | str:
    """Return the probe's result, or the sentence with which it refuses."""
    try:
        return probe_program(command, runs=RUNS, workers=WORKERS, time_limit=TIME_LIMIT)
    except StarpullmError as error:
        return str(error).partition(": ")[2]


def whole(example: Example, copy: Copy, program: Path) -> Row:
    """Return whether the unchanged program, compiled in this way, is *same*, and the names of the codelets that run."""
    said = copy.compile(example, program)
    if said:
        return {"verdict": "doesn't compile", "details": said.splitlines()[:3]}
    result = probe(example.command(program))
    if isinstance(result, str):
        return {"verdict": "refused", "details": [result]}
    with tempfile.TemporaryDirectory(prefix="starpullm-lie-") as directory:
        run = record(example.command(program), REFERENCE, Path(directory, "log"), WORKERS, TIME_LIMIT)
        names = {flow.log.names[int(codelet)] for flow in run.flows.values() for codelet in flow.codelet}
    verdict = result.sentence.partition(":")[0]
    return {"verdict": verdict, "details": list(map(str, result.findings)), "codelets": sorted(names)}


def judge(lie: Lie, command: list[str]) -> Row:
    """Return the verdict on a lie, by which message, and whether its task is named."""
    result = probe(command)
    if isinstance(result, str):
        return {"verdict": "refused", "named": "", "details": [result]}
    if result.outcome is Outcome.PASSED:
        verdict = "a note only" if result.notes else "not found"
        return {"verdict": verdict, "named": "", "details": list(map(str, result.notes))}
    findings = [finding for finding in result.findings if finding.kind not in (Fault.ENDING, Fault.POISONED_ENDING)]
    if not findings:
        named = "as the one that ran" if _ran_at_the_end(lie, result) else ""
        if any(note.codelet == lie.name for note in result.notes):
            named = "in a note"
        if any(f"<{lie.name}>" in line for line in _said(result)):
            named = "by StarPU"
        return {"verdict": _ending(result), "named": named, "details": [*map(str, result.findings), *_said(result)]}
    named = "no"
    if any(finding.codelet == lie.name for finding in findings):
        named = "yes"
    elif any(suspect.startswith(f"{lie.name} ") for finding in findings for suspect in finding.suspects):
        named = "as a suspect"
    return {"verdict": "found", "named": named, "details": list(map(str, findings))}


def _ran_at_the_end(lie: Lie, result: ProbeResult) -> bool:
    """Return whether the report says that a task of the lie's codelet was running, or ended the program."""
    return any(re.search(rf"(running: |signal came in ).*\b{lie.name}\b", line) for line in result.last_moments)


def _said(result: ProbeResult) -> list[str]:
    """Return what StarPU or the program said at its end, if that was an assertion."""
    return [
        line.partition("standard error: ")[2]
        for line in result.last_moments
        if re.search(r"standard error: .*([Aa]ssert|\[starpu\])", line)
    ]


def _ending(result: ProbeResult) -> str:
    """Return whose check has ended a program."""
    said = " ".join(_said(result))
    if "[starpu]" in said or "assert failure" in said or re.search(r"/src/\w+/", said):
        return "found, by StarPU's assertion"
    return "found, by the program's own check" if said else "found, because the program failed"


def summary(rows: Mapping[str, Row]) -> str:
    """Return how many lies have which verdict, and of those that are found, in how many the right task is named."""
    counts = Counter(str(row["verdict"]) for row in rows.values())
    named = Counter(str(row["named"]) for row in rows.values() if row["verdict"] == "found")
    programs = {row["program"] for row in rows.values()}
    return f"{len(rows)} lies in {len(programs)} programs: {dict(counts)}; the right task is named: {dict(named)}"


def keep_patch(key: str, lie: Lie, texts: Mapping[Path, str], root: Path) -> None:
    """Write a lie as a patch against StarPU's sources; the names that this module gives to codelets aren't in it."""
    lines: list[str] = []
    for path, text in lie.texts(texts).items():
        name = str(path.relative_to(root))
        old, new = (re.sub(r' \.name = "\w+",(?=\n)', "", one).splitlines(keepends=True) for one in (texts[path], text))
        lines += difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    PATCHES.mkdir(exist_ok=True)
    (PATCHES / (re.sub(r"[^\w.-]+", "_", key) + ".patch")).write_text("".join(lines))


def try_lies(example: Example, copy: Copy, root: Path, known: Row, most: int) -> None:
    """Judge a program's lies, those that aren't known yet."""
    with tempfile.TemporaryDirectory(prefix="starpullm-lie-") as directory:
        program = Path(directory, example.path.name)
        if example.name not in known["whole"]:
            known["whole"][example.name] = whole(example, copy, program)
        unchanged = known["whole"][example.name]
        if unchanged["verdict"] != "same":
            print(example.name, "as compiled here:", unchanged["verdict"], *unchanged["details"][:1], flush=True)
            return
        paths = with_included(copy.sources(example), copy.include_roots)
        texts = {path: path.read_text() for path in paths}
        running = [lie for lie in lies_of(texts) if lie.name is None or lie.name in unchanged["codelets"]]
        for lie in running[:most]:
            place = f"{lie.path.relative_to(root)}:{lie.line}"
            key = f"{example.name} {place} {lie.codelet} {lie.access} {lie.before[7:]} {lie.after[7:]}"
            if key in known["lies"]:
                continue
            for path, text in lie.texts(texts).items():
                path.write_text(text)
            said = copy.compile(example, program)
            for path in lie.texts(texts):
                path.write_text(texts[path])
            assert not said, said
            row = judge(lie, example.command(program))
            known["lies"][key] = row | {"program": example.name, "place": place, "change": lie.change}
            keep_patch(key, lie, texts, root)
            print(key, row["verdict"], row["named"], *row["details"][:2], sep=" | ", flush=True)
            RESULTS_OF_LIES.write_text(json.dumps(known, indent=1))


def main() -> None:
    """Try the lies in the programs whose names contain a text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="parts of the names of programs; default: all")
    parser.add_argument("--most", type=int, default=2, help="lies in one program")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start nothing after so many minutes")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    prefix = prepare_environment()
    lock_results()
    judged = json.loads(RESULTS.read_text())
    known = json.loads(RESULTS_OF_LIES.read_text()) if RESULTS_OF_LIES.exists() else {"whole": {}, "lies": {}}
    with tempfile.TemporaryDirectory(prefix="starpullm-lies-") as directory:
        copy = Copy(Path(directory), prefix)
        for example in examples():
            times = judged.get(example.name, {"times": {}})["times"].values()
            is_same = times and all(one["verdict"] == "same" and one["seconds"] < MOST_SECONDS for one in times)
            if is_same and (not options.parts or any(part in example.name for part in options.parts)):
                if time.monotonic() > end:
                    break
                try_lies(example, copy, Path(directory), known, options.most)
    print(summary(known["lies"]))


if __name__ == "__main__":
    main()
