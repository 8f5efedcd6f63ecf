"""The task graph in DOT, the language of Graphviz."""

from __future__ import annotations

from collections.abc import Iterator

from starpullm.traces.content import HEX_COLORS, dependencies, kind_of, task_fields, task_name
from starpullm.traces.traced_run import TracedRun


def dot_lines(run: TracedRun) -> Iterator[str]:
    """Yield the lines of a DOT file: a node for each task, a dotted edge where a buffer is only used again."""
    yield "digraph tasks {\n"
    yield '  node [shape=box, style=filled, fontname="sans-serif"];\n'
    for task in run.trace:
        places = [f"step {task.step}"]
        places += [f"sub-batch {task.sub_batch}"] if task.sub_batch >= 0 else []
        places += [f"layer {task.layer}"] if task.layer >= 0 else []
        attributes = {
            "label": f"{task_name(task)}\n{', '.join(places)}",
            "fillcolor": HEX_COLORS[kind_of(task.operation)],
            "operation": task.operation,
            **task_fields(run, task),
        }
        yield f"  t{task.id} [{_attributes(attributes)}];\n"
    first = int(run.trace.tasks["id"][0]) if len(run.trace) else 0
    for edge in dependencies(run):
        attributes = {
            "handles": " ".join(edge.handles),
            "kind": "reuse" if edge.is_reuse else "data",
            "style": "dotted" if edge.is_reuse else "solid",
        }
        yield f"  t{first + edge.before} -> t{first + edge.after} [{_attributes(attributes)}];\n"
    yield "}\n"


def _attributes(values: dict[str, str | int | float]) -> str:
    return ", ".join(f"{name}={_quoted(value)}" for name, value in values.items())


def _quoted(value: str | int | float) -> str:
    """Return a DOT string; Graphviz shows the line breaks of a label."""
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
