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
    predict,
    probe,
    record,
    report,
    scenario,
    tokenize,
    trace,
    train,
)
from starpullm.commands.main import main

__all__ = ["main"]

_SECTIONS = {
    "Check": (doctor, parity, scenario, probe, record, report),
    "Train": (demo, train, generate),
    "Measure": (bench, predict, trace),
    "Convert": (checkpoint, tokenize, convert),
}
for _modules in _SECTIONS.values():
    for _module in _modules:
        main.add_command(_module.command)
main.sections = {title: [str(module.command.name) for module in modules] for title, modules in _SECTIONS.items()}
