"""One worker thread for everything that touches sessions, and a bounded queue in front of it.

The event loop submits, the worker carries out in order of arrival. So operations on one stream never overlap,
and a repeated call finds the first one finished. Operations of one kind that wait behind each other may be
carried out as one. While the worker computes, the loop stays free.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from rondel.decoder.errors import DeadlineExpired, Draining, Overloaded, ServerInternal
from rondel.server.observer import DEAF, Observer
from rondel.server.operation import Operation, Promise, tell

log = logging.getLogger("rondel.server")

A = TypeVar("A")
T = TypeVar("T")

_SLICE_SECONDS: Final = 0.002
"""Finished operations wait at most about so long for others of their batch."""
_SMOOTHING: Final = 0.05
_MAX_HINT_MS: Final = 10_000
_JOINT_BYTES: Final = 1 << 20
"""Requests beyond so many bytes are not joined: what came first must not wait for all the rest."""


class Scheduler:
    """Carries out operations one at a time on its own thread. Its methods are for the event loop's thread.

    ``queue_bytes`` bounds the requests that wait; ``clock`` is what deadlines are measured by.
    """

    def __init__(
        self,
        name: str,
        *,
        queue_bytes: int,
        clock: Callable[[], float] = time.monotonic,
        observer: Observer = DEAF,
    ) -> None:
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._queue_bytes = queue_bytes
        self._clock = clock
        self._queue: queue.SimpleQueue[Operation | None] = queue.SimpleQueue()
        self._ahead: deque[Operation | None] = deque()
        """What the worker has taken from the queue and not begun: at most one."""
        self._waiting_bytes = 0
        self._waiting = 0
        self._seconds_each = 0.001
        self._accepting = True
        self.ended = asyncio.Event()
        """Set when the worker is gone, wanted or not."""
        self._thread = threading.Thread(target=self._run, name=f"rondel-{name}", daemon=True)
        self._thread.start()

    @property
    def waiting_bytes(self) -> int:
        """Request bytes of operations that are waiting or at work."""
        return self._waiting_bytes

    async def run(
        self, work: Callable[[], T], *, cost: int, deadline: float | None = None, tenant: str = ""
    ) -> T:
        """The result of ``work()``, called on the worker.

        Cancelling the caller before the work began means that it never does; afterwards it is carried out
        whole and only the result is dropped.

        Raises:
            Overloaded: too many bytes are waiting; nothing was done.
            Draining: the scheduler was stopped.
            DeadlineExpired: ``deadline`` (on the clock) passed before the work began.
            Exception: whatever ``work`` raised.
        """
        result: T = await self._settled(_alone, work, False, cost, deadline, tenant)
        return result

    async def run_jointly(
        self,
        work: Callable[[list[A]], list[T]],
        argument: A,
        *,
        cost: int,
        deadline: float | None = None,
        tenant: str = "",
    ) -> T:
        """The result for ``argument`` of ``work([argument, ...])``, one call for all the operations of this
        ``work`` that wait behind each other; it gives as many results, in order.

        Everything else is as with :meth:`run`: the order of arrival is kept, and a cancelled or expired
        operation is left out. An exception of ``work`` is raised for every argument of the call.
        """
        result: T = await self._settled(work, argument, True, cost, deadline, tenant)
        return result

    async def _settled(
        self, work: Any, argument: Any, joint: bool, cost: int, deadline: float | None, tenant: str
    ) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()
        self.submit(future, work, argument, joint=joint, cost=cost, deadline=deadline, tenant=tenant)
        return await future

    def submit(
        self,
        promise: Promise,
        work: Callable[[Any], Any],
        argument: Any,
        *,
        joint: bool,
        cost: int,
        deadline: float | None,
        tenant: str,
    ) -> None:
        """Has a promise settled with what ``work`` gives for the argument, or for it and others if it is
        ``joint``: what :meth:`run_jointly` waits for. A tenant's are begun in the order of these calls."""
        if not self._accepting:
            raise Draining("the server is shutting down")
        # One operation is always let in, so that a message larger than the bound is not impossible; and the
        # next piece of work that has been let in before costs nothing.
        if cost and self._waiting and self._waiting_bytes + cost > self._queue_bytes:
            self._observer.refused("overloaded", tenant)
            raise Overloaded(
                f"{self._waiting_bytes} bytes of requests are waiting, the bound is {self._queue_bytes}",
                retry_after_ms=self._hint_ms(),
            )
        self._submit(Operation(work, argument, joint, promise, cost, deadline, tenant, self._clock()))

    def post(self, work: Callable[[], object]) -> None:
        """Has ``work()`` called on the worker, whatever the queue holds. For freeing things: nobody waits for
        it, and an error is only logged. After the worker has ended it does nothing."""
        future: asyncio.Future[Any] = self._loop.create_future()
        future.add_done_callback(_log_failure)
        self._submit(Operation(_alone, work, False, future, 0, None, "", self._clock()))

    async def stop(self, *, seconds: float = math.inf) -> bool:
        """Refuses new operations and lets the worker finish those it has, for so long; then what waits is
        dropped as Draining. Whether the worker has ended: if not, it is still inside one operation, and its
        thread is left behind."""
        if self._accepting:
            self._accepting = False
            self._queue.put(None)
        try:
            await asyncio.wait_for(self.ended.wait(), None if math.isinf(seconds) else seconds)
        except TimeoutError:
            self._drop()
            self._queue.put(None)
            return False
        self._thread.join()
        return True

    def _submit(self, operation: Operation) -> None:
        self._waiting += 1
        self._waiting_bytes += operation.cost
        self._queue.put(operation)

    def _hint_ms(self) -> int:
        return min(_MAX_HINT_MS, max(1, math.ceil(self._waiting * self._seconds_each * 1000)))

    def _finish(self, batch: list[Operation], seconds: float) -> None:
        """On the loop: hands out the results of a batch."""
        self._seconds_each += _SMOOTHING * (seconds / len(batch) - self._seconds_each)
        for operation in batch:
            self._waiting -= 1
            self._waiting_bytes -= operation.cost
            if operation.account is not None and operation.began is not None:
                operation.account.worked(operation.arrived, operation.began, operation.ended)
            if operation.future.done():
                continue
            if operation.error is not None:
                operation.future.set_exception(operation.error)
            elif operation.settled:
                operation.future.set_result(operation.result)
            else:
                operation.future.set_exception(ServerInternal("the worker ended in the middle of this"))

    def _run(self) -> None:
        try:
            going = True
            while going:
                going = self._run_batch(self._next(self._queue.get))
        finally:
            self._wake(self._end)

    def _run_batch(self, first: Operation | None) -> bool:
        """Carries out an operation and those behind it; completes them with one wake-up of the loop."""
        began = now = self._clock()
        batch: list[Operation] = []
        operation = first
        try:
            while operation is not None:
                together = self._with_more(operation)
                batch += together
                self._carry_out(together, now)
                now = self._clock()
                tell(self._observer, together, now)
                if now - began > _SLICE_SECONDS:
                    break
                try:
                    operation = self._next(self._queue.get_nowait)
                except queue.Empty:
                    break
        finally:
            if batch:
                self._wake(self._finish, batch, now - began)
        return operation is not None

    def _next(self, get: Callable[[], Operation | None]) -> Operation | None:
        with contextlib.suppress(IndexError):
            return self._ahead.popleft()
        return get()

    def _with_more(self, first: Operation) -> list[Operation]:
        """The operation and those next in the queue that can be carried out with it."""
        together, size = [first], first.cost
        while first.joint:
            try:
                operation = self._next(self._queue.get_nowait)
            except queue.Empty:
                break
            size += operation.cost if operation is not None else 0
            if operation is None or operation.work != first.work or size > _JOINT_BYTES:
                self._ahead.append(operation)
                break
            together.append(operation)
        return together

    def _wake(self, work: Callable[..., None], *args: object) -> None:
        # A worker that was left behind can outlive the loop.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work, *args)

    @staticmethod
    def _carry_out(together: list[Operation], now: float) -> None:
        # Both are looked at here, and not again: what has begun is applied whole.
        begun: list[Operation] = []
        for operation in together:
            if operation.future.cancelled():
                continue
            if operation.deadline is not None and now >= operation.deadline:
                operation.error = DeadlineExpired(
                    "the deadline passed before the work began; nothing was done"
                )
            else:
                operation.began = now
                begun.append(operation)
        if not begun:
            return
        first, arguments = begun[0], [operation.argument for operation in begun]
        try:
            results = first.work(arguments) if first.joint else [first.work(first.argument)]
            for operation, operation.result in zip(begun, results, strict=True):
                operation.settled = True
        except Exception as error:  # noqa: BLE001 - it is handed to whoever waits for the operation
            for operation in begun:
                operation.error = error

    def _end(self) -> None:
        """On the loop, after the worker's last batch: nothing may wait for a thread that is gone."""
        self._accepting = False
        self.ended.set()
        self._drop()

    def _drop(self) -> None:
        """Ends what waits in the queue."""
        left: list[Operation] = []
        while True:
            try:
                operation = self._next(self._queue.get_nowait)
            except queue.Empty:
                break
            if operation is not None:
                operation.error = Draining("the server has shut down; nothing was done")
                left.append(operation)
        if left:
            self._finish(left, 0.0)


def _alone(work: Callable[[], T]) -> T:
    return work()


def _log_failure(future: asyncio.Future[Any]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.error("an operation that nobody waited for failed", exc_info=error)
