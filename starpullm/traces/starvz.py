"""The CSV files that StarVZ's phase 1 reads, with the columns that StarPU's own tool for StarVZ writes.

``starvz_phase1(FOLDER)`` in R makes Parquet files of them. Times are in milliseconds after the first submission. Tasks
have names ``RANK_NUMBER``, workers ``RANK_CPUn``.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from starpullm.trace import AccessMode, TaskRecord
from starpullm.traces.content import dependencies_of_run_tasks
from starpullm.traces.run import TracedRun

STATE_COLUMNS = (
    "Nature ResourceId Type Start End Duration Depth Value Size Params Footprint Tag JobId SubmitOrder GFlop X Y "
    "Iteration Subiteration"
).split()
TASK_COLUMNS = (
    "Control JobId SubmitOrder SubmitTime Handles MPIRank Name Model Priority Tag WorkerId MemoryNode StartTime "
    "EndTime Footprint Parameters Modes Sizes DependsOn DepLabels Iteration"
).split()
HANDLE_COLUMNS = "Handle HomeNode MPIRank Size Description Coordinates MPIOwner MPITag Name".split()
DAG_COLUMNS = ("Dependent", "JobId")
ENTITY_COLUMNS = ("Parent", "Name", "Type", "Nature")
_MODES = {AccessMode.READ: "R", AccessMode.WRITE: "W", AccessMode.READ_WRITE: "RW", AccessMode.REDUX: "REDUX"}

Row = Sequence[object]


def write_starvz(run: TracedRun, folder: Path) -> None:
    """Write the files into a folder, which exists and is empty."""
    tasks = [task for task in run.trace if task.worker >= 0]
    before: dict[int, list[str]] = {task.id: [] for task in tasks}
    dag = []
    for edge in dependencies_of_run_tasks(run):
        earlier, later = run.trace[edge.before], run.trace[edge.after]
        before[later.id].append(_job(earlier))
        dag.append((_job(earlier), _job(later)))
    _write(folder / "entities.csv", ENTITY_COLUMNS, _entities(run, tasks))
    _write(folder / "paje.worker_state.csv.gz", STATE_COLUMNS, (_state(run, task) for task in tasks))
    _write(folder / "rec.tasks.csv.gz", TASK_COLUMNS, (_task(run, task, before[task.id]) for task in tasks))
    _write(folder / "rec.data_handles.csv.gz", HANDLE_COLUMNS, _handles(run))
    _write(folder / "dag.csv.gz", DAG_COLUMNS, dag)


def _write(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    # Without the time, so that the same trace gives the same file.
    with path.open("wb") as raw:
        compressed = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if path.suffix == ".gz" else raw
        with io.TextIOWrapper(compressed, "utf-8", newline="") as text:
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(rows)


def _entities(run: TracedRun, tasks: Iterable[TaskRecord]) -> Iterator[Row]:
    """Yield the tree of ranks and workers, as pj_dump lists it."""
    yield 0, 0, 0, "Container"
    yield 0, "root", "MPI Program", "Container"
    for rank in range(len(run.ranks)):
        yield "root", f"{rank}_program", "Program", "Container"
        yield f"{rank}_program", f"{rank}_MEMNODE0", "Memory Node", "Container"
    for rank, worker in sorted({(task.rank, task.worker) for task in tasks}):
        yield f"{rank}_MEMNODE0", f"{rank}_T{worker}", "Thread", "Container"
        yield f"{rank}_T{worker}", f"{rank}_CPU{worker}", "Worker", "Container"
        yield f"{rank}_CPU{worker}", "Worker State", "Worker State", "State"


def _state(run: TracedRun, task: TaskRecord) -> Row:
    start, end = _milliseconds(run, task.start_ns), _milliseconds(run, task.end_ns)
    duration = f"{(task.end_ns - task.start_ns) / 1e6:.6f}"
    size = sum(access.handle.bytes for access in task.accesses)
    resource = f"{task.rank}_CPU{task.worker}"
    # X and Y are the coordinates of the task's data: the layer and the sub-batch.
    return (
        *("State", resource, "Worker State", start, end, duration, "0.000000", task.operation, size, "", "", "0"),
        *(_job(task), task.id, "0.000000", max(task.layer, 0), max(task.sub_batch, 0), task.step, -1),
    )


def _task(run: TracedRun, task: TaskRecord, before: Sequence[str]) -> Row:
    handles = " ".join(str(access.handle.id) for access in task.accesses)
    modes = " ".join(_MODES[access.mode] for access in task.accesses)
    sizes = " ".join(str(access.handle.bytes) for access in task.accesses)
    times = (_milliseconds(run, time) for time in (task.start_ns, task.end_ns))
    labels = " ".join("task" for _ in before)
    submitted = _milliseconds(run, task.submit_ns)
    return (
        *("", _job(task), task.id, submitted, handles, task.rank, task.operation, task.operation, 0, "0"),
        *(task.worker, 0, *times, "", "", modes, sizes, " ".join(before), labels, task.step),
    )


def _handles(run: TracedRun) -> Iterator[Row]:
    for handle in run.trace.handles:
        yield handle.id, 0, "", handle.bytes, handle.name, "", "", handle.id, handle.name


def _job(task: TaskRecord) -> str:
    return f"{task.rank}_{task.id}"


def _milliseconds(run: TracedRun, time_ns: int) -> str:
    return f"{(time_ns - run.origin_ns) / 1e6:.6f}"
