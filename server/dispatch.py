"""The scheduler's decisions: what is let in, what is carried out next, and what that says about the rest.

No threads, no event loop, no clock: the time is told. ``scheduler.py`` is this with a thread;
``tests/simulation`` is this with a time of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from rondel.decoder.errors import Overloaded
from rondel.server.costs import CostModel
from rondel.server.fair_queue import LEAST_SECONDS, FairQueue
from rondel.server.operation import Batch, Load, Operation, late

JOINT_BYTES: Final = 1 << 20
JOINT_SECONDS: Final = 0.010
"""Beyond so many bytes of requests, or so much time, operations are not joined: what came first must not wait
for all the rest, nor what comes next for all of it."""

AT_ONCE_SECONDS: Final = 0.001
"""What takes longer is not carried out where it came in: calls that come meanwhile are to be read."""

_MAX_HINT_MS: Final = 10_000
_MARGIN: Final = 1.25
"""A wait takes that much longer than estimated before a deadline is relied on: an answer has to get back, and
what is not wanted any more when it has been computed is worth nothing."""


def equal_weights(tenant: str) -> float:
    return 1.0


class Dispatch:
    """What waits, and what is at work. Times are those of one clock, in seconds.

    ``queue_bytes`` bounds the requests that wait or are at work, ``queue_seconds`` the time that a call waits
    before it begins; ``stuck_seconds`` is how long the worker may be inside one piece of work before nothing
    more is let in. ``weight`` is a tenant's share beside others'.
    """

    def __init__(
        self,
        *,
        queue_bytes: int,
        queue_seconds: float = math.inf,
        stuck_seconds: float = math.inf,
        weight: Callable[[str], float] = equal_weights,
    ) -> None:
        self._most_bytes = queue_bytes
        self._most_seconds = queue_seconds
        self._stuck_seconds = stuck_seconds
        self._queue = FairQueue(weight)
        self._model = CostModel()
        self._at_work: Batch | None = None

    @property
    def at_work(self) -> Batch | None:
        """What the worker is inside of."""
        return self._at_work

    @property
    def waiting_bytes(self) -> int:
        """Request bytes of operations that are waiting or at work."""
        return self._queue.bytes + (0 if self._at_work is None else self._at_work.cost)

    @property
    def waiting_seconds(self) -> float:
        """Estimated time of all that waits."""
        return self._queue.seconds

    def estimate(self, load: Load) -> float:
        """Seconds that such an operation takes, by what was seen up to now."""
        return self._model.estimate(load)

    def wait(self, tenant: str, now: float) -> float:
        """Estimated seconds until a tenant's next operation would begin."""
        return self._left(now) + self._queue.ahead(tenant)

    def admit(self, operation: Operation, now: float) -> list[Operation]:
        """Lets an operation wait for its turn. Those that had to make room for it, by tenants that have more
        waiting than its own, are returned: they have not begun and have their error.

        Raises:
            DeadlineExpired: its deadline has passed.
            Overloaded: too much is waiting, or it would come too late. Nothing has changed.
        """
        operation.estimate = self._model.estimate(operation.load)
        removed: list[Operation] = []
        if operation.cost and operation.tenant is not None:
            self._check_seconds(operation, operation.tenant, now)
            removed = self._room(operation, operation.tenant, now)
        self._queue.add(operation)
        return removed

    def add(self, operation: Operation) -> None:
        """Lets in what is never refused."""
        operation.estimate = self._model.estimate(operation.load)
        self._queue.add(operation)

    def withdraw(self, operation: Operation) -> None:
        """Nobody waits for an operation any more. If it has not begun it never does, and counts as gone."""
        batch = self._at_work
        if operation.settled or operation.error is not None:
            return
        if batch is None or operation not in batch.operations:
            self._queue.withdraw(operation)

    def alone(self, operation: Operation, now: float) -> Batch | None:
        """Only this operation, ahead of its turn, if nothing waits or is at work and it is short: to be given
        to :meth:`finish`, as that of :meth:`next`. None: it is to go the usual way, and nothing has changed.
        """
        if self._queue or self._at_work is not None or operation.expired(now):
            return None
        operation.estimate = self._model.estimate(operation.load)
        if operation.estimate > AT_ONCE_SECONDS:
            return None
        self._at_work = batch = Batch([operation], now, operation.estimate, operation.cost)
        return batch

    def next(self, now: float) -> Batch | None:
        """What to carry out now, and what is left out; None = nothing waits. Before the next one, the batch
        is to be given to :meth:`finish`."""

        def over(operation: Operation) -> bool:
            return operation.expired(now) or operation.hopeless(now) or operation.future.cancelled()

        together, left = self._queue.take(over, _Room())
        if not together and not left:
            return None
        batch = Batch(
            together, now, sum(each.estimate for each in together), sum(each.cost for each in together)
        )
        for operation in left:
            if operation.withdrawn or operation.future.cancelled():
                operation.withdrawn = True  # the caller may be about to say so
                batch.cancelled.append(operation)
            else:
                operation.error = late()
                batch.expired.append(operation)
        self._at_work = batch
        return batch

    def finish(self, batch: Batch, now: float, *, over: bool = True) -> None:
        """A batch was carried out, or one piece of it: then it goes on when its turn comes again."""
        self._at_work = None
        operations, seconds = batch.operations, now - batch.began
        if operations:
            expected = batch.estimate + LEAST_SECONDS * len(operations)
            for operation in operations:
                # If nothing waits it would be forgotten at once.
                if operation.tenant is not None and (self._queue or not over):
                    share = seconds * (operation.estimate + LEAST_SECONDS) / expected
                    charged = max(operation.estimate, LEAST_SECONDS)
                    self._queue.charge(operation.tenant, max(share, LEAST_SECONDS) - charged)
                operation.spent += seconds
            if over:
                if operations[0].error is None:  # what failed was quick, and says nothing about the others
                    self._model.observe([each.load for each in operations], operations[0].spent)
            else:
                (operation,) = operations
                operation.estimate = max(0.0, operation.estimate - seconds)
                self._queue.put_back(operation)
        if not self._queue:
            self._queue.forget()

    def take_all(self) -> list[Operation]:
        """Everything that has not begun, or is between two of its pieces; it is not waiting any more."""
        return self._queue.take_all()

    def _left(self, now: float) -> float:
        batch = self._at_work
        return 0.0 if batch is None else max(0.0, batch.began + batch.estimate - now)

    def _check_seconds(self, operation: Operation, tenant: str, now: float) -> None:
        batch, left = self._at_work, self._left(now)
        remaining = math.inf if operation.deadline is None else operation.deadline - now
        if remaining <= 0:
            raise late()
        if batch is not None and now - batch.began > self._stuck_seconds:
            raise Overloaded(
                f"the worker has been inside one operation for {now - batch.began:.0f} s",
                retry_after_ms=_hint(now - batch.began),
            )
        # The whole queue first: mostly even that is short enough, and it costs nothing to know.
        wait = left + self._queue.seconds
        if wait <= self._most_seconds and _in_time(wait, operation.estimate, remaining):
            return
        wait = left + self._queue.ahead(tenant)
        if wait > self._most_seconds:
            raise Overloaded(
                f"the call would wait for about {wait:.3g} s, the bound is {self._most_seconds:g} s",
                retry_after_ms=_hint(wait),
            )
        if not _in_time(wait, operation.estimate, remaining):
            raise Overloaded(
                f"the call would wait for about {wait:.3g} s and take {operation.estimate:.3g} s, its "
                f"deadline is in {remaining:.3g} s",
                retry_after_ms=_hint(wait),
            )

    def _room(self, operation: Operation, tenant: str, now: float) -> list[Operation]:
        # One operation is always let in, so that a message larger than the bound is not impossible.
        over = self.waiting_bytes + operation.cost - self._most_bytes
        if over <= 0 or not (self._queue.waiting or self._at_work):
            return []
        removed = self._newest_of_heaviest(operation, tenant, over)
        error = Overloaded(
            f"{self.waiting_bytes} bytes of requests are waiting, the bound is {self._most_bytes}",
            retry_after_ms=_hint(self.wait(tenant, now)),
        )
        if not removed:
            raise error
        for each in removed:
            each.error = error
            self._queue.withdraw(each)
        return removed

    def _newest_of_heaviest(self, operation: Operation, tenant: str, over: int) -> list[Operation]:
        """The newest operations of the tenant with most bytes waiting that make room for one of a tenant that
        has less, even then; none if that cannot be."""
        heaviest = max(self._queue.lines(), key=lambda line: line.bytes / line.weight, default=None)
        mine = self._queue.line(tenant)
        if heaviest is None or heaviest is mine:
            return []
        newest: list[Operation] = []
        freed = 0
        for each in reversed(heaviest.waiting):
            if freed >= over:
                break
            if each.cost and not each.withdrawn and not each.spent:
                newest.append(each)
                freed += each.cost
        theirs, ours = heaviest.bytes - freed, (0 if mine is None else mine.bytes) + operation.cost
        fair = freed >= over and theirs / heaviest.weight >= ours / self._queue.weight(tenant)
        return newest if fair else []


class _Room:
    """What joins a batch, and whether it has room for more."""

    def __init__(self) -> None:
        self._bytes = 0
        self._seconds = 0.0

    def __call__(self, together: list[Operation], other: Operation) -> bool | None:
        first = together[0]
        if not other.joint or other.work != first.work:
            return False
        if len(together) == 1:
            self._bytes, self._seconds = first.cost, first.estimate
        self._bytes += other.cost
        self._seconds += other.estimate
        return True if self._bytes <= JOINT_BYTES and self._seconds <= JOINT_SECONDS else None


def _in_time(wait: float, estimate: float, remaining: float) -> bool:
    # Half of the time is always enough for the work itself: an estimate that is wrong must not keep out for
    # ever what would correct it.
    return wait * _MARGIN + min(estimate, remaining / 2) <= remaining


def _hint(wait: float) -> int:
    """Milliseconds until half of what waits has been done: whoever is sent away and comes back should find
    the queue neither empty nor as full."""
    return max(1, min(_MAX_HINT_MS, math.ceil(wait * 500)))
