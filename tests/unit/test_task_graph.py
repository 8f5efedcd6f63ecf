"""Tests of the graph code on random graphs, with NetworkX as the oracle."""

from __future__ import annotations

import itertools
from typing import Any

import networkx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starpullm.graph import task_graph as graph_module
from starpullm.graph.task_graph import TaskGraph


@st.composite
def graphs(draw: st.DrawFn) -> TaskGraph:
    """Graphs of up to 12 tasks, some pairs of which have two edges."""
    count = draw(st.integers(1, 12))
    pairs = draw(st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=30))
    edges = sorted(
        (after, before, handle)
        for before, after in pairs
        if before < after
        for handle in range(draw(st.integers(1, 2)))
    )
    table = np.array(edges, np.int64).reshape(-1, 3)
    first = np.searchsorted(table[:, 0], np.arange(count + 1))
    return TaskGraph(first, table[:, 1], table[:, 2], np.zeros(len(edges), np.int8))


def edges_of(graph: TaskGraph) -> set[tuple[int, int]]:
    return {(graph.edge(index).before, graph.edge(index).after) for index in range(graph.num_edges)}


def oracle(graph: TaskGraph) -> Any:
    same = networkx.DiGraph()
    same.add_nodes_from(range(graph.num_tasks))
    same.add_edges_from(edges_of(graph))
    return same


@given(graph=graphs(), block=st.integers(1, 13))
def test_paths(graph: TaskGraph, block: int) -> None:
    before, after = (numbers.reshape(-1) for numbers in np.indices((graph.num_tasks, graph.num_tasks)))
    paths = networkx.transitive_closure_dag(oracle(graph))
    expected = [paths.has_edge(*pair) for pair in zip(before.tolist(), after.tolist(), strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_module, "_BLOCK", block)
        assert graph.implies(before, after).tolist() == expected


@given(graph=graphs(), block=st.integers(1, 13))
def test_smallest_graph_with_the_same_paths(graph: TaskGraph, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_module, "_BLOCK", block)
        reduced = graph.reduced()
    assert edges_of(reduced) == set(networkx.transitive_reduction(oracle(graph)).edges)
    edges = [graph.edge(index) for index in range(graph.num_edges)]
    kept = [edge for edge in edges if (edge.before, edge.after) in edges_of(reduced)]
    assert [reduced.edge(index) for index in range(reduced.num_edges)] == kept


@given(graph=graphs(), data=st.data())
def test_critical_path(graph: TaskGraph, data: st.DataObject) -> None:
    count = graph.num_tasks
    durations = data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    length, path = graph.critical_path(np.array(durations))
    weighted = networkx.DiGraph()
    weighted.add_weighted_edges_from((before, after, durations[before]) for before, after in edges_of(graph))
    weighted.add_weighted_edges_from((task, count, durations[task]) for task in range(count))  # a task at the end
    assert length == networkx.dag_longest_path_length(weighted) == sum(durations[task] for task in path)
    assert set(itertools.pairwise(path)) <= edges_of(graph)
