"""The child's side of the connection with its parent: it runs a service until the parent closes the connection.

A *service* is a context manager that prepares what the answers need, and yields a value for the parent and a function
from a request to its reply. All of these are pickled, and sent as messages on a Unix socket: the process numbers of the
child's ranks; from the parent the function that makes the service; then the value, and a reply for each request.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, SourceFileLoader
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from starpullm.errors import RuntimeFailureError, StarpullmError
from starpullm.processes import Comm
from starpullm.processes.progress import report_phase
from starpullm.processes.ranks import guarded, meet, world

Service: TypeAlias = AbstractContextManager[tuple[Any, Callable[[Any], Any]]]
"""What a child runs: yields a value for the parent, and the function that answers a request.

With several ranks, every rank enters the context and calls the function on every request; rank 0's values are sent.
"""


@dataclass(frozen=True)
class Answered:
    """The child has answered."""

    value: Any

    def result(self) -> Any:
        """Return the value."""
        return self.value


@dataclass(frozen=True)
class Failed:
    """There is no answer; ``text`` is a sentence that begins with the child's name, then all that helps to find why."""

    text: str

    def result(self) -> NoReturn:
        """Raise a `RuntimeFailureError` with the text."""
        raise RuntimeFailureError(self.text)


@dataclass(frozen=True)
class Raised(Failed):
    """The service raised an exception. The child answers further requests, unless this was its start.

    An exception in a child of several ranks ends the child instead, so it is `Lost`.
    """

    kind: str
    """Name of the exception's class."""
    sentence: str


def find_function(
    location: Mapping[str, str], loader: Callable[[str, str], Loader] = SourceFileLoader
) -> Callable[..., Any]:
    """Return a function by its location; imports a module of this package by name, any other one from its file.

    A module of another package may import its neighbours: the packages that it is in are imported from their folders.
    """
    name, file = location["module"], location["file"]
    if name.partition(".")[0] != __package__.partition(".")[0]:
        names = name.split(".")[:-1]
        folders = list(Path(file).parents)[: len(names)][::-1]
        if [folder.name for folder in folders] == names:
            for depth, folder in enumerate(folders, 1):  # the outermost package first
                package, init = ".".join(names[:depth]), folder / "__init__.py"
                own = SourceFileLoader(package, str(init)) if init.is_file() else None
                _import(ModuleSpec(package, own, origin=str(init), is_package=True), folder)
        _import(ModuleSpec(name, loader(name, file), origin=file))
    function: Callable[..., Any] = getattr(importlib.import_module(name), location["function"])
    return function


def _import(spec: ModuleSpec, folder: Path | None = None) -> None:
    """Import a module, or a package from a folder, unless it is there."""
    if spec.name in sys.modules:
        return
    spec.has_location = spec.loader is not None
    if folder is not None:
        spec.submodule_search_locations = [str(folder)]
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        if spec.loader:
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]  # as `import` does: otherwise a later call would find a module without its functions
        raise


def main() -> None:
    """Run the service that the parent sends; the arguments are the child's name, its socket and its number of ranks."""
    name, address, ranks = sys.argv[1:]
    comm = world() if int(ranks) > 1 else None
    with guarded(comm):
        _serve(name, address, comm)


def _serve(name: str, address: str, comm: Comm | None) -> None:
    """Answer requests until the parent closes the connection, which only rank 0 has."""
    pids = comm.gather(os.getpid()) if comm is not None else [os.getpid()]
    with ExitStack() as stack:
        stream = stack.enter_context(Client(address)) if pids else None

        def send(message: object) -> None:
            if stream is not None:
                stream.send(message)

        def receive() -> bytes:
            message = b""
            if stream is not None:
                with suppress(EOFError):
                    message = stream.recv_bytes()
            if comm is not None:
                meet(comm)  # the other ranks sleep until rank 0 has a message
                message = comm.bcast(message)
            return message

        send(pids)
        made = receive()
        if not made:
            return
        service: Service = pickle.loads(made)(comm)
        report_phase("starting")
        started = _attempt(name, comm, stack.enter_context, service)
        if isinstance(started, Raised):
            send(started)
            return
        value, answer = started.value
        reply: Answered | Raised = Answered(value)
        while True:
            report_phase("waiting for a request")  # before the reply, after which this process is stopped
            send(reply)
            request = receive()
            if not request:
                return
            reply = _attempt(name, comm, lambda content: answer(pickle.loads(content)), request)


def _attempt(name: str, comm: Comm | None, function: Callable[[Any], Any], argument: object) -> Answered | Raised:
    """Return a function's result as a message, or an exception; a rank that raises ends all ranks."""
    try:
        return Answered(function(argument))
    except Exception as error:
        if comm is not None:
            raise
        kind = type(error).__name__
        stack = "" if isinstance(error, StarpullmError) else f"\n{traceback.format_exc()}"
        return Raised(f"{name}: {kind}: {error}".rstrip(": ") + stack, kind, str(error))
