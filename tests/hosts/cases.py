"""Runs several commands of starpullm in each rank of one job, which takes less time than a job for each of them.

`{host}` in an argument or a variable is the name of the rank's host. What rank R writes in the case of number N is in
the files N-R.stdout and N-R.stderr, and its exit status in N-R.status.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from starpullm.commands import main
from starpullm.processes.mpirun import host_name
from starpullm.processes.ranks import world


def run(arguments: list[str], environment: dict[str, str], files: Path) -> None:
    """Run a command, with its output in files, also what the library writes."""
    kept = dict(os.environ)
    os.environ.update({name: value.format(host=host_name()) for name, value in environment.items()})
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        sys.stdout.flush()
        file = os.open(f"{files}.{name}", os.O_WRONLY | os.O_CREAT, 0o644)
        os.dup2(file, descriptor)
        os.close(file)
    status: object = 0
    try:
        main([argument.format(host=host_name()) for argument in arguments], prog_name="starpullm")
    except SystemExit as error:
        status = error.code
    sys.stdout.flush()
    Path(f"{files}.status").write_text(json.dumps(status), "ascii")
    for name in environment:
        os.environ.pop(name)
    os.environ.update(kept)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    comm = world()
    for number, case in enumerate(json.loads((folder / "cases.json").read_text("utf-8"))):
        run(case["arguments"], case["environment"], folder / f"{number}-{comm.Get_rank()}")
