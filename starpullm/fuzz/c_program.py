"""A program as C that needs nothing but StarPU: the interpreter's functions, and a main() that calls them."""

from __future__ import annotations

from starpullm.fuzz.interpreter import source

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


def c_program(text: str, comment: str) -> str:
    """Return a program as C; the comment says how it fails."""
    head, *lines = (line.split() for line in text.splitlines()[:-1])
    calls = [f"    op_{name}((uint64_t[]){{{', '.join(words) or '0'}}});" for name, *words in lines]
    main = _MAIN.format(unit=head[2], calls="\n".join(calls))
    return f"/* {comment} */\n{source('interpreter.c').partition('/* INTERPRETER')[0].partition('*/')[2]}{main}"
