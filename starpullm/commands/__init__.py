"""The command line ``starpullm``, one file for each command.

Commands read options, call the package and print results. They compute nothing themselves.
"""

from starpullm.commands import (
    bench,
    checkpoint,
    debug_state,
    demo,
    doctor,
    generate,
    parity,
    plot,
    probe,
    record,
    tokenize,
    train,
)
from starpullm.commands.main import main

__all__ = ["main"]

for _module in (bench, checkpoint, debug_state, demo, doctor, generate, parity, plot, probe, record, tokenize, train):
    main.add_command(_module.command)
