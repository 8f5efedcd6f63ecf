"""A rank's share of a session: the handles it registers, and the tasks it submits, compared with what it must have.

A rank runs the tasks of its own sub-batches and updates its own parameters. Of other ranks it knows what it exchanges
with them; how much that is follows from the reduction, and here from no count of the library.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from starpullm.checks.cases import Case, find_record
from starpullm.checks.check import Check, Needs, check
from starpullm.checks.observer import Observer
from starpullm.checks.place import Place
from starpullm.checks.result import Result
from starpullm.checks.statements import Statements
from starpullm.checks.training import own_batch, traced_trainer
from starpullm.files.model import ModelConfig, num_elements, parameter_shapes

_SLOTS = 2
"""Steps in flight."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a rank's share depends on.

    ``owned`` and ``updates``: the parameters that each rank updates, and the tasks that do so, one for each tile of
    the gradient.
    """

    layers: int
    sub_batches: int
    """Of each rank."""
    reduction: str
    owned: tuple[int, ...]
    updates: tuple[int, ...]
    tiles: Mapping[str, int]
    """Of the gradient of each weight that is a matrix of a matmul."""

    @property
    def parameters(self) -> int:
        """The number of parameter tensors."""
        return 12 * self.layers + 4

    @property
    def tiles_of_layer(self) -> int:
        """The tiles of the gradients of a layer's four weights."""
        return sum(self.tiles.values()) - self.tiles["wte"]

    @property
    def gradients(self) -> int:
        """The tiles of all gradients; a bias has those of its weight, and all others have one."""
        return self.layers * (4 + 2 * self.tiles_of_layer) + 3 + self.tiles["wte"]

    def additions(self) -> Counter[tuple[int, int]]:
        """Return how often, for a tensor, a rank adds a gradient of another rank or its own: of (adding, added)."""
        pairs: Counter[tuple[int, int]] = Counter()
        for added in range(1, len(self.owned) * self.sub_batches):
            adding = added & (added - 1)  # a tree of neighbours, then of neighbours' sums, and so on
            pairs[adding // self.sub_batches, added // self.sub_batches] += 1
        return pairs


def expected_handles(shape: Shape, rank: int) -> int:
    """Return the handles that a rank registers, without ``keep_activations``."""
    tensors, own = shape.parameters, shape.owned[rank]
    activations = 13 * shape.layers + 10
    activation_gradients = 12 + 3  # one for all blocks
    tokens_and_losses = 2 * _SLOTS * shape.sub_batches + _SLOTS
    gradients = shape.gradients
    if shape.reduction == "tree":
        from_others = sum(n for (adding, added), n in shape.additions().items() if adding == rank != added)
        gradients = tensors * (shape.sub_batches + from_others) + (own if rank > 0 else 0)
    of_losses = 1
    per_sub_batch = shape.sub_batches * (activations + activation_gradients)
    return tensors + 2 * own + gradients + per_sub_batch + of_losses + tokens_and_losses


def expected_submitted(shape: Shape, rank: int) -> int:
    """Return the tasks of a step that a rank runs."""
    forward, loss = 10 * shape.layers + 4, 2
    backward = (12 + shape.tiles_of_layer) * shape.layers + 4 + 2 * shape.tiles["wte"]
    tasks = shape.sub_batches * (forward + loss + backward) + 1 + shape.updates[rank]
    if shape.reduction == "tree":
        tasks += shape.parameters * sum(n for (adding, _), n in shape.additions().items() if adding == rank)
    return tasks


def expected_exchanged(shape: Shape, rank: int) -> int:
    """Return the messages of gradients of a step, and the tasks of other ranks that a rank has to do with."""
    gradients, last = shape.gradients, len(shape.owned) - 1
    if last == 0:
        return 0
    exchanged = gradients - shape.updates[rank]  # each update makes its copies of a parameter invalid
    if rank == 0:  # it has the sum of the losses, which passes through all sub-batches, and sends the mean
        exchanged += last * shape.sub_batches + last
    if shape.reduction == "tree":
        exchanged += gradients * sum(n for (adding, added), n in shape.additions().items() if adding != rank == added)
    elif shape.reduction == "ordered":
        from_before, to_next, of_wte = gradients * (rank > 0), gradients * (rank < last), 2 * shape.tiles["wte"]
        to_owners = gradients - shape.updates[last] if rank == last else shape.updates[rank]
        exchanged += from_before + to_next + of_wte + to_owners
    return exchanged


def expected_tiles(model: ModelConfig, case: Case, ranks: int, workers: int) -> dict[str, int]:
    """Return the tiles of each weight's gradient on so many ranks of so many workers: see design.md."""
    shapes = parameter_shapes(model)
    weights = {name: shapes[name] for name in ("wte", "qkvw", "attprojw", "fcw", "fcprojw")}
    if case.reduction != "ordered":
        return dict.fromkeys(weights, 1)
    products = 3 * sum(num_elements(shape) for shape in weights.values())
    tiles = {}
    for name, shape in weights.items():
        *_, rows, columns = shape
        enough = 20 * ranks * workers * rows * columns // products if ranks * workers > 1 else 1
        tiles[name] = min(case.weight_gradient_tiles or max(1, min(enough, ranks * case.sub_batches)), rows)
    return tiles


@check
class SharesOfRanks(Check):
    """Compare what each rank registers, submits and exchanges with what a rank must, whatever the number of ranks."""

    family, unit = "dependencies", "statements"
    claim = "a rank has the handles, tasks and exchanges that follow from its own sub-batches and neighbours"
    fault = "a rank has other handles, tasks or exchanges than it must"
    cannot_see = "handles and exchanges that the library doesn't count"
    needs = Needs(ranks=(2, None))

    def run(self, place: Place, case: Case) -> Result:
        """Submit two steps, and ask the library after each."""
        rank, ranks = place.runtime.rank, range(place.runtime.ranks)
        statements = Statements()
        with traced_trainer(place, case, steps_in_flight=_SLOTS) as trainer:
            shares = []
            for number in range(2):
                trainer.submit(*own_batch(trainer, case.seed, number))
                shares.append(Observer(trainer).share())
            trace = trainer.trace()
        of_step = [task for task in trace if task.operation == "adamw_update" and task.step == 0]
        updates = Counter(task.rank for task in of_step)
        updated = {(task.rank, access.handle.name) for task in of_step for access in task.accesses}
        owned = Counter(owner for owner, name in updated if name.startswith("params/"))
        model = find_record(case.record).model
        tiles = expected_tiles(model, case, len(ranks), place.runtime.partition.workers)
        shape = Shape(
            layers=model.num_layers,
            sub_batches=case.sub_batches,
            reduction=case.reduction,
            owned=tuple(owned[other] for other in ranks),
            updates=tuple(updates[other] for other in ranks),
            tiles=tiles,
        )
        first, second = shares
        statements.equal("handles", expected_handles(shape, rank), first.handles)
        statements.equal("handles after another step", first.handles, second.handles)
        expected = expected_submitted(shape, rank), expected_exchanged(shape, rank)
        statements.equal("tasks of step 0, and exchanges", expected, (first.submitted, first.exchanged))
        two_steps = (2 * expected[0], 2 * expected[1])
        statements.equal("tasks of two steps, and exchanges", two_steps, (second.submitted, second.exchanged))
        ran = sum(task.rank == rank and task.worker >= 0 for task in trace)
        statements.equal("tasks that workers of this rank have run", two_steps[0], ran)
        return self.result(compared=statements.compared, findings=statements.wrong)
