"""One caller at a time, none after the end, and none before what is there was found to be sound."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from rondel.decoder.errors import SessionBusy, StreamClosed, StreamDamaged


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

    looked_at = True
    """Whether it begins at once: nothing is still to be checked."""

    def begin_last(self) -> None:
        """Enter to end the stream, whatever is in it. :meth:`end` is then the caller's duty."""
        if not self._lock.acquire(blocking=False):
            raise SessionBusy("another call is running in this session; a session has one caller at a time")
        if self.closed:
            self._lock.release()
            raise StreamClosed("the stream is closed")

    begin = begin_last
    """Enter without a context."""

    def end(self) -> None:
        """Leave."""
        self._lock.release()

    __enter__ = begin

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


class CheckedTurn(Turn):
    """A turn that begins only when ``check`` has said, once, that nothing is wrong: it returns what is.

    Whoever comes meanwhile waits for that; the check may be under way elsewhere, too. Raises also:
        StreamDamaged: something is wrong, now and at every time after.
    """

    def __init__(self, check: Callable[[], str]) -> None:
        super().__init__()
        self._check: Callable[[], str] | None = check
        self.looked_at = False

    def begin(self) -> None:
        self.begin_last()
        if self._check is None:
            return
        try:
            reason = self._check()
            if reason:
                raise StreamDamaged(f"the stream was damaged in its file, and is set aside: {reason}")
        except BaseException:
            self.end()
            raise
        self._check = None
        self.looked_at = True

    __enter__ = begin
