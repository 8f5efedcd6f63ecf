"""explained.toml goes with the sources as they are, and what doesn't is refused; nothing is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from .explained import EXPLANATIONS, read_explanations

ROOT = Path(__file__).parents[2]
_CLASS = '[[class]]\nname = "{}"\nwhy = "It fails."\n[class.lines]\n"a.c" = ["""\n{}\n"""]\n'


def test_each_explained_block_stands_once_in_its_file() -> None:
    explanations = read_explanations(ROOT)
    assert len({of.name for of in explanations.classes}) == len(explanations.classes) > 1
    assert EXPLANATIONS.is_file()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (_CLASS.format("one", "missing();"), "stands 0 times"),
        (_CLASS.format("one", "b();"), "stands 2 times"),
        (_CLASS.format("one", "a();\nb();") + _CLASS.format("two", "a();"), "a.c:1: stands in two blocks"),
        ('[[class]]\nname = "one"\nwhy = ""\n[class.lines]\n"a.c" = ["a();"]\n', "expected a sentence"),
        ('[[class]]\nname = "one"\nwhy = "It fails."\n', "expected a sentence and lines"),
    ],
)
def test_what_does_not_go_with_the_sources_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    source, explanations = tmp_path / "native" / "src" / "a.c", tmp_path / "explained.toml"
    source.parent.mkdir(parents=True)
    source.write_text("  a();\n\tb();\n    b();\n")
    explanations.write_text(text)
    with pytest.raises(ValueError, match=sentence):
        read_explanations(tmp_path, explanations)


def test_blocks_are_found_whatever_their_white_space(tmp_path: Path) -> None:
    source, explanations = tmp_path / "native" / "src" / "a.c", tmp_path / "explained.toml"
    source.parent.mkdir(parents=True)
    source.write_text("  a();\n\tb();\n    b();\n")
    explanations.write_text(_CLASS.format("one", "b();\nb();"))
    found = read_explanations(tmp_path, explanations)
    assert [found.of_line("native/src/a.c", number) is not None for number in (1, 2, 3)] == [False, True, True]
    explanations.write_text('[[class]]\nname = "one"\nwhy = "It fails."\n[class.lines]\n"a.c" = "whole file"\n')
    found = read_explanations(tmp_path, explanations)
    assert all(found.of_line("native/src/a.c", number) for number in (1, 2, 3))
