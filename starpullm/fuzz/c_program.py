"""A program as C that needs nothing but StarPU: the interpreter's functions that it calls, and a main()."""

from __future__ import annotations

import re

from starpullm.fuzz.interpreter import source
from starpullm.fuzz.oracle import COMMUTE, REDUX, RW, SCRATCH, R, W

_MODES = {
    R: "STARPU_R",
    W: "STARPU_W",
    RW: "STARPU_RW",
    SCRATCH: "STARPU_SCRATCH",
    REDUX: "STARPU_REDUX",
    COMMUTE: "STARPU_RW | STARPU_COMMUTE",
}
_ACCESSES = {"task": 10, "acquire": 3}
"""Where the accesses of an operation begin."""
_DEFINED = re.compile(r"^(?:static (?:\w+[ *]+)+|\} )(\w+)(?:\(|\[.*;| = \{)", re.MULTILINE)
"""A function, a codelet, or an array of structures without a name."""
_MAIN = """int main(void)
{{
    if (starpu_init(NULL) != 0)
        return 77;
    begin({unit});
{calls}
    end();
    starpu_shutdown();
    puts(failure[0] ? failure : "ok");
    return failure[0] != 0;
}}
"""


def _call(line: str) -> str:
    name, *numbers = line.split()
    if name in _ACCESSES:
        first = _ACCESSES[name]
        count = int(numbers[9]) if name == "task" else 1
        for mode in range(first + 1, first + 3 * count, 3):
            numbers[mode] = _MODES[int(numbers[mode])]
        for digest in range(first + 2, first + 3 * count, 3):
            numbers[digest] = f"{int(numbers[digest]):#x}" if numbers[digest] != "0" else "0"
    elif name == "unregister":
        numbers[4] = f"{int(numbers[4]):#x}"
    return f"    op_{name}((uint64_t[]){{{', '.join(numbers) or '0'}}});"


def _blocks(text: str) -> list[str]:
    """Return the functions and the declarations between them, which empty lines separate."""
    blocks: list[str] = []
    inside = False
    for part in text.split("\n\n"):
        if inside:
            blocks[-1] += "\n\n" + part
        else:
            blocks.append(part)
        inside = blocks[-1].count("{") != blocks[-1].count("}")
    return blocks


def c_program(text: str, comment: str) -> str:
    """Return a program as C; the comment says how it fails."""
    head, *lines = text.splitlines()[:-1]
    main = _MAIN.format(unit=head.split()[2], calls="\n".join(map(_call, lines)))
    blocks = _blocks(source("interpreter.c").partition("/* INTERPRETER")[0].partition("*/")[2].strip())
    names = [set(_DEFINED.findall(block)) for block in blocks]
    needed = [not defined for defined in names]
    new, main_text = "".join(block for block, defined in zip(blocks, names, strict=True) if not defined), main
    while new := new + main_text:
        words, new, main_text = set(re.findall(r"\w+", new)), "", ""
        for i, block in enumerate(blocks):
            if not needed[i] and words & names[i]:
                needed[i] = True
                new += block
    kept = [block for block, is_needed in zip(blocks, needed, strict=True) if is_needed]
    return "\n\n".join([f"/* {comment} */", *kept, main])
