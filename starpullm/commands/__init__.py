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
    tokenize,
    train,
)
from starpullm.commands.main import main

__all__ = ["main"]

for _command in (
    bench.bench_command,
    checkpoint.checkpoint,
    debug_state.debug_state_command,
    demo.demo_command,
    doctor.doctor,
    generate.generate_command,
    parity.parity,
    plot.plot_command,
    tokenize.tokenize,
    train.train_command,
):
    main.add_command(_command)
