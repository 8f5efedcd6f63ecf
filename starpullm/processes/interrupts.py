"""Ends a process at a signal although its main thread is in a native call, for whose end Python's handlers wait."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from tempfile import TemporaryDirectory
from types import FrameType
from typing import NoReturn, Self

from starpullm.processes import progress
from starpullm.processes.stacks import native_stacks

_COMMAND_SECONDS = 5.0  # to end its processes and remove its files
_RANK_SECONDS = 2.0
_STACK_SECONDS = 5.0
_FRAMES = 8  # of Python, the innermost


class SignalWatch:
    """Ends the process, from a thread, that SIGINT or SIGTERM hasn't ended some seconds later.

    The thread says where the process was, and removes its temporary directories. SIGTERM is an exception, so that a
    process that isn't in a native call ends its children and removes its files by itself; a rank, which mpirun would
    kill a second later, ends at once.
    """

    def __init__(self, rank: int | None = None) -> None:
        self.rank = rank
        self.seconds = _COMMAND_SECONDS if rank is None else _RANK_SECONDS
        self.unsaid: Callable[[str], None] | None = None
        """Writes why a rank fails, if it hasn't been written yet."""
        self.leaving = threading.Event()
        """Set when the process needn't be ended any more."""
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread may handle signals
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._outer_file = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        # Python writes to the wake-up file only for signals that have a handler in Python.
        self._outer_handler = signal.signal(signal.SIGTERM, self._on_sigterm)
        self._thread = threading.Thread(target=self._watch, name="starpullm signals", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leaving.set()
        if self._thread is None:
            return
        signal.set_wakeup_fd(self._outer_file)
        if self._outer_handler is not None:  # None: a handler that wasn't installed from Python can't be restored
            signal.signal(signal.SIGTERM, self._outer_handler)
        os.write(self._writer, b"\0")
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        if self.rank is None:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            raise SystemExit(128 + number)

    def _watch(self) -> None:
        while True:
            for number in os.read(self._reader, 64):
                if number == 0:
                    return
                at_once = self.rank is not None and number == signal.SIGTERM
                if number in (signal.SIGINT, signal.SIGTERM) and (at_once or not self.leaving.wait(self.seconds)):
                    self._end(number)

    def _end(self, number: int) -> NoReturn:
        try:
            say(f"{self._last_words()}ended by {signal.Signals(number).name} ({progress.where()})")
            if os.isatty(2):
                os.write(2, b"\x1b[?25h")  # show the cursor, which a progress bar hides
        finally:  # also if nobody reads standard error any more
            for thing in gc.get_objects():
                if isinstance(thing, TemporaryDirectory):
                    with suppress(Exception):
                        thing.cleanup()
            os._exit(128 + number)

    def _last_words(self) -> str:
        if self.unsaid is not None:
            self.unsaid(f"rank {self.rank}")
        if self.rank is not None:
            return f"rank {self.rank}: "
        main = sys._current_frames()[threading.main_thread().ident or 0]
        python = "".join(traceback.format_stack(main, _FRAMES))
        return f"{python}{native_stacks(os.getpid(), _STACK_SECONDS, only_main=True)}\nstarpullm: "


def say(line: str) -> None:
    """Write a line in one piece, without Python's buffers, whose lock the main thread may hold."""
    os.write(2, f"{line}\n".encode(errors="replace"))
