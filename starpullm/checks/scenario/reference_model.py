"""A trainer and its reference model, the plain one, compared in everything that can be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from starpullm.checks.accesses import Accesses, Poison
from starpullm.checks.dependencies.observed_order import observe, violation_text
from starpullm.checks.execution_order import SHARED_ACTIVATIONS, WITH_WEIGHTS, execution_order
from starpullm.checks.expectations import Expectations
from starpullm.checks.observer import Observer
from starpullm.checks.reduction import gradient_error
from starpullm.checks.reference64 import gradient_references
from starpullm.checks.result import Result
from starpullm.errors import StateError
from starpullm.golden.plain import Ids, PlainModel
from starpullm.golden.records import layer_name
from starpullm.loss import Loss
from starpullm.runtime import Runtime
from starpullm.trace import Trace
from starpullm.trainer import Trainer


class TrainerWithReference:
    """A trainer, its plain model, and what has been submitted.

    With the reduction ``redux`` gradients have no fixed bits. They are compared by their bounds, and the model goes on
    with those that the trainer had. As only the last step's can be read, steps in flight have the learning rate 0: then
    the parameters still have fixed bits, and the moments, which haven't, are taken over.
    """

    def __init__(
        self, trainer: Trainer, model: PlainModel, options: Mapping[str, Any], expect: Expectations, folders: list[str]
    ) -> None:
        self.trainer, self.model, self.expect = trainer, model, expect
        self.folders, self.saving = folders, ""
        """Where it saves its states, the one that it was resumed from first; and where it saves now."""
        self.poisoned, self.audited = bool(options.get("poison")), bool(options.get("audit"))
        self.traced = self.poisoned or self.audited or bool(options.get("trace") or options.get("max_delay_us"))
        self._keeps_activations = bool(options.get("keep_activations"))
        self._shared = set() if self._keeps_activations else SHARED_ACTIVATIONS[options.get("recompute", "none")]
        self._own_gradients = WITH_WEIGHTS if options.get("gradient_buffers") == "block" else set()
        self._drops = trainer.runtime.drops and not self._keeps_activations
        self._reuses_gradients = options.get("weight_gradients") == "reused"
        counts = {"1f1b": 1, "zero-bubble": options.get("stages", 1) + 2}  # for a worker of the last stage
        ahead = counts.get(options.get("schedule", ""), 0) * trainer.runtime.most_workers
        sets = options.get("activation_sets", 0), ahead
        self.shares_sets = any(0 < count < trainer.sub_batches for count in sets)
        self._losses: list[tuple[Loss, np.float32]] = []
        self._submitted, self._cleared = 0, 0
        """Steps, evaluations and forward passes so far, and when the trace was cleared."""
        self._last = ""
        """What was submitted last: a step, an evaluation or a forward pass."""
        self.has_stepped = False
        model.tensor("activation_grads", "losses").fill(1 / (model.batch_size * model.seq_len))  # before any step
        self._inputs: Ids | None = None
        self._rates: list[float | None] = []
        """Inputs of the last step, and rates of all, whose gradients haven't been compared: with ``redux`` alone."""

    def step(self, whole: tuple[Ids, Ids], own: tuple[ArrayLike, ArrayLike], rate: float | None) -> None:
        """Submit a step: the model does the ranks' whole batch, the trainer this rank's own part of it."""
        self._losses.append((self.trainer.submit(*own, learning_rate=rate), self.model.evaluate(*whole)))
        self._last, self.has_stepped = "step", True
        self._submitted += 1
        parts = self.model.batch_size // self.trainer.batch_size * self.trainer.sub_batches
        self.model.backward(*whole, parts if self.trainer.reduction == "tree" else 1)
        if self.trainer.reduction == "redux":
            self._inputs = whole[0]
            self._rates.append(rate)
        else:
            self.model.update(rate)

    @property
    def must_compare(self) -> bool:
        """Whether the model lacks gradients that the trainer has."""
        return bool(self._rates)

    def evaluate(self, whole: tuple[Ids, Ids], own: tuple[ArrayLike, ArrayLike]) -> None:
        """Evaluate a batch, and compare the loss."""
        found = self.trainer.evaluate(*own)
        self.expect.same_bits("loss of the evaluation", np.array(self.model.evaluate(*whole)), np.array(found))
        self._last = "evaluation"
        self._submitted += 1

    def forward(self, inputs: Ids, sequence: int, position: int) -> None:
        """Do a forward pass, and compare the probabilities after a position; on one rank."""
        sequence, position = sequence % self.model.batch_size, position % self.model.seq_len
        found = self.trainer.probabilities(inputs, sequence, position)
        self.model.forward(inputs)
        expected = self.model.tensor("activations", "probs")[sequence, position, : self.model.config.vocab_size]
        self.expect.same_bits("probabilities", expected, found)
        self._last = "forward"
        self._submitted += 1

    def compare(self) -> None:
        """Wait, and compare losses and all tensors, then what was observed of the tasks."""
        self.trainer.wait()
        for loss, expected in self._losses:
            self.expect.equal("a loss is ready", True, loss.ready)
            self.expect.same_bits("loss", np.array(expected), np.array(loss.result()))
        self._losses.clear()
        if self._rates:
            self._take_gradients()
        for group, name, layer in execution_order(self.model.config.num_layers):
            self.compare_tensor(group, name, layer)
        if self.traced:
            self._compare_tasks()

    def compare_tensor(self, group: str, name: str, layer: int | None) -> None:
        """Compare a tensor; one that isn't kept is refused, and one whose value may be gone isn't read."""
        where = f"{group}/{layer_name(name, layer)}"
        if not self._is_kept(group, name):
            self._expect_refusal(where, lambda: self.trainer.tensor(group, name, layer))
            return
        if self._is_gone(group, name):
            return
        expected = self.model.tensor(group, name, layer)
        if not self.shares_sets or not group.startswith("activation"):
            self.expect.same_bits(where, expected, self.trainer.tensor(group, name, layer))
            return
        self._expect_refusal(where, lambda: self.trainer.tensor(group, name, layer))
        parts = self.trainer.kept_sequences(group, name)
        self.expect.equal(f"sequences of {where} are kept", True, bool(parts))
        for part in parts:
            found = self.trainer.tensor(group, name, layer, sequences=part)
            self.expect.same_bits(f"{where} of sequences {part.start} to {part.stop - 1}", expected[part], found)

    def _is_kept(self, group: str, name: str) -> bool:
        """Return whether the tensor's layers have buffers of their own."""
        layered = self.trainer.layers_of(group, name) is not None
        match group:
            case "activations":
                return name not in self._shared
            case "activation_grads":
                return not layered or self._keeps_activations or name in self._own_gradients
            case "grads":
                return not (layered and self._reuses_gradients)
            case _:
                return True

    def _is_gone(self, group: str, name: str) -> bool:
        """Return whether a value may have been dropped or poisoned; what no task has written yet is 0."""
        if group not in ("activations", "activation_grads", "grads"):
            return False
        written = self._last == "step" or (group == "activations" and (self._last, name) != ("forward", "losses"))
        return self._drops or (self.poisoned and not (self._last and written))

    def _expect_refusal(self, where: str, read: Callable[[], object]) -> None:
        try:
            read()
        except StateError:
            self.expect.compared += 1
        else:
            self.expect.add(where, "a refusal", "a value")

    def take(self, result: Result) -> None:
        """State that a check has found nothing."""
        self.expect.equal(f"findings of {result.check}", "", "; ".join(map(str, result.findings)))

    def _take_gradients(self) -> None:
        assert self._inputs is not None
        for name, layer, reference in gradient_references(self.model.tensor, self.model.config, self._inputs):
            values = self.trainer.tensor("grads", name, layer)
            error = gradient_error(layer_name(name, layer), values, reference)
            self.expect.equal(f"elements beyond their bounds of {error}", 0, error.num_beyond)
            self.model.tensor("grads", name, layer)[...] = values
        for rate in self._rates:
            self.model.update(rate)
        for group in ("m", "v") if len(self._rates) > 1 else ():
            for name, values in self.model.groups[group].items():
                values[...] = self.trainer.tensor(group, name)
        self._rates.clear()

    def _compare_tasks(self) -> None:
        """Compare what trace and instruments have since the last comparison, and clear it."""
        trace, observer = self.trainer.trace(), Observer(self.trainer)
        submitted = list(range(self._cleared, self._submitted))
        self.expect.equal("numbers of the steps in the trace", submitted, np.unique(trace.tasks["step"]).tolist())
        self._cleared = self._submitted
        if len(trace):
            check_workers(self.expect, self.trainer.runtime, trace)
            observed = observe(trace)
            late = (violation_text(trace, path) for path in observed.violations)
            for found in (*observed.backwards, *late):
                self.expect.equal("order of tasks", "", found)
            for asked, instrument in ((self.audited, Accesses()), (self.poisoned, Poison())):
                if asked:
                    self.take(instrument.judge(trace, observer.findings(), observer.counts()))
        self.trainer.clear_trace()


def check_workers(expect: Expectations, runtime: Runtime, trace: Trace) -> None:
    """State that this rank's tasks ran one after the other on each worker, after their submission."""
    tasks = trace.tasks[trace.tasks["worker"] >= 0]
    expected = set(range(runtime.partition.workers))
    expect.equal("workers that there are not", set(), set(tasks["worker"].tolist()) - expected)
    expect.equal("a worker has run tasks", True, len(tasks) > 0)
    expect.equal("ranks whose tasks have run here", {runtime.rank}, set(tasks["rank"].tolist()))
    in_order = (tasks["submit_ns"] <= tasks["start_ns"]) & (tasks["start_ns"] <= tasks["end_ns"])
    expect.equal("tasks that ended before they began", 0, int(np.sum(~in_order)))
    for worker in expected:
        own = np.sort(tasks[tasks["worker"] == worker], order="start_ns")
        overlapping = int(np.sum(own["start_ns"][1:] < own["end_ns"][:-1]))
        expect.equal(f"tasks of worker {worker} that overlap", 0, overlapping)
