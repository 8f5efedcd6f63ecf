"""The command group, its exit statuses, and what every command over ranks stands in.

Exit status: 0 done; 1 a comparison found differences; 2 bad usage or input; 3 not comparable; 4 the machine failed
(memory, disk, StarPU); 130 interrupted.
"""

from __future__ import annotations

import errno
import signal
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import click

import starpullm
from starpullm.commands.render import ERR, OUT
from starpullm.errors import (
    FileError,
    FormatError,
    InvalidArgumentError,
    MissingDependencyError,
    StarpullmError,
)
from starpullm.processes.ranks import (
    check_same_options,
    default_exit_status,
    guarded,
    rank_and_size_from_environment,
    world,
)

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

__all__ = ["EXIT_DIFFERENT", "EXIT_NOT_COMPARABLE", "all_ranks", "guarded_ranks", "main"]

EXIT_DIFFERENT = 1
EXIT_BAD_INPUT = 2
EXIT_NOT_COMPARABLE = 3
EXIT_MACHINE_FAILED = 4
EXIT_INTERRUPTED = 128 + signal.SIGINT  # as shells count; click's own would be 1
_INPUT_ERRORS = (InvalidArgumentError, FormatError, MissingDependencyError)
# Numbers that say that the path was wrong, not that the disk failed.
_PATH_ERRORS = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EINVAL,  # not a regular file
)


def exit_status(error: BaseException) -> int:
    """Return the exit status that an error has, as the module's docstring lists them."""
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, SystemExit | click.ClickException | click.exceptions.Exit):
        return default_exit_status(error)
    missing = isinstance(error, FileError) and error.errno in _PATH_ERRORS
    # A defect of ours must not look like EXIT_DIFFERENT, which is Python's status for a trace back.
    return EXIT_BAD_INPUT if missing or isinstance(error, _INPUT_ERRORS) else EXIT_MACHINE_FAILED


class _Group(click.Group):
    """Prints an error's sentence instead of a trace back, and gives it its exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except StarpullmError as error:
            ERR.print(f"Error: {error}", markup=False)
            status = exit_status(error)
        except MemoryError as error:
            ERR.print(f"Error: out of memory: {error}", markup=False)
            status = EXIT_MACHINE_FAILED
        except KeyboardInterrupt as error:
            ERR.print("Interrupted.")
            status = exit_status(error)
        except Exception as error:
            traceback.print_exc()
            status = exit_status(error)
        ctx.exit(status)


@contextmanager
def all_ranks() -> Iterator[Comm | None]:
    """Give the communicator of the ranks that this command was started with, None for one process alone.

    Rank 0 alone prints; an error of one rank ends all.
    """
    _, size = rank_and_size_from_environment()
    if size == 1:
        yield None
        return
    comm = world()
    with guarded(comm, exit_status):
        params = click.get_current_context().params
        check_same_options(comm, {name: value for name, value in params.items() if "partition" not in name})
        OUT.quiet = comm.Get_rank() > 0
        yield comm


def guarded_ranks(comm: Comm | None) -> AbstractContextManager[None]:
    """Stand inside what waits for other ranks when it is closed: an error must end them first."""
    return guarded(comm, exit_status) if comm else nullcontext()


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(starpullm.__version__, prog_name="starpullm")
def main() -> None:
    """Train GPT-2 as one StarPU task graph, and prove that its bits are llm.c's."""
