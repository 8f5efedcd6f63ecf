"""``starpullm doctor``: what works on this machine."""

from __future__ import annotations

import click

from starpullm.commands import options
from starpullm.commands.render import OUT, print_json
from starpullm.machine import inspect_machine, rows_of


@click.command("doctor", epilog=options.example("starpullm doctor"))
@options.as_json
def command(as_json: bool) -> None:
    """Show what works on this machine, and what does not and why."""
    machine = inspect_machine()
    if as_json:
        print_json(machine)
        return
    for name, text in rows_of(machine):
        OUT.print(f"{name:<19}{text}")
    for finding in machine["findings"]:
        OUT.print(f"{'problem' if finding['is_problem'] else 'note'}: {finding['sentence']}")
