"""The command line ``starpullm``, one file for each command.

Commands read options, call the package and print results. They compute nothing themselves.
"""

from starpullm.commands import (
    bench,
    checkpoint,
    convert,
    demo,
    doctor,
    generate,
    parity,
    probe,
    record,
    report,
    tokenize,
    trace,
    train,
)
from starpullm.commands.main import main

__all__ = ["main"]

for _module in (
    bench,
    checkpoint,
    convert,
    demo,
    doctor,
    generate,
    parity,
    probe,
    record,
    report,
    tokenize,
    trace,
    train,
):
    main.add_command(_module.command)
