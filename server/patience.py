"""How long a handler waits for its client."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class Patience:
    """Ends waits of one task that take too long: ``with patience: await ...`` raises TimeoutError then.

    What ``asyncio.timeout`` does, for waits that come thousands of times and nearly never take long: that
    would make and drop a timer each time, this has one for all of them. ``seconds``: None = for ever.
    """

    def __init__(self, seconds: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._task = asyncio.current_task()
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    def __enter__(self) -> Self:
        self._since = self._loop.time()
        if self._timer is None and self._seconds is not None:
            self._timer = self._loop.call_later(self._seconds, self._look)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._since = None
        if not self._ended or self._task is None:
            return
        self._ended = False
        if self._task.uncancel() == 0 and isinstance(error, asyncio.CancelledError):
            raise TimeoutError from error

    def close(self) -> None:
        """Nothing is waited for any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._since is None or self._seconds is None or self._task is None:
            return  # the next wait has it set again
        left = self._since + self._seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._ended = True
            self._task.cancel()
