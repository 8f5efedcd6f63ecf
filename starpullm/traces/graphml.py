"""The task graph in GraphML (graphml.graphdrawing.org), which NetworkX, Gephi and yEd read."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape, quoteattr

from starpullm.traces.content import dependencies, kind_of, task_fields
from starpullm.traces.run import TracedRun

_NODE_KEYS = {
    "operation": "string",
    "kind": "string",
    "id": "long",
    "step": "long",
    "sub_batch": "int",
    "layer": "int",
    "rank": "int",
    "worker": "int",
    "submit_us": "double",
    "start_us": "double",
    "duration_us": "double",
    "reads": "string",
    "writes": "string",
    "updates": "string",
    "adds_to": "string",
}
_EDGE_KEYS = {"handles": "string", "dependency": "string"}


def graphml_lines(run: TracedRun) -> Iterator[str]:
    """Yield the lines of a GraphML file; the attributes are those of the DOT file."""
    yield '<?xml version="1.0" encoding="UTF-8"?>\n'
    yield '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">\n'
    for domain, keys in (("node", _NODE_KEYS), ("edge", _EDGE_KEYS)):
        for name, kind in keys.items():
            yield f'<key id="{name}" for="{domain}" attr.name="{name}" attr.type="{kind}"/>\n'
    yield '<graph id="tasks" edgedefault="directed">\n'
    for task in run.trace:
        fields = {"operation": task.operation, "kind": kind_of(task.operation), **task_fields(run, task)}
        yield f'<node id="t{task.id}">{_data(fields)}</node>\n'
    first = int(run.trace.tasks["id"][0]) if len(run.trace) else 0
    for edge in dependencies(run):
        fields = {"handles": " ".join(edge.handles), "dependency": "reuse" if edge.is_reuse else "data"}
        yield f'<edge source="t{first + edge.before}" target="t{first + edge.after}">{_data(fields)}</edge>\n'
    yield "</graph>\n</graphml>\n"


def _data(fields: dict[str, str | int | float]) -> str:
    return "".join(f"<data key={quoteattr(name)}>{escape(str(value))}</data>" for name, value in fields.items())
