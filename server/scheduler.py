"""One worker thread for everything that touches sessions, and a bounded, fair queue in front of it.

The event loop submits, the worker carries out; ``dispatch.py`` decides what is let in and what is next.
Operations of one tenant are carried out in order of arrival, so those on one stream never overlap, and a
repeated call finds the first one finished. Operations of one kind that wait may be carried out as one. While
the worker computes, the loop stays free.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, TypeVar

from rondel.decoder.errors import Draining, Overloaded, RondelError
from rondel.server.dispatch import Dispatch, equal_weights
from rondel.server.observer import DEAF, Observer
from rondel.server.operation import NO_LOAD, Load, Operation, Promise, unwanted
from rondel.server.worker import Worker

log = logging.getLogger("rondel.server")

A = TypeVar("A")
T = TypeVar("T")

_POSTED: Final = Load("post")


class Scheduler:
    """Carries out operations one at a time on its own thread. Its methods are for the event loop's thread,
    but for those that say otherwise.

    ``queue_bytes`` bounds the requests that wait, ``queue_seconds`` the time for which one waits before it
    begins; while the worker is inside one piece of work for longer than ``stuck_seconds`` nothing is let in.
    ``clock`` is what deadlines are measured by, ``weight`` a tenant's share of the time beside others'. While
    ``beside`` has something at work nothing is carried out on the loop's thread: there it would wait for the
    threads that kernels share.
    """

    def __init__(
        self,
        name: str,
        *,
        queue_bytes: int,
        queue_seconds: float = math.inf,
        stuck_seconds: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        observer: Observer = DEAF,
        weight: Callable[[str], float] = equal_weights,
        worker: type[Worker] = Worker,
        beside: Scheduler | None = None,
    ) -> None:
        self._observer = observer
        self._beside = beside
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._accepting = True
        self.ended = asyncio.Event()
        """Set when the worker is gone, wanted or not."""
        dispatch = Dispatch(
            queue_bytes=queue_bytes, queue_seconds=queue_seconds, stuck_seconds=stuck_seconds, weight=weight
        )
        self._worker = worker(
            name,
            dispatch,
            clock,
            observer,
            hand_out=lambda operations: self._wake(_hand_out, operations),
            ended=lambda: self._wake(self._end),
        )
        self._worker.start()

    @property
    def waiting_bytes(self) -> int:
        """Request bytes of operations that are waiting or at work."""
        return int(self._worker.ask(lambda dispatch: dispatch.waiting_bytes))

    @property
    def waiting_seconds(self) -> float:
        """Estimated time of the operations that wait."""
        return self._worker.ask(lambda dispatch: dispatch.waiting_seconds)

    @property
    def busy_seconds(self) -> float:
        """For how long the worker has been inside the piece of work that it is inside of."""
        batch = self._worker.at_hand
        return 0.0 if batch is None else self._clock() - batch.began

    @property
    def late_starts(self) -> int:
        """Operations whose work began after their deadline and did not notice. There are none, unless
        something is wrong."""
        return self._worker.late_starts

    async def run(
        self,
        work: Callable[[], T],
        *,
        cost: int,
        deadline: float | None = None,
        tenant: str = "",
        load: Load = NO_LOAD,
    ) -> T:
        """The result of ``work()``, called on the worker. ``cost`` is the size of the request in bytes, 0 for
        the next part of what was let in before: that is never refused. ``load`` is what it will do.

        Cancelling the caller before the work began means that it never does; afterwards it is carried out
        whole and only the result is dropped. The CancelledError tells which: its cause is DeadlineExpired if
        it never began.

        Raises:
            Overloaded: too much is waiting, or it would come too late; nothing was done.
            Draining: the scheduler was stopped.
            DeadlineExpired: ``deadline`` (on the clock) passed before the work began.
            Exception: whatever ``work`` raised.
        """
        result: T = await self._settled(_alone, work, cost=cost, deadline=deadline, tenant=tenant, load=load)
        return result

    async def run_jointly(
        self,
        work: Callable[[list[A]], list[T]],
        argument: A,
        *,
        cost: int,
        deadline: float | None = None,
        tenant: str = "",
        load: Load = NO_LOAD,
    ) -> T:
        """The result for ``argument`` of ``work([argument, ...])``, one call for the operations of this
        ``work`` that wait and are next; it gives as many results, in order.

        Everything else is as with :meth:`run`: the order of arrival is kept, and a cancelled or expired
        operation is left out. An exception of ``work`` is raised for every argument of the call.
        """
        result: T = await self._settled(
            work, argument, cost=cost, deadline=deadline, tenant=tenant, load=load, joint=True
        )
        return result

    async def run_piecewise(
        self,
        work: Callable[[], Generator[None, None, T]],
        *,
        cost: int,
        deadline: float | None = None,
        tenant: str = "",
        load: Load = NO_LOAD,
    ) -> T:
        """The result of a generator that changes nothing and yields now and then. There other tenants have
        their turns, and it is closed if its deadline has passed or its caller has left. Everything else is as
        with :meth:`run`."""
        result: T = await self._settled(
            _alone, work, cost=cost, deadline=deadline, tenant=tenant, load=load, piecewise=True
        )
        return result

    def post(self, work: Callable[[], object], *, tenant: str | None = None) -> None:
        """Has ``work()`` called on the worker, whatever the queue holds: behind all that came before it, or
        behind all of a tenant's. For freeing things: nobody waits for it, and an error is only logged. After
        the worker has ended it does nothing."""
        future = self._loop.create_future()
        future.add_done_callback(_log_failure)
        self._worker.add(Operation(_alone, work, future, 0, None, tenant, self._clock(), _POSTED))

    def submit(
        self,
        promise: Promise,
        work: Callable[[Any], Any],
        argument: Any,
        *,
        cost: int,
        deadline: float | None,
        tenant: str,
        load: Load = NO_LOAD,
        joint: bool = False,
        piecewise: bool = False,
        at_once: bool = False,
    ) -> Operation:
        """Has a promise settled with what ``work`` gives for the argument, or for it and others if it is
        ``joint``: what :meth:`run_jointly` waits for. A tenant's are begun in the order of these calls. What
        is returned is for :meth:`withdraw`. Raises Overloaded, Draining, DeadlineExpired. ``at_once``: if it
        is short and nothing else is there it is carried out here, which takes less than to wake the worker.
        """
        operation = Operation(work, argument, promise, cost, deadline, tenant, self._clock(), load)
        operation.joint, operation.piecewise = joint, piecewise
        try:
            if not self._accepting:
                raise Draining("the server is shutting down")
            if at_once and self._is_quiet() and self._worker.at_once(operation):
                operation.settle()
                return operation
            removed = self._worker.admit(operation)
        except RondelError as error:
            self._observer.refused(error.reason.lower(), tenant)
            raise
        for each in removed:
            self._observer.refused(Overloaded.reason.lower(), each.tenant or "")
            each.settle()
        return operation

    def withdraw(self, operation: Operation) -> None:
        """Nobody waits for it any more: if it has not begun it never does, and what waits is less by it."""
        self._worker.withdraw(operation)

    async def stop(self, *, seconds: float = math.inf) -> bool:
        """Refuses new operations and lets the worker finish those it has, for so long; then what waits is
        dropped as Draining. Whether the worker has ended: if not, it is still inside one operation, and its
        thread is left behind."""
        self._accepting = False
        self._worker.end()
        try:
            await asyncio.wait_for(self.ended.wait(), None if math.isinf(seconds) else seconds)
        except TimeoutError:
            self._drop()
            return False
        self._worker.join()
        return True

    def check(self, number: int = 0) -> None:
        """For the work, on the worker, right before it changes something or begins a kernel. Raises
        DeadlineExpired if its deadline has passed or its caller has left; of joint work, for the argument of
        that number."""
        self._worker.check(number)

    def tenant(self, number: int = 0) -> str:
        """For the work, on the worker: whose it is; of joint work, the argument of that number."""
        return self._worker.tenant(number)

    async def _settled(
        self,
        work: Callable[[Any], Any],
        argument: object,
        *,
        cost: int,
        deadline: float | None,
        tenant: str,
        load: Load,
        joint: bool = False,
        piecewise: bool = False,
    ) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()
        operation = self.submit(
            future,
            work,
            argument,
            cost=cost,
            deadline=deadline,
            tenant=tenant,
            load=load,
            joint=joint,
            piecewise=piecewise,
        )
        try:
            return await future
        except asyncio.CancelledError as error:
            self._worker.withdraw(operation)
            if operation.unbegun:
                raise error from unwanted()
            raise

    def _is_quiet(self) -> bool:
        return self._beside is None or self._beside._worker.at_hand is None

    def _wake(self, work: Callable[..., None], *args: object) -> None:
        # A worker that was left behind can outlive the loop.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work, *args)

    def _end(self) -> None:
        """On the loop, after the worker's last batch: nothing may wait for a thread that is gone."""
        self._accepting = False
        self.ended.set()
        self._drop()

    def _drop(self) -> None:
        """Ends what waits in the queue."""
        left = self._worker.take_all()
        for operation in left:
            operation.error = Draining("the server has shut down; nothing was done")
        _hand_out(left)


def _alone(work: Callable[[], T]) -> T:
    return work()


def _hand_out(operations: Iterable[Operation]) -> None:
    """On the loop: tells whoever waits."""
    for operation in operations:
        operation.settle()


def _log_failure(future: asyncio.Future[Any]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.error("an operation that nobody waited for failed", exc_info=error)
