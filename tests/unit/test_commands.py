"""The command line's help, and what its options mean; collected by pytest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click
import pytest
from click.testing import CliRunner

from starpullm.commands import bench, main
from starpullm.speed.workload import Workload


def commands(command: click.Command, *names: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield a command and those below it, with their names."""
    yield names, command
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from commands(below, *names, name)


COMMANDS = dict(commands(main))


def test_all_commands_are_there() -> None:
    assert {names[0] for names in COMMANDS if names} == set(
        "bench checkpoint debug-state demo doctor generate parity plot record tokenize train".split()
    )
    assert ("checkpoint", "new") in COMMANDS


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_help(names: tuple[str, ...]) -> None:
    """Every command has a summary that its group's --help doesn't cut; every option and argument is explained."""
    command = COMMANDS[names]
    assert command.help
    summary = command.help.split("\n\n")[0]
    assert summary.endswith(".")
    result = CliRunner().invoke(main, [*names, "--help"], terminal_width=100)
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert " ".join(summary.split()) in text
    if names:
        listed = CliRunner().invoke(main, [*names[:-1], "--help"], terminal_width=80).output
        assert f" {command.get_short_help_str(1000)}\n" in listed
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
            assert parameter.opts[0] in text
        else:
            choices = parameter.type.choices if isinstance(parameter.type, click.Choice) else ()
            for name in choices or [parameter.make_metavar(click.Context(command)).strip(".[]")]:
                assert name in command.help, parameter.name


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], [(1, 2), (2, 2)]),
        (["--batch-size", "6"], [(1, 6), (2, 12)]),
        (["--total-batch-size", "6"], [(1, 6), (2, 6)]),
        (["--batch-size", "2", "--batch-size", "4"], [(1, 2), (2, 4), (1, 4), (2, 8)]),
    ],
)
def test_batch_sizes_of_bench(
    monkeypatch: pytest.MonkeyPatch, options: list[str], expected: list[tuple[int, int]]
) -> None:
    """Of each rank or of all together; configurations, as printed by --json, have that of all together."""
    measured: list[Workload] = []

    def measure(run: object, workloads: Sequence[Workload], checkpoint: object) -> None:
        measured.extend(workloads)

    monkeypatch.setattr(bench, "_measure", measure)
    result = CliRunner().invoke(main, ["bench", "--model", "tiny", "--ranks", "1", "--ranks", "2", *options])
    assert result.exit_code == 0, result.output
    assert [(of.ranks, of.batch_size) for of in measured] == expected
