"""Builds StarPU with one bug at a time and tries the stages until one catches it: ``python -m evaluation.starpu``.

It can be interrupted at any time; the next call goes on, also with other stages.
"""

from __future__ import annotations

import argparse
import json
from itertools import chain
from pathlib import Path

from .bugs import mends, mutants
from .build import StarpuBuild
from .stages import STAGES, Results, Tried, try_stage

_NO_BUG = "can't be put in or compiled, or changes no code"
_NOT_RUN = "its line isn't run by any stage"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m evaluation.starpu", description=__doc__)
    parser.add_argument("--repository", required=True, help="a clone of StarPU's repository")
    parser.add_argument("--directory", type=Path, default=Path(".cache/starpu-bugs"), help="of build and results")
    parser.add_argument("--stage", action="append", choices=STAGES, help="only these; default all")
    parser.add_argument("--mutants", type=int, default=100, help="how many beside the mends; default 100")
    parser.add_argument("--bug", action="append", help="only these, by the names that the results have; default all")
    parser.add_argument("--configuration", default="", help="of fuzz; default drawn by the seeds")
    parser.add_argument("--seed", type=int, default=1, help="of the mutants; default 1")
    options = parser.parse_args()
    directory = options.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    results, stages = Results(directory / "results.jsonl"), options.stage or list(STAGES)
    build, left = StarpuBuild(directory, options.repository), options.mutants
    known = directory / "lines.json"
    if not known.exists():
        unchanged = StarpuBuild(directory / "unchanged", options.repository, "--enable-coverage")
        for stage in [stage for stage in stages if stage not in results.of("")]:
            finding, seconds = try_stage(stage, unchanged.libraries, options.configuration)
            if finding:
                raise SystemExit(f"{stage}: the unchanged StarPU doesn't pass: {finding}")
            results.add(Tried("unchanged", "", "", stage, finding, seconds))
        known.write_text(json.dumps(unchanged.run_lines()))
    lines = [tuple(line) for line in json.loads(known.read_text())]
    for bug in chain(mends(), mutants(build.source, options.seed) if left else ()):
        if bug.candidate and not left:
            break
        if options.bug and bug.name not in options.bug:
            continue
        done = results.of(bug.name)
        suited = [stage for stage in stages if bug.kind.endswith("mpi") == stage.endswith("ranks")]
        todo = [stage for stage in suited if stage not in done and done.keys().isdisjoint((_NO_BUG, _NOT_RUN))]
        if todo and not any(tried.finding for tried in done.values()):
            reason = _NOT_RUN if not bug.is_run(lines) else _NO_BUG if not build.compile(bug) else ""
            if reason:
                todo, done[reason] = [], Tried("left out", bug.name, bug.wrong, reason, "", 0.0)
                results.add(done[reason])
            for stage in todo:
                found = try_stage(stage, build.libraries, options.configuration)
                tried = Tried(bug.kind, bug.name, bug.wrong, stage, *found)
                results.add(tried)
                print(*tried, sep=" | ", flush=True)
                if tried.finding:
                    break
            build.restore()
        left -= bool(bug.candidate) and done.keys().isdisjoint((_NO_BUG, _NOT_RUN))
    (directory / "table.md").write_text("\n".join(results.table()) + "\n", "utf-8")


if __name__ == "__main__":
    main()
