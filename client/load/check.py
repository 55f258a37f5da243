"""Answers compared with those of twins, in a thread of its own: beside the load, never in its way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final, Protocol

from rondel.client.load.workload import Act, Move
from rondel.client.values import Array
from rondel.decoder.errors import BudgetExceeded

BACKLOG_BYTES: Final = 64 << 20
"""Answers that may wait to be compared; beyond it streams are given up: their answers count as unchecked."""


class Follower(Protocol):
    """Does what a stream does (twin.py)."""

    def follow(self, move: Move, answer: Array | None) -> str | None:
        """What is wrong with the answer, or None."""

    def close(self) -> None:
        """End it."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What a checker has found."""

    checked: int = 0
    """Answers that were compared."""
    wrong: int = 0
    unchecked: int = 0
    """Answers of streams that were not chosen, or not followed to their end for want of time or memory."""
    first_wrong: str | None = None

    @classmethod
    def joined(cls, parts: Iterable[Findings]) -> Findings:
        """Those of several checkers."""
        parts = list(parts)
        return cls(
            checked=sum(part.checked for part in parts),
            wrong=sum(part.wrong for part in parts),
            unchecked=sum(part.unchecked for part in parts),
            first_wrong=next((part.first_wrong for part in parts if part.first_wrong is not None), None),
        )


class Life:
    """A stream from open to close, as the checker knows it."""

    def __init__(self, name: str, checked: bool) -> None:
        self.name = name
        self.given_up = not checked
        """Whether its answers are not compared any more; known to the thread that loads."""
        self.twin: Follower | None = None
        self.homeless = False
        """Whether there was no memory for a twin; known to the thread that checks."""


class Checker:
    """Follows streams. ``begin``, ``follow`` and ``end`` are called by the one thread that makes the load."""

    def __init__(self, make: Callable[[], Follower], backlog_bytes: int = BACKLOG_BYTES) -> None:
        self._make = make
        self._most = backlog_bytes
        self._queue: SimpleQueue[tuple[Life, Move, Array | None] | threading.Event | None] = SimpleQueue()
        # One thread writes each of these, so none needs a lock.
        self._queued_bytes = self._unchecked = 0
        self._done_bytes = self._checked = self._wrong = self._homeless = 0
        self._first_wrong: str | None = None
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="check", daemon=True)
        self._thread.start()

    def begin(self, name: str, checked: bool) -> Life:
        """A stream was opened; ``checked`` = its answers are to be compared."""
        return Life(name, checked)

    def follow(self, life: Life, move: Move, answer: Array | None) -> None:
        """A call of a stream was answered."""
        if not life.given_up and self._queued_bytes - self._done_bytes > self._most:
            life.given_up = True
            self._queue.put((life, Move(Act.CLOSE), None))
        if life.given_up:
            self._unchecked += answer is not None
            return
        self._queued_bytes += 0 if answer is None else answer.nbytes
        self._queue.put((life, move, answer))

    def end(self, life: Life) -> None:
        """A stream is over, closed or lost."""
        if not life.given_up:
            life.given_up = True
            self._queue.put((life, Move(Act.CLOSE), None))

    def caught_up(self) -> None:
        """Wait until all that came before has been compared."""
        mark = threading.Event()
        self._queue.put(mark)
        mark.wait()

    def findings(self) -> Findings:
        """What has been found up to now."""
        unchecked = self._unchecked + self._homeless
        return Findings(self._checked, self._wrong, unchecked, self._first_wrong)

    def finish(self) -> Findings:
        """Compare all that waits, and end. Raises what the twins could not do, such as MemoryError."""
        self._queue.put(None)
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self.findings()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
            elif self._failure is None:
                try:
                    self._check(*item)
                except Exception as error:  # noqa: BLE001 - for `finish`: a thread has nobody to raise it to
                    self._failure = error

    def _check(self, life: Life, move: Move, answer: Array | None) -> None:
        if move.act is Act.CLOSE:
            if life.twin is not None:
                life.twin.close()
            return
        if life.twin is None and not life.homeless:
            try:
                life.twin = self._make()
            except BudgetExceeded:
                life.homeless = True
        if life.twin is None:
            if answer is not None:
                self._homeless += 1
                self._done_bytes += answer.nbytes
            return
        found = life.twin.follow(move, answer)
        if answer is not None:
            self._checked += 1
            self._done_bytes += answer.nbytes
        if found is not None:
            self._wrong += 1
            if self._first_wrong is None:
                self._first_wrong = f"stream {life.name}, {found}"
