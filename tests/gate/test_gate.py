"""The throughput gate's decisions on simulated measurements, whose slowdowns are known."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest

from starpullm.checks.result import Outcome, Result
from starpullm.pytest_plugin.plugin_options import MIN_BLOCKS
from starpullm.speed.builds import GraphCost, check_cost
from starpullm.speed.gate import BUDGET, ERROR_RATE, BuildSpeed, compare_builds
from starpullm.speed.speed_verdict import EQUIVALENCE_MARGIN, SpeedVerdict, excluded_ranks, interval
from starpullm.speed.worker import STEP

ROUNDS = 64
OPERATIONS = {"matmul_forward": 3e-3, "attention_backward": 2e-3, "gelu_backward": 1e-3, "mean_loss": 1e-6}
TASKS = {"matmul_forward": 17, "attention_backward": 4, "gelu_backward": 4, "mean_loss": 1}
FASTER, UNCHANGED, SLOWER = SpeedVerdict.FASTER, SpeedVerdict.UNCHANGED, SpeedVerdict.SLOWER
INCONCLUSIVE = SpeedVerdict.INCONCLUSIVE

Series = list[dict[str, float]]


def measured(
    seed: int,
    slowdowns: dict[str, float] | None = None,
    *,
    noise: float = 0.01,
    bursts: float = 0.1,
    drift: float = 0.1,
    rounds: int = ROUNDS,
) -> tuple[Series, Series, Series]:
    """A machine whose speed drifts, in waves and at random, and that does something else during some turns."""
    random = np.random.default_rng(seed)
    turns = 3 * rounds
    wave = drift * np.sin(np.arange(turns) * 2 * np.pi * random.uniform(0.5, 6) / turns + random.uniform(0, 6))
    walk = np.cumsum(random.normal(0, drift / 20, turns))
    series: tuple[Series, Series, Series] = ([], [], [])
    for number in range(rounds):
        for place, who in enumerate(random.permutation(3).tolist()):
            speed = math.exp(wave[3 * number + place] + walk[3 * number + place])
            if random.random() < bursts:
                speed *= 1 + random.exponential(0.5)
            turn = {}
            for name, seconds in OPERATIONS.items():
                slow = 1 + (slowdowns or {}).get(name, 0) if who == 0 else 1
                turn[name] = seconds * slow * speed * math.exp(random.normal(0, noise))
            # Half of a second is lost to what isn't a kernel.
            turn[STEP] = sum(turn.values()) * 1.5 * (1 + ((slowdowns or {}).get(STEP, 0) if who == 0 else 0))
            series[who].append(turn)
    return series


def compare(series: tuple[Series, Series, Series], tasks: Mapping[str, int] = TASKS) -> Result:
    seconds = statistics.median(turn[STEP] for turn in series[0])
    return compare_builds("here", *series, tasks=tasks, speed=BuildSpeed(0.512 / seconds, 250.0, 4e-3 / seconds))


def named(result: Result, verdict: SpeedVerdict) -> set[str]:
    return {change.name for change in result.facts["changes"] if change.verdict is verdict}


# ---- Two builds ----


def test_the_same_build_is_never_called_slower_whatever_the_drift() -> None:
    """The rule's error rate is for a build at the edge of the budget; for the same build it is far lower."""
    verdicts = Counter(compare(measured(seed)).facts["verdict"] for seed in range(30))
    assert verdicts[SLOWER] == 0
    assert verdicts[UNCHANGED] + verdicts[FASTER] >= 28


def test_disturbances_do_not_make_a_build_look_faster_than_itself() -> None:
    """They only slow down; the estimate has to treat the new build's turns and the baseline's alike."""

    def change_of_the_step(seed: int) -> float:
        new, baseline, control = ([{STEP: turn[STEP]} for turn in turns] for turns in measured(seed, bursts=0.4))
        [change] = compare((new, baseline, control)).facts["changes"]
        return float(change.change)

    changes = [change_of_the_step(seed) for seed in range(30)]
    assert abs(statistics.fmean(changes)) < 3 * statistics.stdev(changes) / math.sqrt(len(changes))


def test_a_slower_operation_is_seen_and_named() -> None:
    """5 %, of an operation that is a sixth of the kernels' time and a ninth of the step's."""
    results = [compare(measured(seed, {"gelu_backward": 0.05})) for seed in range(20)]
    seen = [result for result in results if result.facts["verdict"] is SLOWER]
    assert len(seen) >= 18
    for result in seen:
        assert named(result, SLOWER) == {"gelu_backward"}
        assert result.outcome is Outcome.FAILED
        assert "gelu_backward +" in result.sentence


def test_at_the_edge_of_the_budget_the_error_rate_holds() -> None:
    """Every quantity is slower by just the budget; each run may err in any of four."""
    changes = dict.fromkeys(OPERATIONS, BUDGET)
    wrong = sum(compare(measured(seed, changes, bursts=0.05)).facts["verdict"] is SLOWER for seed in range(60))
    assert wrong <= _largest_count(60, ERROR_RATE, 0.01)


def test_few_rounds_and_heavy_tailed_noise_keep_the_error_rate() -> None:
    """The least number of rounds, and times with a distribution so heavy-tailed that it has no variance."""
    wrong = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        series: tuple[Series, Series, Series] = ([], [], [])
        for _ in range(MIN_BLOCKS):
            for turns in series:
                turn = {name: duration * math.exp(0.1 * random.standard_t(2)) for name, duration in OPERATIONS.items()}
                turns.append({**turn, STEP: 1e-2 * math.exp(0.1 * random.standard_t(2))})
        wrong += compare(series).facts["verdict"] is SLOWER
    assert wrong <= _largest_count(60, ERROR_RATE, 0.01)


def test_a_slower_step_is_seen_although_no_kernel_is() -> None:
    result = compare(measured(1, {STEP: 0.06}))
    assert result.facts["verdict"] is SLOWER
    assert named(result, SLOWER) == {STEP}


def test_a_faster_build() -> None:
    result = compare(measured(1, dict.fromkeys(OPERATIONS, -0.1)))
    assert result.facts["verdict"] is FASTER
    assert result.outcome is Outcome.PASSED
    assert result.facts["tokens_per_ms"] > result.facts["baseline_tokens_per_ms"]
    assert result.sentence.endswith("%; nothing is slower")  # and not "slower by -1.2% or more"
    slight = compare(measured(5))
    most = max(change.high for change in slight.facts["changes"] if change.verdict is not None)
    assert most > 0
    assert slight.sentence.endswith(f"; nothing is slower by {most:.1%} or more")


def test_what_cannot_be_seen_is_inconclusive_not_slower() -> None:
    """Turns differ by 60 % at random: neither a slowdown of 5 % nor its absence can be shown."""
    for slowdown in (0.0, 0.05):
        verdicts = {
            compare(measured(seed, {"gelu_backward": slowdown}, noise=0.6)).facts["verdict"] for seed in range(10)
        }
        assert verdicts == {INCONCLUSIVE}
    result = compare(measured(0, noise=0.6))
    assert result.outcome is Outcome.INCONCLUSIVE
    assert result.facts["minimum_detectable_effect"] is not None
    assert result.facts["minimum_detectable_effect"] > EQUIVALENCE_MARGIN
    assert result.sentence.startswith("a slowdown of 5.0% can't be excluded: step")


def test_a_slower_operation_outweighs_a_faster_step() -> None:
    result = compare(measured(1, {"matmul_forward": -0.3, "gelu_backward": 0.05}))
    assert result.facts["verdict"] is SLOWER
    assert named(result, FASTER) >= {STEP, "matmul_forward"}


def test_a_control_that_differs_widens_every_interval() -> None:
    """Two processes of the same build that differ by 8 %: so could the new build's, and 5 % more shows nothing."""
    new, baseline, control = measured(3, {"gelu_backward": 0.05})
    for turn in control:
        turn["gelu_backward"] *= 1.08
    result = compare((new, baseline, control))
    assert "gelu_backward" not in named(result, SLOWER)
    [change] = [change for change in result.facts["changes"] if change.name == "gelu_backward"]
    assert change.control_low > 0.06
    assert change.minimum_detectable_effect > 0.1
    assert change.high - change.low > 2 * change.control_low


def test_small_operations_are_shown_and_not_judged() -> None:
    result = compare(measured(1, {"mean_loss": 3.0}))
    assert result.facts["verdict"] is UNCHANGED
    [change] = [change for change in result.facts["changes"] if change.name == "mean_loss"]
    assert change.verdict is None
    assert change.low > 1


def test_operations_of_tasks_too_short_for_the_clock_are_not_judged() -> None:
    """Some nanoseconds are several percent of them, whichever build it is; the step counts them."""
    series = measured(1, {"gelu_backward": 0.1})
    result = compare(series, {**TASKS, "gelu_backward": 1200})  # 0.8 us each
    assert "gelu_backward" not in named(result, SLOWER)
    assert {change.name for change in result.facts["changes"] if change.verdict is None} == {
        "gelu_backward",
        "mean_loss",
    }
    result = compare(series, {**TASKS, "gelu_backward": 800})
    assert named(result, SLOWER) >= {"gelu_backward"}
    result = compare(series, dict.fromkeys(TASKS, 10**5))
    assert result.facts["minimum_detectable_effect"] is None
    assert result.lines()[-1].endswith(" of the step would have been seen, no operation is large enough to be judged")
    assert [change.name for change in result.facts["changes"] if change.verdict] == [STEP]


def test_an_operation_of_one_build_only_is_left_to_the_step() -> None:
    new, baseline, control = measured(1)
    for turn in new:
        turn["gelu_fused"] = turn.pop("gelu_backward")
    result = compare((new, baseline, control))
    assert {change.name for change in result.facts["changes"]} == {STEP, *OPERATIONS} - {"gelu_backward"}


def test_lines_and_json_of_two_builds() -> None:
    result = compare(measured(1, {"gelu_backward": 0.1}))
    first, speed, slower, step, last = result.lines()
    assert first.startswith("throughput: failed: slower: gelu_backward +")
    assert "tokens/ms, baseline" in speed
    assert "of the machine's 250 GFLOP/s" in speed
    assert slower.startswith("  slower: gelu_backward: +")
    assert "16.7% of the kernels' time; control" in slower
    assert step.startswith("  step: +")
    assert last.startswith("  64 rounds; a slowdown of ")
    assert last.endswith("% of any judged operation")
    values = json.loads(json.dumps(result.as_json(), allow_nan=False))
    assert values["facts"]["verdict"] == "slower"
    assert [change["name"] for change in values["facts"]["changes"]][:2] == [STEP, "matmul_forward"]


# ---- Statistics ----


@pytest.mark.parametrize(
    ("count", "tail", "excluded"),
    [(5, 0.025, 0), (6, 0.025, 1), (8, 0.025, 4), (10, 0.025, 9), (20, 0.025, 53), (10, 0.005, 4), (20, 0.005, 38)],
)
def test_signed_ranks(count: int, tail: float, excluded: int) -> None:
    """As in printed tables of Wilcoxon's test, whose critical value is one less."""
    assert excluded_ranks(count, tail) == excluded


def test_interval_by_its_definition() -> None:
    """Averages of all pairs of rows, those of a row with itself included; both comparisons count alike."""
    random = np.random.default_rng(2)
    differences = [random.normal(0, 0.01, (10, 3)), random.normal(0.02, 0.01, (10, 3))]
    for column in range(3):
        expected = []
        for row in differences:
            values = row[:, column].tolist()
            averages = sorted((values[i] + values[j]) / 2 for i in range(10) for j in range(i + 1))
            expected.append((statistics.median(averages), averages[8], averages[-9]))
        found = interval(differences, 0.025)[:, column]
        assert found == pytest.approx([statistics.fmean(column) for column in zip(*expected, strict=True)])


def test_too_few_values_exclude_nothing() -> None:
    estimate, low, high = interval([np.array([[1.0], [2.0], [3.0]])], 0.01)
    assert (estimate, low, high) == (2, -math.inf, math.inf)


# ---- Costs of the graph ----

COST = GraphCost(tasks=169, bytes_between_tasks=10**6, bytes_between_ranks=0, path_tasks=89, path_bytes=5 * 10**5)


def test_costs_are_compared_exactly() -> None:
    assert check_cost(COST, COST).outcome is Outcome.PASSED
    more = GraphCost(
        tasks=170, bytes_between_tasks=10**6 - 4, bytes_between_ranks=0, path_tasks=89, path_bytes=5 * 10**5
    )
    result = check_cost(more, COST)
    assert result.outcome is Outcome.FAILED
    assert result.lines() == [
        "graph cost: failed: 1 of 5 numbers have grown, 1 have shrunk",
        "  tasks  170, baseline 169 (+1)",
        "  bytes between tasks  999996, baseline 1000000 (-4)",
    ]
    less = check_cost(COST, more)
    assert less.outcome is Outcome.FAILED  # its bytes have grown
    assert check_cost(COST, GraphCost(**{**vars(COST), "tasks": 200})).outcome is Outcome.PASSED


def _largest_count(trials: int, rate: float, tail: float) -> int:
    """Return the smallest count that is exceeded with at most this probability."""
    count, exceeded = 0, 1 - (1 - rate) ** trials
    while exceeded > tail:
        count += 1
        exceeded -= math.comb(trials, count) * rate**count * (1 - rate) ** (trials - count)
    return count
