"""The command line's help, and what its options mean; collected by pytest."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from starpullm.commands import bench, main, parity
from starpullm.commands.render import OUT
from starpullm.errors import InvalidArgumentError, RuntimeFailureError
from starpullm.files.checkpoint import checkpoint_config
from starpullm.golden.records import SHIPPED_RECORDS, shipped_record
from starpullm.processes.lock import LOCK_VARIABLE
from starpullm.speed.against import SpeedComparison, Spread, VariantSpeed
from starpullm.speed.measure import Throughput
from starpullm.speed.workload import Workload

from .workloads import throughput, workload


def commands(command: click.Command, *names: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield a command and those below it, with their names."""
    yield names, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below
            yield from commands(below, *names, name)


COMMANDS = dict(commands(main))


def test_help_lists_the_commands_in_groups() -> None:
    """Each command is under one heading, and each module with a command is listed."""
    text = CliRunner().invoke(main, ["--help"]).output
    sections = re.findall(r"^(\w+):\n((?:  \S.*\n|    .*\n)+)", text, re.MULTILINE)
    listed = {title: re.findall(r"^  (\w+)  ", lines, re.MULTILINE) for title, lines in sections[1:]}
    assert list(listed) == ["Check", "Train", "Measure", "Convert"]
    package = Path(bench.__file__).parent
    modules = [path.stem for path in package.glob("*.py") if "\ndef command(" in path.read_text("utf-8")]
    assert sorted(name for names in listed.values() for name in names) == sorted(modules)


VARIABLES = {
    "STARPULLM_LIB": "/env/lib.so",
    "STARPULLM_LLMC_LIB": "env.so",
    "STARPULLM_RECORDS": "odd small",
    "STARPULLM_PARTITION": "3x1 1x3",
}


@pytest.mark.parametrize("given", [False, True])
def test_the_command_line_comes_before_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: bool
) -> None:
    library = tmp_path / "lib.so"
    library.touch()
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    seen: dict[str, object] = {}
    monkeypatch.setattr(COMMANDS["parity",], "callback", lambda **values: seen.update(values))
    options = ["small", "--partition", "1x1", "--llmc-library", "given.so"] if given else []
    result = CliRunner().invoke(main, [*(["--library", str(library)] if given else []), "parity", *options])
    assert result.exit_code == 0, result.output
    expected = (("1x1",), ("small",), Path("given.so")) if given else (("3x1", "1x3"), ("odd", "small"), Path("env.so"))
    assert (seen["partitions"], seen["record_files"], seen["llmc_library"]) == expected
    assert os.environ["STARPULLM_LIB"] == (str(library) if given else "/env/lib.so")


def test_a_library_that_is_not_there(tmp_path: Path) -> None:
    """The sentence names what was typed."""
    result = CliRunner().invoke(main, ["--library", str(tmp_path / "none.so"), "doctor"])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: --library: {tmp_path}/none.so: no such file, expected a libstarpullm.so")


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

    def measure_all(run: object, workloads: Sequence[Workload], *_: object) -> None:
        measured.extend(workloads)

    monkeypatch.setattr(bench, "_measure_all", measure_all)
    result = CliRunner().invoke(main, ["bench", "--model", "tiny", "--ranks", "1", "--ranks", "2", *options])
    assert result.exit_code == 0, result.output
    assert [(workload.ranks, workload.batch_size) for workload in measured] == expected


def test_parity_is_checked_with_all_shipped_records_but_the_largest() -> None:
    """Unless records are given."""
    assert [record.name for record, _ in parity._plan([], False, "1", 1)[0]] == list(SHIPPED_RECORDS[:-1])
    assert [record.name for record, _ in parity._plan([], True, "1", 1)[0]] == list(SHIPPED_RECORDS)


@pytest.mark.parametrize(
    ("sub_batches", "ranks", "left_out"),
    [
        ("all", 1, {}),
        ("2", 1, {"odd": "sub_batches: found 2, expected a divisor of the batch size 3"}),
        ("all", 3, dict.fromkeys(("tiny", "small", "single", "long", "wide"), "")),
        (
            "2",
            2,
            {
                "tiny": "sub_batches: found 2, expected a divisor of the batch size 1 of each rank",
                "odd": "its batch of 3 can't be spread over 2 ranks",
                "long": "sub_batches: found 2, expected a divisor of the batch size 1 of each rank",
            },
        ),
    ],
)
def test_parity_leaves_out_records_whose_batch_cannot_be_cut(
    sub_batches: str, ranks: int, left_out: dict[str, str]
) -> None:
    plan, unfit = parity._plan([], False, sub_batches, ranks)
    assert [entry.what for entry in unfit] == [f"record {name}" for name in left_out]
    assert all(entry.reason == reason for entry, reason in zip(unfit, left_out.values(), strict=True) if reason)
    assert {record.name for record, _ in plan} == set(SHIPPED_RECORDS[:-1]) - set(left_out)
    assert all(record.batch_size % (ranks * count) == 0 for record, counts in plan for count in counts)


@pytest.mark.parametrize("sub_batches", ["0", "-1", "2.5", "some"])
def test_parity_refuses_other_numbers_of_sub_batches(sub_batches: str) -> None:
    with pytest.raises(click.BadParameter, match=f'expected a positive number or "all", found "{sub_batches}"'):
        parity._plan([], False, sub_batches, 1)


@pytest.mark.parametrize("sub_batches", ["1", "all"])
def test_parity_refuses_a_record_that_ranks_cannot_share(sub_batches: str) -> None:
    """With `all` there would be no number of sub-batches left, and no difference found."""
    odd = shipped_record("odd")
    assert parity._plan([odd], False, sub_batches, 3) == ([(odd, [1])], [])
    with pytest.raises(InvalidArgumentError, match=r"odd: its batch of 3 can't be spread over 4 ranks; nothing would"):
        parity._plan([odd], False, sub_batches, 4)
    with pytest.raises(
        InvalidArgumentError, match=r"^odd: sub_batches: found 2, expected a divisor of the batch size 3"
    ):
        parity._plan([odd], False, "2", 1)
    with pytest.raises(
        InvalidArgumentError, match=r"^ranks: found 8 and sub_batches 7, expected a divisor of the batch"
    ):
        parity._plan([], False, "7", 8)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["bench", "--model", "tiny"], "--ranks says on how many to measure"),
        (["demo"], "the demo trains in one process"),
        (["generate", "--checkpoint", "model.bin"], "a text is sampled in one process"),
        (["probe", "./program"], "PROGRAM may be the launcher of ranks"),
    ],
)
def test_what_runs_in_one_process_is_refused_on_several_ranks(arguments: list[str], reason: str) -> None:
    """Each rank would do the same, and write the same files."""
    result = CliRunner(env={"PMI_RANK": "1", "PMI_SIZE": "2"}).invoke(main, arguments)
    assert result.exit_code == 2
    assert result.stderr == f"Error: ranks: found 2, expected one: {reason}\n"


# ---- What bench prints ----


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOCK_VARIABLE, str(tmp_path / "lock"))


def run_bench(*options: str) -> Result:
    sizes = ["--model", "tiny", "--partition", "1x1", "--partition", "1x2", "--partition", "1x4"]
    return CliRunner().invoke(main, ["bench", *sizes, *options])


@pytest.mark.usefixtures("lock")
def test_bench_prints_each_row_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[str] = []
    seen: list[int] = []

    def measure(workload: Workload, checkpoint: Path, time_limit: float) -> Throughput:
        seen.append(len([line for line in printed if " MiB" in line]))
        return throughput(workload)

    monkeypatch.setattr(bench, "bench", measure)
    monkeypatch.setattr(OUT, "print", printed.append)
    assert run_bench().exit_code == 0
    assert seen == [0, 1, 2]
    columns = "configuration tokens/ms GFLOP/s limit with FMA of limit kernels StarPU waiting memory"
    assert " ".join(printed[1].split()) == columns
    assert [line.split(",")[0] for line in printed[2:5]] == ["1x1", "1x2", "1x4"]
    assert len({len(line) for line in printed[1:5]}) == 1


def fail_in_the_middle(workload: Workload, checkpoint: Path, time_limit: float) -> Throughput:
    if workload.partition == "1x2":
        raise RuntimeFailureError("1x2: it crashed\nwith these stacks")
    return throughput(workload)


@pytest.mark.usefixtures("lock")
def test_bench_goes_on_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has been measured is printed, the failure is a row, and the exit status is the failure's."""
    monkeypatch.setattr(bench, "bench", fail_in_the_middle)
    result = run_bench()
    assert result.exit_code == 4
    rows = result.stdout.splitlines()[2:]
    assert [row.split(",")[0] for row in rows[:3]] == ["1x1", "1x4", "1x2"]
    assert rows[2].endswith("  failed: 1x2: it crashed")
    assert result.stderr == "Error: 1x2: it crashed\nwith these stacks\n"


@pytest.mark.usefixtures("lock")
def test_the_json_of_a_bench_with_a_failure_is_a_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "bench", fail_in_the_middle)
    result = run_bench("--json")
    assert result.exit_code == 4
    first, second, third = json.loads(result.stdout)
    assert second["failure"].startswith("1x2: it crashed")
    assert [result["configuration"]["partition"] for result in (first, second, third)] == ["1x1", "1x2", "1x4"]


@pytest.mark.usefixtures("lock")
def test_a_bench_of_which_nothing_works_prints_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(workload: Workload, checkpoint: Path, time_limit: float) -> Throughput:
        raise InvalidArgumentError(f"{workload.partition}: impossible")

    monkeypatch.setattr(bench, "bench", refuse)
    for options in ([], ["--json"]):
        result = run_bench(*options)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert result.stderr.splitlines() == [f"Error: {partition}: impossible" for partition in ("1x1", "1x2", "1x4")]


@pytest.mark.usefixtures("lock")
def test_bench_holds_the_machine_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    free: list[int] = []

    def measure(workload: Workload, checkpoint: Path, time_limit: float) -> Throughput:
        command = ["flock", "--nonblock", "--exclusive", os.environ[LOCK_VARIABLE], "true"]
        free.append(subprocess.run(command, check=False).returncode)
        return throughput(workload)

    monkeypatch.setattr(bench, "bench", measure)
    monkeypatch.setattr(bench, "compare", lambda workload, *_, **__: measure(workload, Path(), 0.0))
    assert run_bench().exit_code == run_bench("--against", "blas").exit_code == 0
    assert free == [1] * 6


@pytest.mark.usefixtures("lock")
def test_bench_tells_the_noise_and_prints_no_ratio_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"1x1": (100.0, 104.0), "1x2": (50.0, 100.0), "1x4": (100.0, 101.0)}
    waits = {"1x4": {"grads/wte": 0.41}, "1x1": {"busy workers": 0.9, "grads/wte": 0.1}}  # the largest first

    def measure(workload: Workload, *_: object) -> Throughput:
        return replace(throughput(workload, limits[workload.partition]), waits=waits.get(workload.partition, {}))

    monkeypatch.setattr(bench, "bench", measure)
    _, _, quiet, noisy, _, *details, last = run_bench().stdout.splitlines()
    assert (quiet.split()[9], noisy.split()[9]) == ("50.0%", "noise")
    assert details[1].endswith(
        "the fraction of the limit is within noise: 50.0% to 100.0%, because the limit was measured as 50 to 100"
    )
    assert details[2].endswith("; a step waits for the running sum of wte for 41% of its time")
    assert not re.search("running sum", "".join(details[:2]))
    assert re.fullmatch(
        r"noise: load \d+\.\d\d on \d+ processors before, \d+\.\d% of the processors' time stolen by other machines, "
        r"the limit measured within 100\.0%",
        last,
    )


def test_ratios_within_noise_or_of_few_rounds_are_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    def speed(name: str, is_within_noise: bool | None) -> VariantSpeed:
        spread = Spread(1.1, 0.9, 1.2)
        return VariantSpeed(
            name=name,
            description=name,
            tokens_per_ms=spread,
            times_slower=spread,
            is_within_noise=is_within_noise,
            losses=(1.0,),
        )

    lines: list[str] = []
    variants = (speed("strict", True), speed("blas", True), speed("torch eager", False), speed("library", None))
    monkeypatch.setattr(OUT, "print", lines.append)
    comparison = SpeedComparison(configuration=workload(), variants=variants, loss_difference=0.0)
    bench.print_comparison(comparison)
    assert [" ".join(line.split()[4:]) for line in lines[2:4]] == ["", "within noise 0.90 1.20"]
    assert lines[4].split()[5:7] == ["1.10", "x"]
    assert lines[5].split()[4:] == ["few", "rounds", "0.90", "1.20"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--config tiny", (16, 61, 2, 2, 16, 64)),
        ("--config tiny --layers 1 --max-seq-len 4", (4, 61, 1, 2, 16, 64)),
        ("--config tiny --vocab 129", (16, 129, 2, 2, 16, 256)),
        ("--config tiny --vocab 62 --padded-vocab 63", (16, 62, 2, 2, 16, 63)),
        ("--layers 1 --heads 1 --channels 2 --vocab 3 --max-seq-len 5", (5, 3, 1, 1, 2, 128)),
    ],
)
def test_sizes_of_new_checkpoints(tmp_path: Path, options: str, expected: tuple[int, ...]) -> None:
    path = tmp_path / "model.bin"
    result = CliRunner().invoke(main, ["checkpoint", "new", *options.split(), str(path)])
    assert result.exit_code == 0, result.output
    assert astuple(checkpoint_config(path)) == expected


def test_a_new_checkpoint_replaces_a_file_only_by_force(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"trained for weeks")
    command = ["checkpoint", "new", "--config", "tiny", str(path)]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2
    assert result.stderr == f"Error: {path}: exists already, expected a new file, or --force to replace it\n"
    assert path.read_bytes() == b"trained for weeks"
    assert CliRunner().invoke(main, [*command, "--force"]).exit_code == 0
    assert checkpoint_config(path).num_layers == 2


def test_new_checkpoints_need_sizes(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["checkpoint", "new", "--layers", "1", "--vocab", "3", str(tmp_path / "x")])
    assert result.exit_code == 2
    assert result.output.endswith("expected --config, or all sizes: --max-seq-len, --heads, --channels missing\n")
    assert list(tmp_path.iterdir()) == []
