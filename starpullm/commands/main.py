"""The command group, its exit statuses, and the contexts in which commands run over ranks.

Exit status: 0 success; 1 a comparison found differences; 2 bad usage or bad input; 3 not comparable; 4 a failure of the
machine (memory, disk, StarPU), or a loss that isn't finite; 130 interrupted; 141 nobody reads standard output any more;
143 ended by SIGTERM.
"""

from __future__ import annotations

import errno
import os
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from starpullm.binding.library import ENVIRONMENT_VARIABLE
from starpullm.commands.render import ERR, OUT, note, open_output
from starpullm.errors import FileError, FormatError, InvalidArgumentError, MissingDependencyError, StarpullmError
from starpullm.processes import Comm, progress
from starpullm.processes.interrupts import SignalWatch
from starpullm.processes.mpirun import host_name
from starpullm.processes.progress_limit import ProgressLimit
from starpullm.processes.rank_wrapper import rank_and_size_from_environment
from starpullm.processes.ranks import (
    check_same_options,
    default_exit_status,
    guarded,
    option_differences,
    rank_list,
    world,
)

EXIT_DIFFERENT = 1
EXIT_BAD_INPUT = 2
EXIT_NOT_COMPARABLE = 3
EXIT_MACHINE_FAILED = 4
EXIT_INTERRUPTED = 128 + signal.SIGINT  # as in shells; click would use 1
EXIT_CLOSED_PIPE = 128 + signal.SIGPIPE  # the same
_INPUT_ERRORS = (InvalidArgumentError, FormatError, MissingDependencyError)
# These error numbers mean that the path was wrong, not that the disk failed.
_WRONG_NAME = (errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)
_PATH_ERRORS = (*_WRONG_NAME, errno.EACCES, errno.EPERM, errno.EINVAL)  # not a regular file


def exit_status(error: BaseException) -> int:
    """Return the exit status of an error; the module's docstring lists them."""
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return EXIT_CLOSED_PIPE
    if isinstance(error, SystemExit | click.ClickException | click.exceptions.Exit):
        return default_exit_status(error)
    missing = isinstance(error, FileError) and error.errno in _PATH_ERRORS
    # Python's status after an uncaught exception is 1; here that would look like EXIT_DIFFERENT.
    return EXIT_BAD_INPUT if missing or isinstance(error, _INPUT_ERRORS) else EXIT_MACHINE_FAILED


_SECTIONS = {
    "Check": ("doctor", "parity", "scenario", "probe", "fuzz"),
    "Train": ("demo", "train", "generate"),
    "Measure": ("bench", "predict", "trace"),
    "Convert": ("checkpoint", "tokenize", "convert"),
}
"""The headings under which --help lists the commands; each is the ``command`` of the module of its name."""


class _Group(click.Group):
    """Imports the command that is called, and no other."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in _SECTIONS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = import_module(f"starpullm.commands.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = formatter.width - 6 - max(map(len, self.list_commands(ctx)))
        for title, names in _SECTIONS.items():
            commands = {name: self.get_command(ctx, name) for name in names}
            with formatter.section(title):
                formatter.write_dl([(name, c.get_short_help_str(width)) for name, c in commands.items() if c])

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        with _reported_errors():
            open_output()
            return super().make_context(*args, **options)  # prints --help and --version

    def invoke(self, ctx: click.Context) -> Any:
        with _reported_errors(), SignalWatch():
            return super().invoke(ctx)


@contextmanager
def _reported_errors() -> Iterator[None]:
    """Print the sentence of an error instead of a traceback, and exit with its status."""
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except BrokenPipeError:
        # All contexts have been left. At its end Python would fail to write what the pipe hasn't taken.
        os._exit(EXIT_CLOSED_PIPE)
    except (Exception, KeyboardInterrupt) as error:
        match error:
            case StarpullmError():
                ERR.print(f"Error: {error}")
            case MemoryError():
                ERR.print(f"Error: out of memory: {error}")
            case KeyboardInterrupt():
                ERR.print(f"Interrupted ({progress.where()}).")
            case _:
                traceback.print_exc()
        raise click.exceptions.Exit(exit_status(error)) from None


@contextmanager
def all_ranks() -> Iterator[Comm | None]:
    """Give the communicator of all ranks of this command, or None if it runs as one process.

    Only rank 0 prints. An error on one rank ends all of them.
    """
    context = click.get_current_context()
    _, size = rank_and_size_from_environment()
    comm = world() if size > 1 else None
    with ProgressLimit(context.params["time_limit"], comm, EXIT_MACHINE_FAILED), guarded(comm, exit_status):
        if comm:
            check_same_options(comm, _same_on_all_ranks(context))
            OUT.quiet = comm.Get_rank() > 0
            _note_hosts(comm)
        yield comm


def _note_hosts(comm: Comm) -> None:
    """Say on which hosts the ranks are, if there are several, and which libraries aren't the same on all ranks."""
    from starpullm.machine import loaded_libraries

    told = comm.allgather((host_name(), loaded_libraries()))
    hosts = list(dict.fromkeys(host for host, _ in told))
    unused = int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) - len(hosts)
    if len(hosts) > 1 or unused > 0:
        texts = [
            f"{rank_list([rank for rank, (its_host, _) in enumerate(told) if its_host == host])} on {host}"
            for host in hosts
        ]
        texts += [f"none on {unused} more of the allocation"] if unused > 0 else []
        note(", ".join(texts))
    differences = option_differences([libraries for _, libraries in told])
    if differences:
        note(f"other libraries on some ranks: {'; '.join(differences)}")


def _same_on_all_ranks(context: click.Context) -> dict[str, object]:
    """Return what ranks must have in common of the options: of files, which are compared later, whether they're given.

    Arguments are files.
    """
    files = {
        parameter.name
        for parameter in context.command.params
        if isinstance(parameter.type, click.Path) or isinstance(parameter, click.Argument)
    }
    return {
        name: bool(value) if name in files else value
        for name, value in context.params.items()
        if "partition" not in name
    }


def refuse_ranks(reason: str) -> None:
    """Raise an error if this command was started on several ranks; ``reason`` says why it can't be."""
    _, size = rank_and_size_from_environment()
    if size > 1:
        raise InvalidArgumentError(f"ranks: found {size}, expected one: {reason}")


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(package_name="starpullm", prog_name="starpullm")
@click.option(
    "--library",
    type=click.Path(),
    envvar=ENVIRONMENT_VARIABLE,
    show_envvar=True,
    show_default="the one installed with the package",
    help="libstarpullm.so to use.",
)
@click.pass_context
def main(ctx: click.Context, library: str | None) -> None:
    """Train GPT-2 as one StarPU task graph, and check that its bits are those of llm.c."""
    if library:
        if ctx.get_parameter_source("library") is ParameterSource.COMMANDLINE and not Path(library).is_file():
            raise InvalidArgumentError(f"--library: {library}: no such file, expected a libstarpullm.so")
        # Also for the processes that a command starts.
        os.environ[ENVIRONMENT_VARIABLE] = library
