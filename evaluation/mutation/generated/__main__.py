"""Samples mutants, runs the suite on them and writes a summary: ``python -m evaluation.mutation.generated``.

It can be interrupted at any time; ``--resume`` goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from starpullm.processes.lock import machine_lock

from ..mutants import Builder
from ..patches import CHECKOUT
from .candidates import Stratum, strata, tool
from .laboratories import Laboratory, LibraryLaboratory, PackageLaboratory, level_of
from .package import FOLDERS
from .results import Results
from .stages import STAGES, Workplace, limit_this_process, machine_of

LANGUAGES: dict[str, type[Laboratory]] = {"c": LibraryLaboratory, "python": PackageLaboratory}
"""What mutants are made of: the native library, or the package."""


def describe_run(language: str, seed: int, builder: Builder) -> dict[str, str]:
    """Return what a run in this checkout is made with."""
    sources = hashlib.sha256()
    native = (builder.sources / "native").rglob("*.[ch]") if language == "c" else ()
    for paths in (native, (CHECKOUT / "starpullm").rglob("*.py")):
        for path in sorted(paths):
            sources.update(path.read_bytes())
    machine = machine_of(builder.library)
    assert machine is not None
    levels = sorted(filter(None, {level_of(name) for name in builder.objects}))
    return {
        "language": language,
        "seed": str(seed),
        "sources": sources.hexdigest()[:16],
        "tool": tool(),
        "compiler": subprocess.check_output(["cc", "--version"], text=True).splitlines()[0],
        "machine": f"{machine['cores']} cores, {machine['processor'] or 'unknown processor'}",
        "levels": " ".join(level for level in levels if machine_of(builder.library, level)),
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m evaluation.mutation.generated", description=__doc__)
    parser.add_argument("--language", choices=LANGUAGES, default="c", help="of the mutants; default c")
    parser.add_argument("--seed", type=int, default=1, help="of the sample; default 1")
    parser.add_argument("--count", type=int, default=400, help="mutants of all folders together; default 400")
    parser.add_argument("--folder", help="only mutants of this folder below native/src or starpullm")
    names = [stage.name for stage in STAGES]
    parser.add_argument("--stage", action="append", choices=names, help="of C, only this one; repeatable")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="the results to continue, as lines of JSON")
    options = parser.parse_args()
    if options.stage and options.language != "c":
        parser.error(f"--stage: found language {options.language}, expected c: the package has other stages")
    kind = [*([options.language] if options.language != "c" else []), *(options.stage or [])]
    name = re.sub(r"\W+", "-", "-".join(["mutants", *kind, str(options.seed)]))
    path = options.resume or CHECKOUT / ".cache" / f"{name}.jsonl"
    if options.resume is None and path.exists():
        parser.error(f"{path} has results already: continue with --resume {path}, or remove it")
    limit_this_process()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM; --resume goes on"))
    with tempfile.TemporaryDirectory(prefix="starpullm-mutants-") as directory:
        with machine_lock():  # two at a time would write the same files
            builder = Builder(Path(directory))
        run = describe_run(options.language, options.seed, builder)
        run |= {"stages": ", ".join(options.stage)} if options.stage else {}
        try:
            results = Results(path, run)
        except ValueError as error:
            parser.error(str(error))
        every = strata(run["levels"].split()) if options.language == "c" else list(map(Stratum, FOLDERS))
        chosen = [stratum for stratum in every if options.folder in (None, stratum.folder)]
        if not chosen:
            parser.error(f"--folder: found {options.folder}, expected one of {', '.join(s.folder for s in every)}")
        workplace = Workplace(Path(directory, "runs"), builder, apart=options.language == "python")
        make = LANGUAGES[options.language]
        laboratory = make(Path(directory), builder, workplace, results, options.seed, options.stage or ())
        try:
            for number in range(-(-options.count // len(every))):
                chosen = [
                    mutant for mutant in chosen if number < len(results.of(str(mutant))) or laboratory.try_next(mutant)
                ]
        finally:
            path.with_suffix(".md").write_text(results.summary(), "utf-8")


if __name__ == "__main__":
    main()
