"""What the recorder shows of the graph: steps are submitted ahead, and wait for each other through data only.

Collected by pytest; the runs are in child processes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .children import run_python

# C, B, T. Wide and short: updates take long against forward tasks. Long: a step takes a hundred times as long as its
# submission, so that a busy machine doesn't turn their order round.
WIDE_AND_SHORT = (192, 4, 8)
LONG = (384, 16, 64)

RUN = """
import json, sys
from pathlib import Path
from starpullm import Runtime, Trainer
from starpullm.data.generator import generate_checkpoint, generate_tokens
from starpullm.files.model import ModelConfig

partition, scheduler = sys.argv[2], sys.argv[3]
sub_batches, steps, C, B, T = map(int, sys.argv[4:])
config = ModelConfig(max_seq_len=T, vocab_size=61, num_layers=2, num_heads=2, channels=C, padded_vocab_size=64)
checkpoint = Path(sys.argv[1]) / "model.bin"
generate_checkpoint(checkpoint, config, 1)
with (
    Runtime(partition, scheduler) as runtime,
    Trainer(runtime, checkpoint, batch_size=B, seq_len=T, sub_batches=sub_batches, trace=True, steps_in_flight=steps)
    as trainer,
):
    losses = [trainer.submit(*generate_tokens(1, step, B, T, 61)) for step in range(steps)]
    trace = trainer.trace()
print(json.dumps([
    {
        "id": task.id, "step": task.step, "operation": task.operation, "layer": task.layer,
        "sub_batch": task.sub_batch, "worker": task.worker,
        "submit": task.submit_ns, "start": task.start_ns, "end": task.end_ns,
        "reads": [a.handle.name for a in task.accesses if a.mode.reads],
        "writes": [a.handle.name for a in task.accesses if a.mode.writes],
    }
    for task in trace
]))
"""

Task = dict[str, Any]


def traced_run(
    directory: object,
    partition: str,
    scheduler: str,
    sub_batches: int,
    steps: int,
    sizes: tuple[int, int, int] = WIDE_AND_SHORT,
) -> list[Task]:
    run = run_python(RUN, directory, partition, scheduler, sub_batches, steps, *sizes)
    tasks: list[Task] = json.loads(run.stdout)
    return tasks


def required_order(tasks: list[Task]) -> list[tuple[Task, Task]]:
    """Pairs that the accesses alone put in order: read after write, write after read, write after write."""
    writer: dict[str, Task] = {}
    readers: dict[str, list[Task]] = {}
    pairs = []
    for task in tasks:
        for handle in {*task["reads"], *task["writes"]}:
            if handle in task["writes"]:
                before = readers.get(handle) or ([writer[handle]] if handle in writer else [])
                writer[handle], readers[handle] = task, []
            else:
                before = [writer[handle]] if handle in writer else []
                readers.setdefault(handle, []).append(task)
            pairs += [(earlier, task) for earlier in before]
    return pairs


def test_steps_are_submitted_ahead(tmp_path: object) -> None:
    """All of the second step has been submitted before the first step's first update starts."""
    tasks = traced_run(tmp_path, "2x1", "lws", 2, 2, LONG)
    updates = [task["start"] for task in tasks if task["step"] == 0 and task["operation"] == "adamw_update"]
    submitted = [task["submit"] for task in tasks if task["step"] == 1]
    assert max(submitted) < min(updates)


def test_forward_waits_for_update_through_data_only(tmp_path: object) -> None:
    """A forward task of step k + 1 reads parameters, and waits for their update of step k.

    It doesn't wait for the others: some start while other updates of step k have not ended. No task but these carries
    one step's results to the next, apart from buffers that are reused.
    """
    tasks = traced_run(tmp_path, "2x1", "random", 2, 24)
    steps = range(1, 1 + max(task["step"] for task in tasks))
    overlaps = 0
    for step in steps:
        updates = [t for t in tasks if t["step"] == step - 1 and t["operation"] == "adamw_update"]
        update_of = {handle: task for task in updates for handle in task["writes"] if handle.startswith("params/")}
        forwards = [t for t in tasks if t["step"] == step and any(r.startswith("params/") for r in t["reads"])]
        forwards = [t for t in forwards if t["operation"].endswith("_forward")]
        assert {f["operation"] for f in forwards} == {"encoder_forward", "layernorm_forward", "matmul_forward"}
        for forward in forwards:
            awaited = [update_of[handle] for handle in forward["reads"] if handle.startswith("params/")]
            assert awaited
            assert all(update["end"] <= forward["start"] for update in awaited)
            others = [update for update in updates if update not in awaited]
            overlaps += any(update["end"] > forward["start"] for update in others)
    assert overlaps > 0


def test_sub_batches_meet_in_the_weights_gradients_only(tmp_path: object) -> None:
    """What one sub-batch writes and another reads or writes: parameter gradients, and the mean loss."""
    tasks = [task for task in traced_run(tmp_path, "1x1", "lws", 4, 1) if task["sub_batch"] >= 0]
    shared = {
        handle
        for earlier, later in required_order(tasks)
        if earlier["sub_batch"] != later["sub_batch"]
        for handle in set(earlier["writes"]) & {*later["reads"], *later["writes"]}
    }
    assert {handle.split("/")[0].split("@")[0] for handle in shared} == {"grads", "mean_loss"}


def test_every_task_has_its_times_in_order_and_one_gradient_a_plain_name(tmp_path: Path) -> None:
    """Without this, a recorder that loses the times only makes the suite skip its tests of the order."""
    tasks = traced_run(tmp_path, "1x1", "lws", 2, 2)
    assert tasks
    assert [task["id"] for task in tasks if not task["submit"] <= task["start"] < task["end"]] == []
    gradients = {name for task in tasks for name in task["writes"] if name.startswith("grads/")}
    assert "grads/wte" in gradients
    assert not [name for name in gradients if "/rank" in name or "#" in name]
