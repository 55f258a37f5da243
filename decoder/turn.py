"""One caller at a time, and none after the end."""

from __future__ import annotations

import threading
from types import TracebackType

from rondel.decoder.errors import SessionBusy, StreamClosed


class Turn:
    """A context that one caller may be in. It never waits: a second caller is told, since two callers at once
    are a mistake in the program that uses the session.

    Raises:
        SessionBusy: somebody is inside.
        StreamClosed: ``closed`` was set.
    """

    def __init__(self) -> None:
        self.closed = False
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Enter without a context; :meth:`end` is then the caller's duty."""
        if not self._lock.acquire(blocking=False):
            raise SessionBusy("another call is running in this session; a session has one caller at a time")
        if self.closed:
            self._lock.release()
            raise StreamClosed("the stream is closed")

    def end(self) -> None:
        """Leave."""
        self._lock.release()

    __enter__ = begin

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
