"""Traces of real runs, on one rank and over two with different clocks, read back from every format."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest

from starpullm.commands.trace import FORMATS
from starpullm.trace import AccessMode
from starpullm.traces.traced_run import TracedRun, load_run

from . import trace_readers
from .children import TWO_CORES, cli_command, run_cli, run_command

CLOCK_AHEAD = 5000
"""Seconds by which rank 1's monotonic clock is ahead of rank 0's."""


@dataclass(frozen=True)
class Recorded:
    path: Path
    run: TracedRun

    @cached_property
    def graph(self) -> Any:
        """The smallest graph of what the accesses require, by its definition: neighbours conflict unless both read."""
        tasks = list(self.run.trace)
        handles: dict[int, list[tuple[int, bool]]] = {}
        for number, task in enumerate(tasks):
            for access in task.accesses:
                handles.setdefault(access.handle.id, []).append((number, access.mode is AccessMode.READ))
        conflicts = networkx.DiGraph()
        conflicts.add_nodes_from(range(len(tasks)))
        for accesses in handles.values():
            pairs = itertools.combinations(accesses, 2)
            conflicts.add_edges_from((before, after) for (before, r1), (after, r2) in pairs if not (r1 and r2))
        return networkx.transitive_reduction(conflicts)

    @cached_property
    def edges_of_run_tasks(self) -> set[tuple[int, int]]:
        """Edges without transfers: those into a transfer go on to where it leads."""
        graph = self.graph.copy()
        for transfer in np.flatnonzero(self.run.trace.tasks["worker"] < 0).tolist():
            graph.add_edges_from(itertools.product(graph.predecessors(transfer), graph.successors(transfer)))
            graph.remove_node(transfer)
        return set(graph.edges)

    @property
    def tasks(self) -> dict[int, trace_readers.Task]:
        origin = min(task.submit_ns for task in self.run.trace)
        return {
            task.id: trace_readers.Task(
                task.operation, task.rank, task.worker, (task.start_ns - origin) / 1000, (task.end_ns - origin) / 1000
            )
            for task in self.run.trace
            if task.worker >= 0
        }


def other_clock() -> list[str]:
    """Return the command before a command whose monotonic clock is ahead; skips where that is not possible."""
    refusals = []
    for user in ([], ["--user", "--map-root-user"]):
        command = ["unshare", *user, "--time", "--monotonic", str(CLOCK_AHEAD), "--fork", "--kill-child"]
        done = run_command([*command, "true"], timeout=20)
        if done.returncode == 0:
            return command
        refusals.append(done.stderr.strip())
    pytest.skip(f"no time namespaces here: {'; '.join(refusals)}")


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def recorded(
    request: pytest.FixtureRequest, tiny_checkpoint: Path, tiny_tokens: Path, tmp_path_factory: pytest.TempPathFactory
) -> Recorded:
    path = tmp_path_factory.mktemp("trace") / "run.trace"
    ranks = request.param
    inputs = ("--checkpoint", tiny_checkpoint, "--tokens", tiny_tokens, "--seq-len", 8, "--steps", 3, "--trace", path)
    train = cli_command("train", *inputs, "--partition", "2x1" if ranks == 1 else "1x1", "--batch-size", 2 // ranks)
    if ranks == 1:
        run_command([*train, "--sub-batches", "2"], timeout=60, environment=TWO_CORES).check()
    else:
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        mpirun = ["mpirun", *root, "--oversubscribe", "--bind-to", "none"]
        both = [*mpirun, "-n", "1", *train, ":", "-n", "1", *other_clock(), *train]
        run_command(both, timeout=90, environment={**TWO_CORES, "PYTHONSAFEPATH": "1"}).check()
    return Recorded(path, load_run(path))


@pytest.fixture
def exported(recorded: Recorded, tmp_path: Path) -> Callable[[str], Path]:
    def write(name: str) -> Path:
        (tmp_path / name).write_text("".join(FORMATS[name](recorded.run)), "utf-8")
        return tmp_path / name

    return write


def same_tasks(found: dict[int, trace_readers.Task], expected: dict[int, trace_readers.Task]) -> None:
    assert found.keys() == expected.keys()
    for number, task in expected.items():
        other = found[number]
        assert (other.operation, other.rank, other.worker) == (task.operation, task.rank, task.worker)
        assert (other.start, other.end) == pytest.approx((task.start, task.end), abs=1e-3)


def test_recorded(recorded: Recorded) -> None:
    """Three steps; all ranks and workers have tasks, and only transfers have no worker."""
    run, tasks = recorded.run, recorded.run.trace.tasks
    assert set(tasks["step"]) == {0, 1, 2}
    assert {task.operation for task in run.trace if task.worker < 0} == ({"transfer"} if len(run.ranks) > 1 else set())
    assert {(task.rank, task.worker) for task in run.trace if task.worker >= 0} == (
        {(0, 0), (0, 1)} if len(run.ranks) == 1 else {(0, 0), (1, 0)}
    )
    assert set(run.trace.seconds_by_operation()) <= set(run.trace.operations) - {"transfer"}
    kernels = sum(task.end_ns - task.start_ns for task in run.trace if task.worker >= 0)
    assert kernels * 1e-9 == pytest.approx(sum(run.trace.seconds_by_operation().values()))
    assert run.settings["sub_batches"] == 2
    assert run.settings["model"]["num_layers"] == 2
    assert len({handle.name for handle in run.trace.handles}) == len(run.trace.handles)


def test_clocks_are_aligned(recorded: Recorded) -> None:
    """No task starts before the end of one on another rank that it waits for, but for the clock's uncertainty.

    Not aligned, rank 1's times would be 5000 s later.
    """
    run, tasks = recorded.run, recorded.run.trace.tasks
    assert run.ranks[0].clock_uncertainty_ns == 0
    uncertainty = max(rank.clock_uncertainty_ns for rank in run.ranks)
    assert (uncertainty > 0) == (len(run.ranks) > 1)
    assert uncertainty < 1e9
    pairs = recorded.edges_of_run_tasks
    early = [pair for pair in pairs if tasks["end_ns"][pair[0]] > tasks["start_ns"][pair[1]] + 2 * uncertainty]
    assert early == []
    between = [pair for pair in pairs if tasks["rank"][pair[0]] != tasks["rank"][pair[1]]]
    assert bool(between) == (len(run.ranks) > 1)
    assert all(np.ptp(tasks[name][run.has_run]) < CLOCK_AHEAD / 2 * 1e9 for name in ("submit_ns", "start_ns", "end_ns"))


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("perfetto", trace_readers.read_perfetto),
        ("paje", trace_readers.read_paje),
    ],
)
def test_timelines(
    name: str,
    read: Callable[[Path], trace_readers.Contents],
    recorded: Recorded,
    exported: Callable[[str], Path],
) -> None:
    tasks, edges = read(exported(name))
    same_tasks(tasks, recorded.tasks)
    assert edges == recorded.edges_of_run_tasks


def same_graph(
    run: TracedRun, edges: set[tuple[int, int]], nodes: dict[int, dict[str, str]], found: set[tuple[int, int]]
) -> None:
    assert found == edges
    assert nodes.keys() == {task.id for task in run.trace}
    for task in run.trace:
        node = nodes[task.id]
        assert (node["operation"], int(node["step"]), int(node["rank"])) == (task.operation, task.step, task.rank)
        assert int(node.get("layer", -1)) == task.layer
        assert int(node.get("sub_batch", -1)) == task.sub_batch
        written = [access.handle.name for access in task.accesses if access.mode is AccessMode.WRITE]
        assert node.get("writes", "").split() == written


# pydot calls pyparsing by names that are deprecated.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("recorded", [2], indirect=True, ids=["two ranks"])
def test_dot(recorded: Recorded, tmp_path: Path) -> None:
    """The end of a run, because pydot needs seconds for a step."""
    last = len(recorded.run.trace) - 20
    tasks = recorded.run.trace.tasks.copy()
    tasks["step"] = np.arange(len(tasks)) >= last
    part = replace(recorded.run, trace=replace(recorded.run.trace, tasks=tasks)).steps(1, 1)
    (tmp_path / "dot").write_text("".join(FORMATS["dot"](part)), "utf-8")
    edges = {edge for edge in recorded.graph.edges if min(edge) >= last}
    assert edges
    same_graph(part, edges, *trace_readers.read_dot(tmp_path / "dot"))


def test_command(recorded: Recorded, tmp_path: Path) -> None:
    """The command describes a trace, and writes a part of it."""
    described = run_cli("trace", recorded.path).check().stdout
    assert f"{len(recorded.run.trace)} tasks in 3 submissions" in described
    assert f"rank {len(recorded.run.ranks) - 1} on " in described
    output = tmp_path / "part.json"
    run_cli("trace", recorded.path, "--format", "perfetto", "--output", output, "--steps", "1-1").check()
    tasks, edges = trace_readers.read_perfetto(output)
    assert tasks.keys() == {task.id for task in recorded.run.trace if task.step == 1 and task.worker >= 0}
    assert edges
    assert {path.name for path in tmp_path.iterdir()} == {"part.json"}


def test_steps_that_are_not_there(recorded: Recorded, tmp_path: Path) -> None:
    done = run_cli("trace", recorded.path, "--steps", "7-9").check(2)
    assert done.stderr == "Error: steps: found no task of 7 to 9, expected some of 0 to 2\n"
