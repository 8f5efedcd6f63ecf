"""The oracle makes legal programs of any records, and says what their tasks see."""

from __future__ import annotations

import pytest

from starpullm.errors import InvalidArgumentError
from starpullm.fuzz.configuration import Configuration
from starpullm.fuzz.draw import random_program
from starpullm.fuzz.interpreter import c_program
from starpullm.fuzz.oracle import COMMUTE, MODES, REDUX, RW, SPARSE, Oracle, R, W


def _random_program(seed: int) -> str:
    return random_program(seed, 200).text


def _accesses(line: str) -> list[tuple[str, str, str]]:
    words = line.split()[1:]
    return [(words[i], words[i + 1], words[i + 2]) for i in range(9, 9 + 3 * int(words[8]), 3)]


def test_a_writer_changes_what_the_next_reader_sees() -> None:
    oracle = Oracle(1)
    oracle.handle(bytes([1, 0, 0, 0]))
    reader, writer = bytes(15), bytes([0, 0, 1, *bytes(12)])
    for chosen in (reader, writer, reader, writer, reader):
        oracle.task(chosen)
    oracle.end()
    tasks = [_accesses(line)[0] for line in oracle.text().splitlines() if line.startswith("task")]
    assert [mode for _, mode, _ in tasks] == [R, RW, R, RW, R]
    seen = [digest for _, _, digest in tasks]
    assert seen[0] == seen[1]
    assert seen[2] == seen[3]
    assert len(set(seen)) == 3


def test_what_has_no_content_is_written_first() -> None:
    oracle = Oracle(1)
    oracle.handle(bytes([1, 0, 0, 1]))
    oracle.task(bytes(15))
    oracle.task(bytes(15))
    assert [_accesses(line)[0][1] for line in oracle.text().splitlines() if line.startswith("task")] == [W, R]


def test_tasks_in_contexts_submit_others_there() -> None:
    oracle = Oracle(1)
    oracle.handle(bytes([1, 0, 0, 240]))  # without order, so that callbacks may submit its tasks
    oracle.context(bytes([1, 2, 0, 1]))
    oracle.context(bytes([1, 0, 0, 0]))
    oracle.task(_task(0, 0, where=1))
    oracle.task(_task(0, 0, kind=255, where=150))
    oracle.end()
    lines = [line.split() for line in oracle.text().splitlines()]
    assert [line[:3] for line in lines if "context" in line[0]] == [
        ["context", "1", "2"],
        ["context", "2", "0"],
        ["context_task", "2", "1"],
        ["context_task", "2", "0"],
        ["delete_context", "1"],
        ["delete_context", "2"],
    ]
    assert [line[5] for line in lines if line[0] == "context_task"] == ["0", "0"]  # workers: any


def _task(*chosen: int, kind: int = 0, where: int = 0) -> bytes:
    """Return the record of a task with a pair of handle and mode."""
    return bytes([0, *chosen, *bytes(6), kind, 0, where, *bytes(3)])


def test_data_without_elements_are_written_before_they_are_read() -> None:
    oracle = Oracle(1)
    oracle.handle(bytes([1, 240, 0, 1]))
    oracle.task(_task(0, 0))
    oracle.task(_task(0, 1))
    oracle.partition(bytes(4))
    lines = oracle.text().splitlines()
    assert lines[1] == "handle 0 1 0 1 0 1"
    assert [_accesses(line)[0] for line in lines[2:4]] == [("0", W, "0x0"), ("0", RW, "0x0")]
    assert lines[4:] == ["end"]


def test_sparse_data_are_cut_by_rows_and_keep_their_structure() -> None:
    oracle = Oracle(1)
    oracle.handle(bytes([SPARSE, 0, 1, 241]))
    for _ in range(2):
        oracle.partition(bytes(4))
    for mode in (W, REDUX):
        oracle.task(_task(0, MODES.index(mode)))
    oracle.unpartition(bytes(2))
    oracle.unpartition(bytes(2))
    oracle.invalidate(bytes(2))
    lines = oracle.text().splitlines()[1:-1]
    assert lines[:3] == ["handle 0 3 4 4 1 3", "partition 0 1 2 1 0", "partition 1 1 2 3 0"]
    assert [_accesses(line)[0][1] for line in lines[3:5]] == [RW, RW]
    assert [line.split()[0] for line in lines[5:]] == ["unpartition", "unpartition"]


def test_data_without_reduction_methods() -> None:
    """They aren't reduced, and not fetched while nothing may have been written."""
    for kind, mode, fetches in ((1, REDUX, ["prefetch"]), (193, COMMUTE, [])):
        oracle = Oracle(1)
        oracle.handle(bytes([kind, 0, 0, 0]))
        oracle.prefetch(bytes(2))
        oracle.task(_task(0, MODES.index(REDUX)))
        lines = [line.split() for line in oracle.text().splitlines()[2:-1]]
        assert [name for name, *_ in lines] == [*fetches, "task"]
        assert lines[-1][11] == mode


def test_a_synchronising_task_waits_for_what_was_written() -> None:
    oracle = Oracle(1)
    oracle.handle(bytes(4))
    oracle.pause(b"\1")
    oracle.task(_task(0, 1))
    oracle.synchronise(bytes([0, 1]))
    oracle.end()
    lines = oracle.text().splitlines()
    assert lines[4] == "resume"
    seen = next(line for line in lines if line.startswith("acquire")).split()[-1]
    assert lines[5] == f"synchronise 0 RW {seen}"


def test_invalidated_memory_is_given_back_if_nothing_else_keeps_it() -> None:
    for home, prefetched, freed in ((1, False, 1), (1, True, 0), (0, False, 0)):
        oracle = Oracle(1)
        oracle.handle(bytes([0, 0, 0, home]))
        oracle.task(_task(0, 2))
        if prefetched:
            oracle.prefetch(bytes(2))
        oracle.invalidate(bytes(2))
        assert oracle.text().splitlines()[-2] == f"invalidate 0 {freed}"


@pytest.mark.parametrize("seed", range(20))
def test_a_program_waits_for_all_that_it_starts(seed: int) -> None:
    paused, held, alive, waitable, run = False, 0, set[int](), set[int](), list[int]()
    contexts = set[int]()
    for line in _random_program(seed).splitlines()[1:-1]:
        name, *words = line.split()
        numbers = [int(word, 0) for word in words if not word.isupper()]
        if name == "context":
            contexts.add(numbers[0])
        if name == "delete_context":
            contexts.remove(numbers[0])
        if name == "context_task":
            name, context, *numbers = "task", *numbers
            assert context in contexts
        paused = name == "pause" or (paused and name != "resume")
        held += (name == "acquire" and numbers[1] == 2) - (name == "release")
        if name in ("task", "acquire"):
            run.append(numbers[0])
        if name == "handle":
            alive.add(numbers[0])
        if name in ("unregister", "unregister_submit"):
            alive.remove(numbers[0])
        if name == "task" and numbers[1] & 1:
            waitable.add(numbers[0])
        if name == "wait":
            waitable.remove(numbers[0])
        if name in ("wait", "wait_for_all", "unregister", "invalidate"):
            assert not paused
    assert (paused, held, alive, waitable, contexts) == (False, 0, set(), set(), set())
    assert sorted(run) == list(range(len(run)))


def test_a_task_may_read_the_same_data_twice() -> None:
    oracle = Oracle(1)
    oracle.handle(bytes(4))
    for mode in (R, RW):
        oracle.task(bytes([1, *[0, MODES.index(mode)] * 2, *bytes(10)]))
    accesses = [[mode for _, mode, _ in _accesses(line)] for line in oracle.text().splitlines()[2:-1]]
    assert accesses == [[R, R], [RW]]


def test_a_task_that_commutes_does_not_end_a_reduction() -> None:
    oracle = Oracle(1)
    oracle.handle(bytes(4))
    for mode in (COMMUTE, REDUX, REDUX, COMMUTE, COMMUTE):
        oracle.task(_task(0, MODES.index(mode)))
    modes = [_accesses(line)[0][1] for line in oracle.text().splitlines() if line.startswith("task")]
    assert modes == [COMMUTE, REDUX, REDUX, RW, COMMUTE]


def test_parallel_tasks_end_before_there_is_a_context() -> None:
    oracle = Oracle(1)
    oracle.handle(bytes(4))
    parallel = bytearray(_task(0, 0))
    parallel[10] = 224
    for record in (parallel, bytes(15), parallel):
        oracle.task(bytes(record))
        oracle.context(bytes([1, 0, 0, 0]))
    lines = [line.split() for line in oracle.text().splitlines()[2:-1]]
    flags = [(line[0], line[-12:-11]) for line in lines]
    assert flags == [
        ("task", ["32"]),
        ("wait_for_all", []),
        ("context", []),
        ("context_task", ["0"]),
        ("context", []),
        ("context_task", ["0"]),
        ("context", []),
    ]


def test_messages_of_the_same_data_that_starpu_mixes_up_are_not_drawn() -> None:
    """A copy to another rank is alone. What is sent synchronously isn't reduced, and goes between two ranks."""
    copies = sends = 0
    for seed in range(40):
        lines = random_program(seed, 200, 2).text.splitlines()
        unreduced = {line.split()[2] for line in lines if " handle " in line and int(line.split()[-1]) & 2}
        for before, line, after in zip(lines, lines[1:], lines[2:], strict=False):
            name, *words = line.split()
            if name == "mpi_copy":
                copies += 1
                assert (before, after) == ("mpi_wait_for_all", "mpi_wait_for_all")
            if name == "mpi_task" and int(words[3]) & 64:
                sends += 1
                assert {words[i] for i in range(11, 11 + 3 * int(words[10]), 3)} <= unreduced
    assert min(copies, sends) > 0
    of_three = [line.split() for seed in range(40) for line in random_program(seed, 200, 3).text.splitlines()]
    assert not any(line[0] == "mpi_task" and int(line[4]) & 64 for line in of_three)
    assert {line[-1] for line in of_three if line[0] == "send"} == {"0"}


def test_the_same_records_are_the_same_program() -> None:
    assert _random_program(7) == _random_program(7)
    assert _random_program(7) != _random_program(8)


def test_a_c_program_names_the_modes_and_ends_with_its_verdict() -> None:
    text = c_program("starpullm-fuzz 1 1\nhandle 0 1 4 1 1 1\ntask 0 0 0 0 0 -1 -1 0 1 0 RW 0x11 0\nend\n", "why")
    assert "op_task((uint64_t[]){0, 0, 0, 0, 0, -1, -1, 0, 1, 0, RW, 0x11, 0});" in text
    assert "starpullm" not in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("workers=0", 'workers: found "0", expected 1 to 8'),
        ("workers=many", 'workers: found "many"'),
        ("colour=red", 'found "colour=red", expected scheduler, workers'),
        ("workers", 'found "workers", expected'),
    ],
)
def test_a_configuration_that_is_none(text: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        Configuration.drawn(1, text)


def test_a_configuration_can_be_given_as_it_is_printed() -> None:
    drawn = Configuration.drawn(5, "")
    assert Configuration.drawn(6, str(drawn)) == drawn


def test_ranks_are_drawn_only_if_they_are_named_and_always_perturbed() -> None:
    drawn = [Configuration.drawn(seed, words) for words in ("", "ranks=3") for seed in range(30)]
    assert [each.ranks for each in drawn] == [1] * 30 + [3] * 30
    assert all(each.perturb for each in drawn)
