"""Tests of the dependency checks on small task flows: the required order against its definition, checks against faults.

The graph code itself is tested in test_task_graph.py; real runs are in the suite.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import networkx
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from starpullm.checks.dependencies.observed_order import ObservedOrder, observe, violation_text
from starpullm.checks.dependencies.priorities import Priorities
from starpullm.checks.dependencies.reuse import HandleReuse, typical_durations
from starpullm.checks.dependencies.runtime_graph import RuntimeGraph
from starpullm.checks.result import Outcome
from starpullm.errors import InvalidArgumentError
from starpullm.graph.required_order import required_edges
from starpullm.graph.task_graph import DependencyKind, TaskGraph
from starpullm.trace import AccessMode, Trace

from .traces import Flow, trace_of

check_runtime_graph, check_observed, check_reuse = RuntimeGraph().judge, ObservedOrder().judge, HandleReuse().judge

R, W, RW, REDUX = AccessMode
RAW, WAR, WAW = DependencyKind

Matrix = NDArray[np.bool_]


def make_trace(
    flow: Flow,
    *,
    starts: Sequence[int] | None = None,
    ends: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
    ranks: Sequence[int] | None = None,
    first_id: int = 0,
) -> Trace:
    """A trace of tasks that ran one after the other, 10 ns each, unless told otherwise; handle 3 is called h3."""
    num_handles = 1 + max((handle for accesses in flow for handle, _ in accesses), default=0)
    sizes = {f"h{number}": 4 for number in range(num_handles)}
    trace = trace_of(flow, sizes, step=steps or 0, rank=ranks or 0, sub_batch=-1, layer=-1)
    tasks = trace.tasks
    tasks["id"] += first_id
    tasks["start_ns"] = np.arange(len(flow)) * 10 if starts is None else starts
    tasks["end_ns"] = tasks["start_ns"] + 10 if ends is None else ends
    return trace


def oracle(flow: Flow) -> TaskGraph:
    trace = make_trace(flow)
    return required_edges(trace.tasks, trace.accesses)


def edges_of(graph: TaskGraph) -> set[tuple[int, int]]:
    return {(graph.edge(index).before, graph.edge(index).after) for index in range(graph.num_edges)}


def digraph(count: int, pairs: Iterable[tuple[int, int]]) -> Any:
    """A NetworkX graph of tasks 0 to count - 1."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(pairs)
    return graph


def closure(count: int, pairs: set[tuple[int, int]]) -> Matrix:
    """Which pairs of tasks are joined by a path, by NetworkX."""
    paths = networkx.transitive_closure_dag(digraph(count, pairs))
    return np.array([[paths.has_edge(before, after) for after in range(count)] for before in range(count)], bool)


def required_by_definition(flow: Flow) -> Matrix:
    """Two accesses of a handle conflict unless both read or both contribute to the same sum; and so on through."""
    pairs = set()
    for (before, earlier), (after, later) in itertools.combinations(enumerate(flow), 2):
        for handle, mode in earlier:
            other = dict(later).get(handle)
            between = {dict(accesses).get(handle) for accesses in flow[before + 1 : after]}
            commute = mode == other == R or (mode == other == REDUX and between <= {None, REDUX})
            if other is not None and not commute:
                pairs.add((before, after))
    return closure(len(flow), pairs)


def free_pairs(starts: Sequence[int], ends: Sequence[int]) -> int:
    """In how many pairs of tasks the later one started before the earlier one had ended."""
    return sum(starts[later] < ends[earlier] for earlier, later in itertools.combinations(range(len(starts)), 2))


@st.composite
def flows(
    draw: st.DrawFn, modes: Sequence[int] = (R, W, RW, REDUX), max_tasks: int = 10
) -> list[list[tuple[int, int]]]:
    handles = st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True)
    tasks = draw(st.lists(handles, min_size=1, max_size=max_tasks))
    return [[(handle, int(draw(st.sampled_from(modes)))) for handle in accesses] for accesses in tasks]


# ---- The oracle ----


@given(flow=flows())
def test_paths_are_the_definitions(flow: Flow) -> None:
    assert (closure(len(flow), edges_of(oracle(flow))) == required_by_definition(flow)).all()


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ([W, R], {(0, 1): RAW}),
        ([W, W], {(0, 1): WAW}),
        ([R, W], {(0, 1): WAR}),
        ([R, R], {}),
        ([W, R, R, W], {(0, 1): RAW, (0, 2): RAW, (1, 3): WAR, (2, 3): WAR}),
        ([W, RW, RW], {(0, 1): RAW, (1, 2): RAW}),
        # Contributions commute, after what was there before and before what comes next.
        ([W, REDUX, REDUX, R], {(0, 1): RAW, (0, 2): RAW, (1, 3): RAW, (2, 3): RAW}),
        ([R, REDUX, REDUX, W], {(0, 1): WAR, (0, 2): WAR, (1, 3): WAW, (2, 3): WAW}),
        # A read between two groups separates them.
        ([REDUX, R, REDUX], {(0, 1): RAW, (1, 2): WAR, (0, 2): RAW}),
    ],
)
def test_kinds(modes: Sequence[int], expected: dict[tuple[int, int], DependencyKind]) -> None:
    graph = oracle([[(0, mode)] for mode in modes])
    assert {(edge.before, edge.after): edge.kind for edge in map(graph.edge, range(graph.num_edges))} == expected


def test_a_handle_listed_twice_is_used_in_both_ways() -> None:
    twice = oracle([[(0, W)], [(0, R)], [(0, R), (0, W)]])
    once = oracle([[(0, W)], [(0, R)], [(0, RW)]])
    assert edges_of(twice) == edges_of(once) == {(0, 1), (0, 2), (1, 2)}
    assert edges_of(oracle([[(0, R)], [(0, R), (0, R)]])) == set()


def test_unknown_mode_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="access 1: found mode 5, expected 1 to 4"):
        oracle([[(0, W)], [(0, 5)]])


# ---- Against the runtime's graph ----


@given(flow=flows(), data=st.data())
def test_runtime_that_lost_an_access_is_caught_exactly_where_the_order_changes(flow: Flow, data: st.DataObject) -> None:
    task = data.draw(st.integers(0, len(flow) - 1))
    lost = data.draw(st.integers(0, len(flow[task]) - 1))
    faulty = [list(accesses) for accesses in flow]
    if data.draw(st.booleans()):
        del faulty[task][lost]
    else:
        faulty[task][lost] = faulty[task][lost][0], int(R)
    pairs = edges_of(oracle(faulty))
    required, built = required_by_definition(flow), required_by_definition(faulty)
    assume(required.any())
    result = check_runtime_graph(make_trace(flow), sorted(pairs))
    assert bool(result.facts["missing"]) == (required & ~built).any()
    assert bool(result.facts["superfluous"]) == (built & ~required).any()
    for before, after in result.facts["missing"]:
        assert required[before, after]
        assert not built[before, after]
    assert (result.outcome is Outcome.PASSED) == (required == built).all()


@given(flow=flows(), data=st.data())
def test_every_superfluous_edge_is_reported(flow: Flow, data: st.DataObject) -> None:
    assume(len(flow) > 1)
    required = required_by_definition(flow)
    before = data.draw(st.integers(0, len(flow) - 2))
    after = data.draw(st.integers(before + 1, len(flow) - 1))
    assume(required.any())
    result = check_runtime_graph(make_trace(flow), sorted(edges_of(oracle(flow)) | {(before, after)}))
    assert result.facts["superfluous"] == ([] if required[before, after] else [[before, after]])
    assert result.outcome is (Outcome.PASSED if required[before, after] else Outcome.FAILED)


def test_findings_name_tasks_handles_and_modes() -> None:
    trace = make_trace([[(0, W)], [(0, R), (1, W)], [(0, R), (1, R)], [(0, R)]], steps=[0, 0, 1, 1])
    result = check_runtime_graph(trace, [(0, 1), (0, 2), (0, 3), (2, 3)])
    assert result.lines() == [
        "runtime graph: failed: StarPU's graph is not the one that the declared accesses require (2 in 3 required "
        "edges); 1 missing, 1 superfluous of 4 of the runtime",
        "  missing: work (step 0) → work (step 1): read after write of h1",
        "  superfluous: work (step 1) → work (step 1): h0 (read, read)",
    ]
    assert (result.measured, result.limit) == (2, 0)


def test_order_over_the_runtimes_own_tasks_counts() -> None:
    """StarPU may join readers in an empty task of its own before a writer."""
    trace = make_trace([[(0, R)], [(0, R)], [(0, W)]], first_id=10)
    assert check_runtime_graph(trace, [(10, 99), (11, 99), (99, 98), (98, 12)]).outcome is Outcome.PASSED
    assert check_runtime_graph(trace, [(10, 99), (11, 99)]).facts["missing"] == [[10, 12], [11, 12]]


def test_edge_backwards_in_the_order_of_submission_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"runtime edge 1 → 0: found a task that waits"):
        check_runtime_graph(make_trace([[(0, W)], [(0, R)]]), [(1, 0)])


# ---- Against the run ----


@given(flow=flows(), data=st.data())
def test_ranks_are_compared_each_by_itself(flow: Flow, data: st.DataObject) -> None:
    """The order of one rank's tasks holds also where it is required over another rank's, whose clock says nothing."""
    ranks = data.draw(st.lists(st.integers(0, 1), min_size=len(flow), max_size=len(flow)))
    moment = st.integers(0, 12)
    starts = data.draw(st.lists(moment, min_size=len(flow), max_size=len(flow)))
    ends = [start + data.draw(moment) for start in starts]
    same_rank = np.array(ranks)[:, None] == np.array(ranks)[None, :]
    broken = (np.array(ends)[:, None] > np.array(starts)[None, :]) & same_rank & required_by_definition(flow)
    edges = edges_of(oracle(flow))
    one_rank = [
        [moment for moment, number in zip(times, ranks, strict=True) if number == 0] for times in (starts, ends)
    ]
    assume(broken.any() or (any(ranks[a] == ranks[b] for a, b in edges) and free_pairs(*one_rank)))
    result = check_observed(make_trace(flow, starts=starts, ends=ends, ranks=ranks))
    assert (result.measured != 0) == broken.any()
    for path in observe(make_trace(flow, starts=starts, ends=ends, ranks=ranks)).violations:
        tasks = [path[0].before, *(step.after for step in path)]
        assert broken[tasks[0], tasks[-1]]
        assert all(ranks[task] != ranks[tasks[0]] for task in tasks[1:-1])


def test_violation_over_another_rank_is_explained() -> None:
    trace = make_trace([[(0, W)], [(0, R), (1, W)], [(1, R)]], starts=[0, 90, 9], ends=[10, 95, 20], ranks=[0, 1, 0])
    result = check_observed(trace)
    assert [finding.sentence for finding in result.findings] == [
        "work (step 0) → [h0] work (step 0) → [h1] work (step 0): the last started 1 ns before the end of the first"
    ]


def test_of_several_tasks_before_another_ranks_the_last_counts() -> None:
    flow = [[(0, W)], [(1, W)], [(2, W)], [(0, R), (1, R), (2, R), (3, W)], [(3, R)]]
    trace = make_trace(flow, starts=[0, 0, 0, 0, 15], ends=[10, 20, 10, 0, 30], ranks=[0, 0, 0, 1, 0])
    (path,) = observe(trace).violations
    assert (path[0].before, path[-1].after) == (1, 4)
    assert "started 5 ns before" in violation_text(trace, path)


def test_what_never_ran_is_not_compared() -> None:
    trace = make_trace([[(0, W)], [(0, R)]], starts=[100, 0], ends=[110, 0])
    assert check_observed(trace).outcome is Outcome.FAILED
    trace.tasks["worker"][1] = -1
    with pytest.raises(InvalidArgumentError, match="nothing was compared"):
        check_observed(trace)


def test_a_run_that_broke_the_order_is_described() -> None:
    flow = [[(0, W)], [(0, R)], [(1, W)]]
    result = check_observed(make_trace(flow, starts=[0, 5, 0], ends=[9, 6, 1]))
    assert result.compared == 1
    assert result.lines() == [
        "observed order: failed: a task began before one had ended that it has to wait for (1 in 1 required edges); "
        "up to 2 tasks at a time, 3 pairs not as submitted",
        "  work (step 0) → [h0] work (step 0): the last started 4 ns before the end of the first",
    ]


def test_times_that_run_backwards_fail() -> None:
    trace = make_trace([[(0, W)], [(0, R)]], starts=[0, 20], ends=[10, 15])
    result = check_observed(trace)
    assert result.outcome is Outcome.FAILED
    assert [finding.sentence for finding in result.findings] == [
        "work (step 0): found a start before its submission, or an end before its start"
    ]


def test_tasks_that_have_ended_are_no_longer_parallel() -> None:
    flow = [[(0, W)], [(0, R)], [(1, W)], [(2, W)], [(3, W)]]
    trace = make_trace(flow, starts=[0, 10, 20, 30, 35], ends=[10, 20, 30, 40, 45])
    assert (observe(trace).max_parallel, observe(trace).num_free) == (2, 1)


def test_a_run_in_the_order_of_submission_shows_nothing() -> None:
    """It would have kept any order. One overlap of two tasks that nothing orders is enough."""
    flow = [[(0, W)], [(0, R)], [(1, W)]]
    with pytest.raises(
        InvalidArgumentError, match="observed order: nothing was compared: 0 required edges compared; up to 1 tasks"
    ):
        check_observed(make_trace(flow))
    result = check_observed(make_trace(flow, starts=[0, 10, 19], ends=[10, 20, 30]))
    assert (result.outcome, result.compared, result.facts["num_free"]) == (Outcome.PASSED, 1, 1)


def test_empty_traces_show_nothing() -> None:
    empty = make_trace([])
    calls: list[Callable[[], object]] = [
        lambda: check_runtime_graph(empty, np.empty((0, 2))),
        lambda: check_observed(empty),
        lambda: check_reuse(empty, durations_in(empty)),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match="nothing was compared"):
            call()


# ---- Reuse ----

# One iteration of Figure 1's kind: two operations forward, the loss, backward, and the update. Handles: parameters 0
# and 1, activations 2 and 3, their gradients 4 and 7, the parameters' gradients 5 and 6.
ITERATION = [
    [(2, W), (0, R)],
    [(3, W), (2, R), (1, R)],
    [(4, W), (3, R)],
    [(6, W), (4, R), (2, R)],
    [(7, W), (4, R), (1, R)],
    [(5, W), (7, R)],
    [(1, RW), (6, R)],
    [(0, RW), (5, R)],
]


def durations_in(trace: Trace) -> NDArray[np.int64]:
    durations: NDArray[np.int64] = trace.tasks["end_ns"] - trace.tasks["start_ns"]
    return durations


def test_activations_reused_by_the_next_iteration_cost_nothing() -> None:
    trace = make_trace(ITERATION * 3, steps=[step for step in range(3) for _ in ITERATION])
    result = check_reuse(trace, durations_in(trace))
    assert result.outcome is Outcome.PASSED
    assert (result.measured, result.limit) == (0, 0)
    assert result.facts["critical_path"] == result.facts["critical_path_without_reuse"]
    assert result.compared > 2


def test_reuse_that_makes_wait_is_measured() -> None:
    """A buffer that two independent chains share; the first takes 30 + 50, the second 20 + 10."""
    flow = [[(0, W)], [(0, R), (1, W)], [(0, W)], [(0, R), (2, W)]]
    durations = np.array([30, 50, 20, 10]) * 10**6
    result = check_reuse(make_trace(flow, steps=[0, 0, 1, 1]), durations)
    assert result.outcome is Outcome.FAILED
    assert result.measured == pytest.approx((110 - 80) / 80)
    paths = (result.facts["critical_path"], result.facts["critical_path_without_reuse"])
    assert paths == pytest.approx((0.11, 0.08))
    assert result.lines() == [
        "handle reuse: failed: reused buffers lengthen the critical path (1 in 1 added edges); critical path 0.110000 "
        "s, without reuse 0.080000 s",
        "  on the critical path: work (step 0) → work (step 1): write after read of h0",
    ]
    # Both chains are of one step: across steps nothing is reused.
    with pytest.raises(InvalidArgumentError, match="nothing was compared: 0 added edges compared"):
        check_reuse(make_trace(flow), durations)


def test_updates_in_place_wait_for_readers_in_both_flows() -> None:
    flow = [[(0, R), (1, W)], [(0, RW)]]
    with pytest.raises(InvalidArgumentError, match="nothing was compared"):
        check_reuse(make_trace(flow, steps=[0, 1]), np.array([1, 1]))


@given(flow=flows((R, W)), data=st.data())
def test_without_reuse_only_true_dependences_remain(flow: Flow, data: st.DataObject) -> None:
    """Each task is a step of its own, so each write gets a fresh handle."""
    durations = data.draw(st.lists(st.integers(1, 9), min_size=len(flow), max_size=len(flow)))
    graph = oracle(flow)
    edges = [graph.edge(index) for index in range(graph.num_edges)]
    true = {(edge.before, edge.after) for edge in edges if edge.kind is RAW}
    added = {(edge.before, edge.after) for edge in edges} - true
    assume(added)
    result = check_reuse(make_trace(flow, steps=range(len(flow))), np.array(durations))
    ends: list[int] = []
    for task, duration in enumerate(durations):
        ends.append(duration + max((ends[before] for before, after in true if after == task), default=0))
    assert result.compared == len(added)
    assert result.facts["critical_path_without_reuse"] == pytest.approx(max(ends) * 1e-9)
    assert result.measured is not None
    assert result.measured >= 0


def test_tasks_without_times_decide_nothing() -> None:
    trace = make_trace(ITERATION * 2, steps=[0] * 8 + [1] * 8)
    result = check_reuse(trace, np.zeros(16, np.int64))
    assert (result.outcome, result.measured) == (Outcome.INCONCLUSIVE, 0)
    assert result.sentence.startswith("no task took any time; ")


def test_typical_durations_are_the_shortest_of_like_tasks() -> None:
    trace = make_trace([[(0, W)], [(1, W)], [(0, RW)], [(0, R), (1, R)]], ends=[13, 15, 90, 37])
    assert typical_durations(trace).tolist() == [5, 5, 5, 7]


# ---- Results ----


@pytest.mark.parametrize(
    ("starts", "found"),
    [
        ((0, 30, 10, 20, 40), []),
        # Task 3 becomes ready with the end of task 2, before the one of the lowest priority.
        ((0, 20, 10, 30, 40), ["work (step 0): found priority -1, expected 1"]),
        ((10, 0, 20, 30, 40), ["work (step 0): found priority -1, expected 0"]),
        ((0, 40, 10, 20, 30), ["work (step 0): found priority -2, expected -1"]),
    ],
)
def test_priorities_of_ready_tasks(starts: Sequence[int], found: Sequence[str]) -> None:
    """The first task is all that is ready beside the second; the last choice is none."""
    trace = make_trace([[(0, W)], [(1, W)], [(0, RW)], [(0, RW)], [(2, W)]], starts=starts)
    trace.tasks["priority"] = (0, -1, 0, 1, -2)
    result = Priorities().judge(trace)
    assert [finding.sentence for finding in result.findings] == found
    assert (result.outcome, result.compared) == (Outcome.FAILED if found else Outcome.PASSED, 4)
