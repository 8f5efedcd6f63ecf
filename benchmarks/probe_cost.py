"""What the probe costs: the time of recording alone, the speed of hashing, and the log and the memory of many tasks.

Run by hand, with nothing else running: ``.cache/venv/bin/python -P benchmarks/probe_cost.py``. It compiles
tests/probe/programs/many.c against the installed StarPU, runs it with and without the probe in turns, and prints tables
for docs/probe.md. With the defaults it takes about five minutes and 2 GiB of memory, and the temporary directory needs
1 GiB; ``--repetitions``, ``--tasks`` and ``--most-tasks`` make it shorter.
"""

from __future__ import annotations

import datetime
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from starpullm.binding.library import find_probe
from starpullm.machine import inspect_machine
from starpullm.probe.judge import NUM_STANDARD_RUNS
from starpullm.probe.probe_schedules import machine_variables

CHECKOUT = Path(__file__).resolve().parents[1]
SOURCE = CHECKOUT / "tests" / "probe" / "programs" / "many.c"
HANDLES = 64
"""Of many.c."""
SMALL_HANDLE = 8
HASHED_BYTES = (64 << 10, 256 << 10, 16 << 20)
"""Of one handle; with all 64, they are in a cache of level 3, about as large as one, and in memory only."""
HASHED_TOGETHER = 8 << 30
TIME_LIMIT = 1200.0

# So that the submitted tasks that wait don't determine the memory.
WINDOW = {"STARPU_LIMIT_MAX_SUBMITTED_TASKS": "10000", "STARPU_LIMIT_MIN_SUBMITTED_TASKS": "9000"}


@dataclass(frozen=True)
class Run:
    """One run of the program; `seconds` are those that it counts itself, from the first submission to the last end."""

    seconds: float
    peak_bytes: int
    log_bytes: int
    streams: Mapping[str, int]


def compile_program(directory: Path, prefix: str) -> Path:
    """Compile many.c; return the program."""
    program = directory / "many"
    command = ["cc", "-O2", "-o", str(program), str(SOURCE), f"-I{prefix}/include/starpu/1.4", f"-L{prefix}/lib"]
    subprocess.run([*command, f"-Wl,-rpath,{prefix}/lib", "-lstarpu-1.4"], check=True)
    return program


def run(command: list[str], workers: int, scheduler: str = "", *, hashes: bool = False, window: bool = False) -> Run:
    """Run the program once: with a scheduler of StarPU's, its default if there is no name, or with the probe."""
    with tempfile.TemporaryDirectory(prefix="starpullm-cost-") as directory:
        variables = machine_variables(workers)
        if scheduler:
            variables["STARPU_SCHED"] = scheduler
        if scheduler == "probe":
            variables["STARPU_SCHED_LIB"] = str(find_probe())
            variables["STARPULLM_PROBE_DIRECTORY"] = directory
            variables["STARPULLM_PROBE_HASH"] = str(int(hashes))
        output = Path(directory, "output")
        environment = {**os.environ, "STARPU_SILENT": "1", **variables, **(WINDOW if window else {})}
        with output.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, env=environment)
            _, status, usage = os.wait4(process.pid, 0)
        if status != 0:
            raise click.ClickException(f"{' '.join(command)}: found wait status {status}, expected 0")
        streams = {path.name: path.stat().st_size for path in Path(directory).glob("probe-*/*")}
        return Run(float(output.read_text()), usage.ru_maxrss * 1024, sum(streams.values()), streams)


def recording_lines(program: Path, tasks: int, microseconds: int, repetitions: int) -> Iterator[str]:
    """Yield the table of the time that recording takes."""
    yield "| workers | bare | bare, `eager` | recording | more than bare | more than `eager` | of a task |"
    yield "|---|---|---|---|---|---|---|"
    command = [str(program), str(tasks), str(microseconds), str(SMALL_HANDLE)]
    for workers in range(1, (os.cpu_count() or 1) + 1):
        seconds: dict[str, list[float]] = {"": [], "eager": [], "probe": []}
        for repetition in range(repetitions):
            order = list(seconds)
            for name in order[repetition % 3 :] + order[: repetition % 3]:
                seconds[name].append(run(command, workers, name).seconds)
        median = {name: statistics.median(values) for name, values in seconds.items()}
        spread = {name: f"{median[name]:.3f} s ({min(v):.3f} to {max(v):.3f})" for name, v in seconds.items()}
        more = [median["probe"] / median[name] - 1 for name in ("", "eager")]
        each = (median["probe"] - median[""]) * workers / tasks * 1e6
        cells = (workers, spread[""], spread["eager"], spread["probe"], f"{more[0]:+.1%}", f"{more[1]:+.1%}")
        yield "| " + " | ".join(map(str, (*cells, f"{each:+.2f} µs"))) + " |"


def hashing_lines(program: Path, repetitions: int) -> Iterator[str]:
    """Yield the table of the speed of hashing: what a run with hashes takes longer than one without."""
    yield "| bytes of a handle | of all handles | hashed | recording | with hashes | speed of a core |"
    yield "|---|---|---|---|---|---|"
    for size in HASHED_BYTES:
        tasks = HASHED_TOGETHER // (2 * size)  # each contents before its task and after it
        command = [str(program), str(tasks), "0", str(size)]
        pairs = [
            (run(command, 1, "probe").seconds, run(command, 1, "probe", hashes=True).seconds)
            for _ in range(repetitions)
        ]
        plain, hashed = (statistics.median(values) for values in zip(*pairs, strict=True))
        speed = HASHED_TOGETHER / (hashed - plain) / 1e9
        cells = (f"{size >> 10} KiB", f"{size * HANDLES >> 20} MiB", f"{HASHED_TOGETHER >> 20} MiB", f"{plain:.3f} s")
        yield "| " + " | ".join((*cells, f"{hashed:.3f} s", f"{speed:.1f} GB/s")) + " |"


def memory_lines(program: Path, tasks: int) -> Iterator[str]:
    """Yield the table of the log's bytes and of the peak memory with many tasks."""
    yield "| run | time | peak memory | log | of it for a task |"
    yield "|---|---|---|---|---|"
    command = [str(program), str(tasks), "0", str(SMALL_HANDLE)]
    for name, scheduler, hashes in (("bare", "", False), ("recording", "probe", False), ("with hashes", "probe", True)):
        one = run(command, 1, scheduler, hashes=hashes, window=True)
        log = f"{one.log_bytes / 1e6:.0f} MB" if scheduler else ""
        each = f"{one.log_bytes / tasks:.0f} bytes" if scheduler else ""
        yield f"| {name} | {one.seconds:.2f} s | {one.peak_bytes / 1e6:.0f} MB | {log} | {each} |"


def judging_line(program: Path, tasks: int) -> str:
    """Return a sentence about `starpullm probe` itself on as many tasks: its time and its own peak memory."""
    command = [sys.executable, "-P", "-m", "starpullm.commands", "probe", "--runs", "1", "--workers", "1"]
    command += ["--time-limit", str(TIME_LIMIT), "--", str(program), str(tasks), "0", str(SMALL_HANDLE)]
    start = datetime.datetime.now()
    process = subprocess.Popen(command, env={**os.environ, "STARPU_SILENT": "1", **WINDOW}, stdout=subprocess.PIPE)
    assert process.stdout is not None
    said = process.stdout.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = (datetime.datetime.now() - start).total_seconds()
    if status != 0:
        raise click.ClickException(f"starpullm probe: found wait status {status}, expected 0: {said}")
    return (
        f"`starpullm probe --runs 1` on {tasks} tasks, which runs the program {NUM_STANDARD_RUNS + 1} times, takes "
        f"{seconds:.0f} s; its own peak memory is {usage.ru_maxrss / 1e3:.0f} MB."
    )


@click.command()
@click.option("--tasks", default=20_000, show_default=True, help="For recording.")
@click.option("--microseconds", default=100, show_default=True, help="Length of a task.")
@click.option("--repetitions", default=7, show_default=True, help="Of recording and hashing.")
@click.option("--most-tasks", default=1_000_000, show_default=True, help="For the log and the memory.")
def main(tasks: int, microseconds: int, repetitions: int, most_tasks: int) -> None:
    """Measure, and print the tables."""
    machine = inspect_machine()
    click.echo(
        "StarPU {starpu_version}, {processor}, {cores} cores, ".format(**machine) + f"{datetime.date.today()}, "
        f"`benchmarks/probe_cost.py`, medians of {repetitions}."
    )
    with tempfile.TemporaryDirectory(prefix="starpullm-cost-") as directory:
        program = compile_program(Path(directory), machine["starpu_prefix"])
        click.echo(f"\n{tasks} tasks of {microseconds} µs:\n")
        for line in recording_lines(program, tasks, microseconds, repetitions):
            click.echo(line)
        click.echo("\nHashing, one worker, tasks that change one byte:\n")
        for line in hashing_lines(program, repetitions):
            click.echo(line)
        click.echo(f"\n{most_tasks} tasks that do nothing, one worker, at most 10000 of them submitted ahead:\n")
        for line in memory_lines(program, most_tasks):
            click.echo(line)
        click.echo(f"\n{judging_line(program, most_tasks)}")


if __name__ == "__main__":
    main()
