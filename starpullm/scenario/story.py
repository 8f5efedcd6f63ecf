"""A story: the calls of a scene, drawn from a seed, told, and made shorter as long as its end stays the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from starpullm.binding.library import find_library, starpu_limits
from starpullm.checks.execution_order import execution_order
from starpullm.data.sizes import divisors
from starpullm.errors import StarpullmError
from starpullm.machine import count_cores, full_partitions
from starpullm.processes.progress import report_phase
from starpullm.scenario.scene import REFUSALS, Difference, NotAStory, Scene

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

SIMD_VARIABLE = "STARPULLM_SIMD"
LEVELS = ("", "ref")
SCHEDULERS = ("lws", "eager", "random", "prio", "ws")


class Call(NamedTuple):
    """A method of `Scene` and its arguments."""

    name: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


class Story(NamedTuple):
    """What a scene is made with, the SIMD level (empty: the machine's best) and the calls."""

    scene: Mapping[str, Any]
    simd: str
    calls: Sequence[Call]

    @classmethod
    def from_json(cls, scene: Mapping[str, Any], simd: str, calls: Sequence[Any]) -> Story:
        """Return the story whose JSON is that of a tuple."""
        return cls(scene, simd, [Call(*call) for call in calls])

    def script(self, comment: str, ranks: int = 1) -> str:
        """Return a Python program that tells the story."""
        made = ", ".join(f"{name}={value!r}" for name, value in self.scene.items())
        world = ["from mpi4py.MPI import COMM_WORLD", ""] if ranks > 1 else []
        lines = [
            *(f"# {line}" for line in comment.splitlines()),
            "import os",
            f"os.environ[{SIMD_VARIABLE!r}] = {self.simd!r}",
            "from starpullm.scenario.scene import Scene",
            *world,
            f"with Scene({'comm=COMM_WORLD, ' if world else ''}{made}) as scene:",
            *(f"    scene.{call}" for call in self.calls),
        ]
        return "\n".join(lines) + "\n"


class Ending(NamedTuple):
    """How a story ended: how much was compared, the sentence of what was wrong, and its kind; empty: nothing."""

    compared: int
    sentence: str = ""
    kind: str = ""


NOT_A_STORY = "no story"


def tell(story: Story, comm: Comm | None = None) -> Ending:
    """Do the calls of a story, in a process that has no runtime."""
    compared = 0
    where = "making the scene"
    try:
        with Scene(**story.scene, comm=comm) as scene:
            for number, call in enumerate(story.calls):
                where = f"call {number}, {call}"
                report_phase(f"call {number}, {call.name}")
                getattr(scene, call.name)(**call.arguments)
                compared = scene.said.compared
            where = "the end"
            scene.end()
            return Ending(scene.said.compared)
    except NotAStory as error:
        return Ending(compared, f"{where}: {error}", NOT_A_STORY)
    except Difference as error:
        return Ending(compared, f"{where}: {error}", "difference")
    except StarpullmError as error:
        return Ending(compared, f"{where}: {type(error).__name__}: {error}", type(error).__name__)


# ---- Drawing ----

OPTIONS: Mapping[str, Callable[[Random], Any]] = {
    "learning_rate": lambda random: random.choice((1e-4, 1e-3, 1e-2, 0.0)),
    "betas": lambda random: random.choice(((0.9, 0.95), (0.0, 0.0), (0.5, 0.99))),
    "eps": lambda random: random.choice((1e-5, 1e-3)),
    "weight_decay": lambda random: random.choice((0.1, 1.0)),
    "steps_in_flight": lambda random: random.choice((1, 3, 4)),
    "keep_activations": lambda random: True,
    "trace": lambda random: True,
}
"""The options of a trainer that need nothing else; each is given in about half of all cases."""


def draw(seed: int, ranks: int = 1, calls: int = 14) -> Story:
    """Return the story of a seed, on this machine."""
    limits, cores = starpu_limits(find_library()), max(count_cores() // ranks, 1)
    partitions = [of for used in range(1, min(cores, 4) + 1) for of in full_partitions(used, *limits)]
    random = Random(seed)
    sizes = _draw_sizes(random)
    partition = random.choice(partitions)
    scene = {"partition": partition, "scheduler": random.choice(SCHEDULERS), "seed": seed, **sizes}
    return Story(scene, LEVELS[seed % len(LEVELS)], list(_Drawing(random, scene, partitions, ranks).calls(calls)))


def _draw_sizes(random: Random) -> dict[str, int]:
    """Return the sizes of a model: small and odd ones, now and then one that is beyond a blocking's edge."""
    heads = random.choice((1, 1, 2, 3, 4))
    head_size = random.choice((1, 2, 3, 5, 7, 8, 9, 16, 17))
    longest = random.choice((1, 2, 3, 5, 8, 13, 16, 17))
    words = random.choice((1, 2, 3, 7, 13, 31, 61, 64, 100, 131))
    padding = random.choice((0, 0, 1, 3, 16))
    layers = random.choice((1, 1, 2, 3))
    match random.randrange(50):
        case 0:
            layers, heads, head_size, longest = 1, 1, 3, random.choice((130, 257))
        case 3 if random.random() < 0.3:
            layers, heads, head_size, longest = 1, 1, 2, 1025
        case 1:
            layers, heads, head_size, longest = 1, random.choice((1, 4)), random.choice((48, 65)), 3
        case 2:
            words, head_size = random.choice((1021, 2049)), random.choice((1, 3))
    return {
        "max_seq_len": longest,
        "vocab_size": words,
        "num_layers": layers,
        "num_heads": heads,
        "channels": heads * head_size,
        "padded_vocab_size": words + padding,
    }


class _Drawing:
    """Draws calls, and keeps what the next ones can be of: trainers that are open, and what was saved."""

    def __init__(self, random: Random, scene: Mapping[str, Any], partitions: Sequence[str], ranks: int) -> None:
        self._random, self._scene, self._ranks = random, dict(scene), ranks
        self._partitions = partitions
        self._open: dict[str, dict[str, Any]] = {}
        self._states: dict[str, list[str]] = {}
        self._checkpoints: list[str] = []
        self._names = 0

    def calls(self, number: int) -> Iterator[Call]:
        random = self._random
        for _ in range(number):
            if not self._open or (len(self._open) < 2 and random.random() < 0.08):
                yield self._opening()
                continue
            who = random.choice(list(self._open))
            name = random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
            yield from getattr(self, f"_{name}")(who)

    def _opening(self) -> Call:
        random = self._random
        who = next(name for name in "ab" if name not in self._open)
        size = random.choice((1, 1, 2, 2, 3, 4, 5, 6, 8)) if self._scene["max_seq_len"] < 100 else 1
        options: dict[str, Any] = {
            "batch_size": size,
            "seq_len": random.choice((1, self._scene["max_seq_len"], random.randint(1, self._scene["max_seq_len"]))),
            "sub_batches": random.choice(divisors(size)),
            "reduction": random.choice(("ordered", "ordered", "tree", "tree", "redux")),
        }
        options.update({name: draw(random) for name, draw in OPTIONS.items() if random.random() < 0.45})
        if random.random() < 0.4:
            options.update(self._instrument(options["reduction"]))
        start = random.choice(["", "", *self._checkpoints, *(self._states if self._states else [])])
        if start in self._states:
            options["resume"] = random.choice(self._states[start])
        elif start:
            options["checkpoint"] = start
        self._open[who] = options
        return Call("open", {"who": who, **options})

    def _instrument(self, reduction: str) -> dict[str, Any]:
        kinds = ["delay"] if self._ranks > 1 else ["delay", "poison"]
        audited = any(options.get("audit") for options in self._open.values())
        if not audited and self._scene["partition"] == "1x1" and reduction != "redux" and self._ranks == 1:
            kinds.append("audit")
        kind = self._random.choice(kinds)
        value = {"max_delay_us": 200, "delay_seed": self._random.randrange(1000)} if kind == "delay" else {kind: True}
        return {"trace": True, **value}

    def _step(self, who: str) -> Iterator[Call]:
        yield Call("step", {"who": who, **self._rate()})

    def _submit(self, who: str) -> Iterator[Call]:
        redux = self._open[who]["reduction"] == "redux"
        for _ in range(self._random.randint(1, 4)):
            yield Call("submit", {"who": who, **({"rate": 0.0} if redux else self._rate())})
            if self._random.random() < 0.2:
                yield from self._read(who)

    def _rate(self) -> dict[str, float]:
        return {"rate": self._random.choice((1e-3, 0.0, 1e-2))} if self._random.random() < 0.3 else {}

    def _evaluate(self, who: str) -> Iterator[Call]:
        yield Call("evaluate", {"who": who})

    def _probabilities(self, who: str) -> Iterator[Call]:
        if self._ranks == 1:
            yield Call(
                "probabilities",
                {"who": who, "sequence": self._random.randrange(8), "position": self._random.randrange(32)},
            )

    def _read(self, who: str) -> Iterator[Call]:
        group, name, layer = self._random.choice(list(execution_order(self._scene["num_layers"])))
        yield Call("read", {"who": who, "group": group, "name": name, "layer": layer})

    def _graph(self, who: str) -> Iterator[Call]:
        options = self._open[who]
        if options.get("trace") and self._ranks == 1 and not options.get("poison") and not options.get("audit"):
            yield Call("graph", {"who": who})

    def _save_state(self, who: str) -> Iterator[Call]:
        options = self._open[who]
        if not options.get("audit"):
            options.setdefault("folder", self._new_name("s"))
            yield Call("save_state", {"who": who, "folder": options["folder"], "keep": self._random.randint(1, 3)})

    def _save_checkpoint(self, who: str) -> Iterator[Call]:
        self._checkpoints.append(self._new_name("c"))
        yield Call("save_checkpoint", {"who": who, "name": self._checkpoints[-1]})

    def _refuse(self, who: str) -> Iterator[Call]:
        what = self._random.choice(list(REFUSALS))
        if self._ranks == 1 and not (self._open[who].get("audit") and what == "full disk, state"):
            yield Call("refuse", {"who": who, "what": what})

    def _close(self, who: str) -> Iterator[Call]:
        options = self._open.pop(who)
        if "folder" in options:
            self._states[options["folder"]] = [options["folder"]]
        yield Call("close", {"who": who})
        yield self._opening()

    def _restart(self, who: str) -> Iterator[Call]:
        del who
        for other in list(self._open):
            options = self._open.pop(other)
            if "folder" in options:
                self._states[options["folder"]] = [options["folder"]]
        self._scene["partition"] = self._random.choice(self._partitions)
        yield Call("restart", {"partition": self._scene["partition"], "scheduler": self._random.choice(SCHEDULERS)})
        yield self._opening()

    def _new_name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"


_WEIGHTS = {
    "step": 4, "submit": 6, "evaluate": 2, "probabilities": 1, "read": 1, "graph": 1, "save_state": 3,
    "save_checkpoint": 1, "refuse": 2, "close": 2, "restart": 1,
}  # fmt: skip


# ---- Shrinking ----


def shorter(story: Story) -> Iterator[Story]:
    """Yield stories that are simpler than this one, the boldest changes first."""
    calls = list(story.calls)
    size = len(calls) // 2
    while size:
        for begin in range(0, len(calls), size):
            yield story._replace(calls=calls[:begin] + calls[begin + size :])
        size //= 2
    for name, value in (("partition", "1x1"), ("scheduler", "lws"), ("seed", 1)):
        if story.scene[name] != value:
            yield story._replace(scene={**story.scene, name: value})
    yield from (story._replace(scene=scene) for scene in _smaller(story.scene))
    for number, call in enumerate(calls):
        for name in call.arguments:
            for changed in _simpler(call, name):
                yield story._replace(calls=[*calls[:number], changed, *calls[number + 1 :]])


def _smaller(scene: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    heads, channels, words = scene["num_heads"], scene["channels"], scene["vocab_size"]
    if scene["num_layers"] > 1:
        yield {**scene, "num_layers": 1}
    if heads > 1:
        yield {**scene, "num_heads": 1, "channels": channels // heads}
    if channels > heads:
        yield {**scene, "channels": heads * max(1, channels // heads // 2)}
    if scene["padded_vocab_size"] > words:
        yield {**scene, "padded_vocab_size": words}
    if words > 1:
        yield {**scene, "vocab_size": words // 2, "padded_vocab_size": words // 2}
    if scene["max_seq_len"] > 1:
        yield {**scene, "max_seq_len": scene["max_seq_len"] // 2}


def _simpler(call: Call, name: str) -> Iterator[Call]:
    """Yield a call without an option, or with a smaller size."""
    value = call.arguments[name]
    if name in ("batch_size", "seq_len"):
        if value > 1:
            yield call._replace(arguments={**call.arguments, name: 1})
            yield call._replace(arguments={**call.arguments, name: value - 1})
    elif name in (
        "rate",
        "sub_batches",
        "reduction",
        "resume",
        "checkpoint",
        "keep",
        *OPTIONS,
        "max_delay_us",
        "delay_seed",
        "poison",
        "audit",
    ):
        yield call._replace(arguments={key: of for key, of in call.arguments.items() if key != name})


def shrink(story: Story, ends_alike: Callable[[Story], bool]) -> Story:
    """Return the shortest story found that ends as this one does."""
    found: Story | None = story
    while found:
        story, found = found, next((other for other in shorter(found) if ends_alike(other)), None)
    return story
