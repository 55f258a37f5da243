"""The thread that is inside the decoder: takes what the dispatch says is next, until it is told to end.

One lock lies between it and the event loop's thread, and is held for decisions only, never during work.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

from rondel.server.dispatch import Dispatch
from rondel.server.observer import Observer
from rondel.server.operation import Batch, Operation

_SLICE_SECONDS: Final = 0.002
"""Finished operations wait at most about so long for others to be handed out with."""


class Worker:
    """A thread and the queue in front of it. ``hand_out`` is told of operations that are over, ``ended`` that
    the thread is; both are called on the thread. It works from :meth:`start` on."""

    def __init__(
        self,
        name: str,
        dispatch: Dispatch,
        clock: Callable[[], float],
        observer: Observer,
        hand_out: Callable[[list[Operation]], None],
        ended: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._observer = observer
        self._hand_out = hand_out
        self._ended = ended
        self._lock = threading.Lock()
        self._dispatch = dispatch  # under the lock, and so the next two
        self._idle = False
        self._ending = False
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.at_hand: Batch | None = None
        """What the thread is inside of, or :meth:`at_once`."""
        self.late_starts = 0
        """Operations whose work began after their deadline and did not notice. There are none, unless
        something is wrong here."""
        self._thread = threading.Thread(target=self._run, name=f"rondel-{name}", daemon=True)

    # --- from any thread ------------------------------------------------------------------------------

    def start(self) -> None:
        """Has it begin. Once."""
        self._thread.start()

    def join(self) -> None:
        """Returns when the thread has ended."""
        self._thread.join()

    def admit(self, operation: Operation) -> list[Operation]:
        """:meth:`Dispatch.admit`, now."""
        with self._lock:
            removed = self._dispatch.admit(operation, operation.arrived)
            self._ring()
            return removed

    def add(self, operation: Operation) -> None:
        """:meth:`Dispatch.add`."""
        with self._lock:
            self._dispatch.add(operation)
            self._ring()

    def at_once(self, operation: Operation) -> bool:
        """Carries out a short operation here, if nothing else waits or is at work; False: it did not.

        Only for the thread that all operations come from. An idle worker stays idle until it is rung for,
        which nobody else does: so nobody else is inside the decoder meanwhile.
        """
        if not self._idle:
            return False
        with self._lock:
            batch = self._dispatch.alone(operation, operation.arrived)
        if batch is None:
            return False
        self._carry_out(batch)
        return True

    def withdraw(self, operation: Operation) -> None:
        """:meth:`Dispatch.withdraw`."""
        with self._lock:
            self._dispatch.withdraw(operation)

    def ask(self, question: Callable[[Dispatch], float]) -> float:
        """Something about the queue as it is."""
        with self._lock:
            return question(self._dispatch)

    def end(self) -> None:
        """Has the thread end when nothing waits."""
        with self._lock:
            self._ending = True
            self._ring()

    def take_all(self) -> list[Operation]:
        """:meth:`Dispatch.take_all`."""
        with self._lock:
            return self._dispatch.take_all()

    # --- on the thread --------------------------------------------------------------------------------

    def check(self, number: int) -> None:
        """:meth:`Batch.check` of the work at hand, now."""
        if self.at_hand is not None:
            self.at_hand.check(number, self._clock())

    def tenant(self, number: int) -> str:
        """Whose an argument of the work at hand is."""
        return "" if self.at_hand is None else self.at_hand.operations[number].tenant or ""

    def _run(self) -> None:
        try:
            while (first := self._next(wait=True)) is not None:
                self._some(first)
                del first  # what a batch was asked must not stay for as long as nothing comes
        finally:
            self._ended()

    def _next(self, *, wait: bool) -> Batch | None:
        while True:
            with self._lock:
                batch = self._dispatch.next(self._clock())
                if batch is not None:
                    return batch
                if self._ending or not wait:
                    return None
                self._idle = True
            self._bell.get()

    def _some(self, first: Batch) -> None:
        """Carries out a batch and others, for a while; hands them out together, since each time wakes the
        loop."""
        batch: Batch | None = first
        done: list[Operation] = []
        now, end = first.began, first.began + _SLICE_SECONDS
        try:
            while batch is not None:
                done += (*batch.expired, *batch.cancelled, *batch.operations)
                if not self._carry_out(batch):
                    done.pop()  # one that goes piecewise is alone
                now = self._clock()
                batch = self._next(wait=False) if now <= end else None
        finally:
            if done:
                self._hand_out(done)

    def _carry_out(self, batch: Batch) -> bool:
        """Whether the batch is over."""
        over = True
        try:
            over = self.work(batch)
        finally:
            with self._lock:
                self._dispatch.finish(batch, self._clock(), over=over)
        return over

    def work(self, batch: Batch) -> bool:
        """Does what a batch says, and nothing about its end. Whether it is over."""
        for operation in batch.expired:
            operation.close()
            self._observer.expired(operation.tenant or "")
        for operation in batch.cancelled:
            operation.close()
            self._observer.cancelled(operation.tenant or "")
        if not batch.operations:
            return True
        self.at_hand = batch
        began = self._clock()
        for operation in batch.operations:
            if operation.began is None:
                operation.began = began
                self._observer.waited(began - operation.arrived, operation.tenant or "")
        try:
            over = batch.carry_out()
        finally:
            self.at_hand = None
        self._observer.carried_out(len(batch.operations), self._clock() - began)
        for operation in batch.operations:
            if operation.stopped:
                self._observer.expired(operation.tenant or "")
            elif operation.expired(began):
                self.late_starts += 1
        return over

    def _ring(self) -> None:
        """Under the lock: wakes the thread if it waits."""
        if self._idle:
            self._idle = False
            self._bell.put(None)
