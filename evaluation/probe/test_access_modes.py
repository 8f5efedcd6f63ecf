"""The lies that evaluation.probe.lies tells: which places of a source change."""

from __future__ import annotations

from pathlib import Path

from .access_modes import lies_of, with_names

SOURCE = Path("solver.c")
TEXT = """
static struct starpu_codelet scale = {
    .cpu_funcs = {scale_cpu},
    .modes = {STARPU_R, STARPU_RW},
};
struct starpu_codelet add = { .name = "sum", .modes = {STARPU_RW|STARPU_COMMUTE, STARPU_W} };
int main(void)
{
    starpu_task_insert(&scale, STARPU_VALUE, &n, sizeof(n), STARPU_R, x, STARPU_RW, (y), 0);
    starpu_task_insert(&add, add.modes[0], z, STARPU_W, x, 0);
}
"""


def test_lies_change_a_codelet_and_its_tasks() -> None:
    lies = list(lies_of({SOURCE: TEXT}))
    assert [(lie.codelet, lie.line, lie.access, lie.before[7:], lie.after[7:]) for lie in lies] == [
        ("scale", 4, 0, "R", "W"),
        ("add", 6, 1, "W", "R"),
        ("scale", 4, 1, "RW", "R"),
        ("scale", 4, 1, "RW", "W"),
    ]
    changed = lies[0].texts({SOURCE: TEXT})[SOURCE]
    assert ".modes = {STARPU_W, STARPU_RW}" in changed
    assert "sizeof(n), STARPU_W, x, STARPU_RW, (y)" in changed
    assert changed.count("STARPU_W,") == TEXT.count("STARPU_W,") + 2
    assert "add.modes[0], z, STARPU_R, x" in lies[1].texts({SOURCE: TEXT})[SOURCE]


def test_a_codelet_without_a_name_gets_that_of_its_variable() -> None:
    assert [lie.name for lie in lies_of({SOURCE: with_names(TEXT)})] == ["scale", "sum", "scale", "scale"]
