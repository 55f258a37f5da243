"""Tests that measure time run alone, although two processes share the tests out between them (`make test`).

A second run for them alone would be simpler still, but leave one core idle and end with a count of its own.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

# Two files that are there anyway: nothing is left behind, and runs in one tree mind one another as well.
ROOM = Path(__file__)
GATE = ROOM.parent.parent / "conftest.py"


@contextmanager
def turn(*, alone: bool, gate: Path = GATE, room: Path = ROOM) -> Iterator[None]:
    """Hold the room beside others, or ``alone``. Whoever waits for it holds the gate, so nobody else comes in
    meanwhile: a test that is to be alone waits no longer than for those that are running."""
    with ExitStack() as stack:
        at_gate, in_room = (stack.enter_context(path.open("rb")) for path in (gate, room))
        fcntl.flock(at_gate, fcntl.LOCK_EX)
        fcntl.flock(in_room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(at_gate, fcntl.LOCK_UN)
        try:
            yield
        finally:  # said, not left to the closing: a child that was forked meanwhile has copies
            fcntl.flock(in_room, fcntl.LOCK_UN)
