"""An event loop whose time is not ours: it stands while anything runs, and jumps to whatever is next.

So an hour takes as long as what happens in it, and the same program does the same every time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence


class Stuck(Exception):
    """Everything waits, and for nothing that has a time."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Time begins at 1000 seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self._selector = self

    def time(self) -> float:
        return self.now

    def select(self, timeout: float | None) -> Sequence[object]:
        """What a selector does, but without files to wait for."""
        if timeout is None:
            raise Stuck
        self.now += timeout
        return ()

    def _process_events(self, event_list: Sequence[object]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass
