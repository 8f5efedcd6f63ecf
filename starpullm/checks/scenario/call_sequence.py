"""A sequence of calls of a state machine: drawn from a seed, run, and shortened as long as it ends in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from starpullm.binding.library import find_library, starpu_limits
from starpullm.checks.execution_order import execution_order
from starpullm.checks.scenario.state_machine import REFUSALS, Difference, Impossible, StateMachine
from starpullm.data.sizes import divisors
from starpullm.errors import StarpullmError
from starpullm.machine import count_cores, full_partitions
from starpullm.options import GRADIENT_BUFFERS, OFFLOAD_PLANS, SCHEDULES
from starpullm.processes import Comm
from starpullm.processes.progress import report_phase

SIMD_VARIABLE = "STARPULLM_SIMD"
LEVELS = ("", "ref")
"""SIMD levels: the one that is chosen, which is the machine's best or that of the environment, and the plain one."""

CallArguments = Mapping[str, Any]


class Call(NamedTuple):
    """A method of `StateMachine` and its arguments."""

    name: str
    arguments: CallArguments

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


class CallSequence(NamedTuple):
    """What a state machine is made with, the SIMD level, and the calls."""

    machine: CallArguments
    simd: str
    calls: Sequence[Call]

    def program(self, comment: str, ranks: int = 1) -> str:
        """Return a Python program that makes the calls."""
        made = ", ".join(f"{name}={value!r}" for name, value in self.machine.items())
        lines = [
            *(f"# {line}" for line in comment.splitlines()),
            *([f"import os; os.environ[{SIMD_VARIABLE!r}] = {self.simd!r}"] if self.simd else []),
            "from starpullm.checks.scenario.state_machine import StateMachine",
            *(["from mpi4py.MPI import COMM_WORLD"] if ranks > 1 else []),
            f"with StateMachine({'comm=COMM_WORLD, ' if ranks > 1 else ''}{made}) as machine:",
            *(f"    machine.{call}" for call in self.calls),
        ]
        return "\n".join(lines)


class Ending(NamedTuple):
    """How a sequence ended: how much was compared and, if something was wrong, what, and which kind of thing."""

    compared: int
    sentence: str = ""
    kind: str = ""


def run_sequence(sequence: CallSequence, directory: Path, comm: Comm | None = None) -> Ending:
    """Make the calls of a sequence but those that are impossible, in a process without a runtime.

    The directory is for files. Over ranks an error of the library's is raised: the other ranks may not have it.
    """
    compared, where = 0, "the beginning"
    try:
        with StateMachine(**sequence.machine, directory=directory, comm=comm) as machine:
            for number, call in enumerate([*sequence.calls, Call("end", {})]):
                where = f"sequence {sequence.machine['seed']}, call {number}, {call}"
                report_phase(where)
                try:
                    getattr(machine, call.name)(**call.arguments)
                except Impossible:
                    continue
                compared = machine.expect.compared
    except (Difference, StarpullmError) as error:
        if comm and not isinstance(error, Difference):
            raise
        return Ending(compared, f"{where}: {type(error).__name__}: {error}", type(error).__name__)
    return Ending(compared)


def any_of(*values: Any) -> Callable[[Random], Any]:
    """Return a function that draws one of the values."""
    return lambda random: random.choice(values)


OPTIONS: Mapping[str, tuple[float, Callable[[Random], Any]]] = {
    "reduction": (0.7, any_of("tree", "tree", "redux")),
    "learning_rate": (0.4, any_of(1e-4, 1e-3, 1e-2, 0.0)),
    "betas": (0.4, any_of((0.9, 0.95), (0.0, 0.0), (0.5, 0.99))),
    "eps": (0.4, any_of(1e-5, 1e-3)),
    "weight_decay": (0.4, any_of(0.1, 1.0)),
    "steps_in_flight": (0.5, any_of(1, 3, 4)),
    "keep_activations": (0.5, any_of(True)),
    "trace": (0.3, any_of(True)),
    "weight_gradient_tiles": (0.4, any_of(1, 2, 3, 4)),
    "activation_sets": (0.4, any_of(1, 2, 3)),
    "recompute": (0.4, any_of("attention", "block", "block")),
    "weight_gradients": (0.4, any_of("reused")),
    "poison": (0.12, any_of(True)),
    "audit": (0.25, any_of(True)),
    "max_delay_us": (0.15, any_of(50, 300)),
    "start": (0.7, any_of("state", "state", "checkpoint")),
}
"""Options of `StateMachine.open`: how often each is given, and with which value."""

_NOT_AT_FIRST = {"poison", "audit", "weight_gradients"}
"""Options with which the opening of the first trainer may be impossible."""


def _opening(random: Random, sizes: Mapping[str, int]) -> CallArguments:
    longest = sizes["max_seq_len"]
    batch_size = random.choice((1, 1, 2, 2, 3, 4, 5, 6, 8)) if longest < 100 else 1
    given = {name: value(random) for name, (chance, value) in OPTIONS.items() if random.random() < chance}
    seq_len = random.choice((1, longest, longest, random.randint(1, longest)))
    sub_batches = random.choice(divisors(batch_size))
    if "reduction" in given:
        given.pop("weight_gradient_tiles", None)
    if "activation_sets" in given:
        given["activation_sets"] = min(given["activation_sets"], sub_batches)
    if "recompute" in given:
        given.pop("keep_activations", None)
    if sub_batches > 1 or given.get("reduction") == "redux":  # the plain model needs all gradients of redux
        given.pop("weight_gradients", None)
    return {"batch_size": batch_size, "seq_len": seq_len, "sub_batches": sub_batches, **given}


PIPELINE = ("stages", "schedule", "gradient_buffers")


def _pipeline(random: Random, ranks: int, layers: int, given: CallArguments) -> CallArguments:
    """Return an opening's stages and schedule, or nothing."""
    possible = [count for count in divisors(ranks) if 1 < count <= layers + 1]
    if not possible or given.get("reduction") == "redux" or random.random() < 0.4:
        return {}
    schedule = random.choice(SCHEDULES[:2] if "recompute" in given else SCHEDULES)
    buffers = GRADIENT_BUFFERS[1] if schedule == SCHEDULES[2] else random.choice(GRADIENT_BUFFERS)
    return dict(zip(PIPELINE, (random.choice(possible), schedule, buffers), strict=True))


def _rate(random: Random, sizes: Mapping[str, int]) -> CallArguments:
    del sizes
    return {"rate": random.choice((0.0, 0.0, 1e-3, 1e-2))} if random.random() < 0.5 else {}


def _save(random: Random, sizes: Mapping[str, int]) -> CallArguments:
    del sizes
    slow = {"slow": True} if random.random() < 0.5 else {}
    return {"keep": random.randint(1, 3), "folder": random.choice((0, 0, 0, 1)), **slow}


def _tensor(random: Random, sizes: Mapping[str, int]) -> CallArguments:
    return dict(zip(("group", "name", "layer"), random.choice(list(execution_order(sizes["num_layers"]))), strict=True))


DrawArguments = Callable[[Random, Mapping[str, int]], CallArguments]

CALLS: Mapping[str, tuple[int, DrawArguments]] = {
    "open": (2, _opening),
    "step": (4, _rate),
    "submit": (16, _rate),
    "evaluate": (2, lambda random, sizes: {}),
    "probabilities": (1, lambda random, sizes: {"sequence": random.randrange(8), "position": random.randrange(32)}),
    "read": (4, _tensor),
    "graph": (1, lambda random, sizes: {}),
    "save_state": (4, _save),
    "interrupt": (1, lambda random, sizes: {}),
    "save_checkpoint": (2, lambda random, sizes: {}),
    "lack_memory": (2, lambda random, sizes: {"place": random.randrange(1 << 16)}),
    "refuse": (3, lambda random, sizes: {"what": random.choice(list(REFUSALS))}),
    "close": (4, lambda random, sizes: {}),
}
"""The calls of one trainer: how often each is drawn, and its arguments."""


def draw(seed: int, ranks: int = 1, calls: int = 36) -> CallSequence:
    """Return the sequence of a seed; its partitions have up to four of this machine's cores."""
    random = Random(seed)
    limits, cores = starpu_limits(find_library()), max(count_cores() // ranks, 1)
    partitions = [partition for used in range(1, min(cores, 4) + 1) for partition in full_partitions(used, *limits)]

    def placed() -> CallArguments:
        schedulers = ("lws", "eager", "random", "prio", "ws")
        return {"partition": random.choice(partitions), "scheduler": random.choice(schedulers)}

    sizes = _draw_sizes(random)
    limit = _draw_limit(random) if ranks == 1 and random.random() < 0.12 else {}
    if limit:
        sizes |= _LARGE_ENOUGH_TO_MOVE
    machine = {**placed(), "seed": seed, **sizes, **limit}

    def arguments_of(name: str) -> CallArguments:
        drawn = CALLS[name][1](random, sizes)
        return {**drawn, **_pipeline(random, ranks, sizes["num_layers"], drawn)} if name == "open" else drawn

    first = {name: value for name, value in arguments_of("open").items() if name not in _NOT_AT_FIRST}
    made = [Call("open", {"who": "a", **first})]
    if ranks == 1 and not limit and _can_do_many(first, sizes):
        made.append(Call("train", {"who": "a", "steps": _MANY_STEPS}))
    weights = [weight for weight, _ in CALLS.values()]
    for name in random.choices(list(CALLS), weights, k=calls):
        made.append(Call(name, {"who": random.choice("aaab"), **arguments_of(name)}))
        if name == "save_state" and random.random() < 0.4:
            who = made[-1].arguments["who"]
            made.append(Call("interrupt", {"who": who}))
            if random.random() < 0.5:  # go on from what was left
                opened = {"who": who, **arguments_of("open"), "start": "state"}
                made += [Call("close", {"who": who}), Call("open", opened)]
        if random.random() < 0.03:
            made.append(Call("restart", {**placed(), "place": random.randrange(1 << 16)}))
        if made[-1].name in ("close", "restart"):
            made.append(Call("open", {"who": made[-1].arguments.get("who", "a"), **arguments_of("open")}))
    return CallSequence(machine, LEVELS[seed % len(LEVELS)], made)


_MANY_STEPS = 300
"""More than counters of eight bits can count."""


def _can_do_many(opened: CallArguments, sizes: Mapping[str, int]) -> bool:
    """Return whether many steps take less than a second on one rank: 0.2 to 0.6 s (2 cores, AMD EPYC, 2026-11-26).

    On two ranks they take 20 s.
    """
    tokens = opened["batch_size"] * opened["seq_len"]
    is_slow = opened.get("reduction") == "redux" or any(name in opened for name in ("trace", "max_delay_us"))
    return tokens * sizes["num_layers"] * sizes["channels"] <= 24 and not is_slow


_LARGE_ENOUGH_TO_MOVE = {"num_heads": 4, "channels": 64, "vocab_size": 509, "padded_vocab_size": 512}


def _draw_limit(random: Random) -> CallArguments:
    """Return a limit that mostly holds such a model's largest tasks on a few workers, but not its data."""
    return {"memory_limit": random.choice((4, 5, 8)) << 20, "offload_plan": random.choice(OFFLOAD_PLANS)}


def _draw_sizes(random: Random) -> dict[str, int]:
    """Return the sizes of a model: small and odd ones, and now and then one that is beyond a blocking's edge."""
    heads, head_size = random.choice((1, 1, 2, 3, 4)), random.choice((1, 2, 3, 5, 7, 8, 9, 16, 17))
    longest, layers = random.choice((1, 2, 3, 5, 8, 13, 16, 17)), random.choice((1, 1, 2, 3))
    words, padding = random.choice((1, 2, 3, 7, 13, 31, 61, 64, 100, 131)), random.choice((0, 0, 1, 3, 16))
    match random.randrange(150):
        case 0 | 1 | 2:
            layers, heads, head_size, longest = 1, 1, 3, random.choice((130, 257))
        case 3:
            layers, heads, head_size, longest = 1, 1, 2, 1025
        case 4 | 5 | 6:
            layers, head_size, longest = 1, random.choice((48, 65)), 3
        case 7 | 8 | 9:
            words, head_size = random.choice((1021, 2049)), random.choice((1, 3))
    return {
        "max_seq_len": longest,
        "vocab_size": words,
        "num_layers": layers,
        "num_heads": heads,
        "channels": heads * head_size,
        "padded_vocab_size": words + padding,
    }


def shrink(sequence: CallSequence, ends_the_same: Callable[[CallSequence], bool]) -> CallSequence:
    """Return the shortest sequence found that ends as this one does."""
    found: CallSequence | None = sequence
    while found:
        sequence, found = found, next((other for other in shorter(found) if ends_the_same(other)), None)
    return sequence


def shorter(sequence: CallSequence) -> Iterator[CallSequence]:
    """Yield sequences that are simpler than this one, the boldest changes first."""
    calls = list(sequence.calls)
    size = len(calls) // 2
    while size:
        for begin in range(0, len(calls), size):
            yield sequence._replace(calls=calls[:begin] + calls[begin + size :])
        size //= 2
    yield from (sequence._replace(machine={**sequence.machine, **smaller}) for smaller in _smaller(sequence.machine))
    for number, call in enumerate(calls):
        for arguments in _simpler(call.arguments):
            yield sequence._replace(calls=[*calls[:number], call._replace(arguments=arguments), *calls[number + 1 :]])


def _smaller(machine: CallArguments) -> Iterator[CallArguments]:
    """Yield changes of what a state machine is made with."""
    plain = {"partition": "1x1", "scheduler": "lws", "num_layers": 1, "padded_vocab_size": machine["vocab_size"]}
    yield from ({name: value} for name, value in plain.items() if machine[name] != value)
    if "memory_limit" in machine:
        yield {"memory_limit": 0}
    heads, head_size, words = (
        machine["num_heads"],
        machine["channels"] // machine["num_heads"],
        machine["vocab_size"] // 2,
    )
    if heads > 1:
        yield {"num_heads": 1, "channels": head_size}
    if head_size > 1:
        yield {"channels": heads * (head_size // 2)}
    if words:
        yield {"vocab_size": words, "padded_vocab_size": words}
    if machine["max_seq_len"] > 1:
        yield {"max_seq_len": machine["max_seq_len"] // 2}


def _simpler(arguments: CallArguments) -> Iterator[CallArguments]:
    """Yield a call's arguments without one that may be left out, or with a smaller size."""
    for name in ("rate", "keep", "folder", "slow", "place", "sub_batches", *OPTIONS, *PIPELINE):
        if name in arguments:
            yield {key: value for key, value in arguments.items() if key != name}
    for name in ("batch_size", "seq_len", "steps"):
        size = arguments.get(name, 1)
        yield from (
            {**arguments, name: smaller} for smaller in (1, size // 2, size - size // 8, size - 1) if 0 < smaller < size
        )
