"""Signals as exceptions, so that ``finally`` blocks run and nothing is left behind."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Final

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Handler = Callable[[int, FrameType | None], object]


class Signals:
    """What has come while a command ran."""

    def __init__(self) -> None:
        self.first: int | None = None
        """The first signal; it decides how the program ends, whatever error the clean-up runs into."""

    def raise_one(self, number: int, frame: FrameType | None) -> None:
        """A signal handler: KeyboardInterrupt for SIGINT, SystemExit(128 + number) for the others."""
        if self.first is None:
            self.first = number
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


@contextmanager
def tidy_exit() -> Iterator[Signals]:
    """Within the block SIGINT, SIGTERM and SIGHUP raise in the main thread, and are noted."""
    came = Signals()
    with _handled_by(came.raise_one):
        yield came


@contextmanager
def nothing_to_undo() -> Iterator[None]:
    """Within the block they end the process at once: for imports, where an exception may become any other."""
    with _handled_by(_end_at_once):
        yield


@contextmanager
def held_back() -> Iterator[Callable[[], None]]:
    """Within the block they wait, until the function that it gives is called or the block ends.

    For starting a process: an interrupt between its start and the note of it would leave it behind.
    """
    waiting: list[int] = []
    with ExitStack() as stack:
        stack.enter_context(_handled_by(lambda number, frame: waiting.append(number)))

        def release() -> None:
            stack.close()
            while waiting:
                signal.raise_signal(waiting.pop(0))

        yield release
    release()


def _end_at_once(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


@contextmanager
def _handled_by(handler: Handler) -> Iterator[None]:
    """A signal that is ignored (``nohup``, a background job of a script) stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, handler)
        for number in ENDING
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
