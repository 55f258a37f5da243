"""Something that waits for the scheduler's worker, what it will cost, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from rondel.decoder.errors import DeadlineExpired, ServerInternal
from rondel.server.account import CURRENT, Account


class Load(NamedTuple):
    """What an operation will do, as far as it can be told before it begins: what its time is estimated by."""

    kind: str = ""
    """What is alike in cost per item, byte and product."""
    items: int = 0
    """Parts that cost something each, however small: items of a step, layers of an append."""
    bytes: int = 0
    """Bytes of the caches that are read or written."""
    products: int = 0
    """Multiplications of the attention."""


NO_LOAD = Load()


class Promise(Protocol):
    """What waits for an operation; a future is one. Settled on the loop, once, unless it is cancelled."""

    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, error: Exception, /) -> None: ...


class AtHand(Protocol):
    """What the work at hand may ask about itself; the scheduler knows."""

    def check(self, number: int = 0) -> None:
        """Right before something changes or a kernel begins: raises DeadlineExpired if nobody waits for the
        answer; of joint work, to the argument of that number."""


@dataclass(slots=True, eq=False)
class Operation:
    """``work`` takes the argument; if it is ``joint``, a list of arguments of such operations; if it goes
    ``piecewise`` it is a generator that stops where others may have their turn."""

    work: Callable[[Any], Any]
    argument: Any
    future: Promise
    cost: int
    """Bytes of the request; 0 = it is the next part of what was let in before, and is always let in."""
    deadline: float | None
    tenant: str | None
    """Whose it is. None = nobody's: it begins when all that arrived before it is over."""
    arrived: float
    load: Load = NO_LOAD
    joint: bool = False
    piecewise: bool = False
    number: int = 0
    """Its place in the order of arrival."""
    estimate: float = 0.0
    """Seconds that are left of it, by the model."""
    spent: float = 0.0
    """Seconds that pieces of it have taken."""
    withdrawn: bool = False
    """It is in the queue only until its turn comes, and counts as gone."""
    stopped: bool = False
    """The work was told that nobody waits for it."""
    pieces: Generator[None, None, Any] | None = None
    began: float | None = None
    """When the worker began it, noted before it does; None = it never did."""
    account: Account | None = field(default_factory=CURRENT.get)
    """Of the call that it is for: it is made in the call's task."""
    result: Any = None
    error: Exception | None = None
    settled: bool = False

    @property
    def unbegun(self) -> bool:
        """Whether it is over, and never began. From any thread."""
        # In this order: began is noted before anything comes of it.
        return (self.withdrawn or self.settled or self.error is not None) and self.began is None

    def expired(self, now: float) -> bool:
        """Whether whoever waits has been given an answer by the clock."""
        return self.deadline is not None and now >= self.deadline

    def hopeless(self, now: float) -> bool:
        """Whether it would be over too late if it began now: by the estimate, of which no more counts than
        half of the time that there was. So a wrong one never keeps out what begins at once, and is corrected.
        """
        if self.deadline is None:
            return False
        return now + min(self.estimate, (self.deadline - self.arrived) / 2) > self.deadline

    def settle(self) -> None:
        """On the loop: tells whoever waits what became of it."""
        if self.account is not None and self.began is not None:
            self.account.worked(self.arrived, self.began, self.began + self.spent)
        # An error's traceback leads back here, and so to all that the request had.
        error, result, whole = self.error, self.result, self.settled
        self.error = self.result = None
        self.settled = True  # nor is it withdrawn any more by a caller who leaves before it hears of this
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        elif whole:
            self.future.set_result(result)
        else:
            self.future.set_exception(ServerInternal("the worker ended in the middle of this"))

    def close(self) -> None:
        """There will be no other piece of it."""
        if self.pieces is not None:
            self.pieces.close()


@dataclass(slots=True, eq=False)
class Batch:
    """Operations that are carried out in one call, and those that were found in their way and are not."""

    operations: list[Operation]
    began: float
    estimate: float = 0.0
    """Seconds, by the model."""
    cost: int = 0
    """Bytes of the requests."""
    expired: list[Operation] = field(default_factory=list)
    cancelled: list[Operation] = field(default_factory=list)

    def carry_out(self) -> bool:
        """Calls the work; whether it is over. False: it has stopped between two of its pieces.

        Raises only what is no Exception; the operations are then neither settled nor have an error.
        """
        first = self.operations[0]
        try:
            if first.piecewise:
                return _piece(first)
            if first.joint:
                results = first.work([operation.argument for operation in self.operations])
            else:
                results = [first.work(first.argument)]
            for operation, result in zip(self.operations, results, strict=True):
                operation.result, operation.settled = result, True
        except Exception as error:  # noqa: BLE001 - it is handed to whoever waits for the operation
            for operation in self.operations:
                operation.error = error
        return True

    def check(self, number: int, now: float) -> None:
        """For the work, right before it changes something or begins a kernel, about the argument of that
        number. Raises DeadlineExpired if the answer would be for nobody."""
        operation = self.operations[number]
        if operation.expired(now):
            operation.stopped = True
            raise late()
        if operation.future.cancelled():
            operation.stopped = True
            raise unwanted()


def late() -> DeadlineExpired:
    """The error of an operation whose time has passed, or as good as that."""
    return DeadlineExpired("the deadline passed before the work could be done; nothing was done")


def unwanted() -> DeadlineExpired:
    """The error of an operation that nobody waits for."""
    return DeadlineExpired("the caller has left; nothing was done")


def _piece(operation: Operation) -> bool:
    if operation.pieces is None:
        operation.pieces = operation.work(operation.argument)
    try:
        next(operation.pieces)
    except StopIteration as end:
        operation.result, operation.settled = end.value, True
        return True
    return False
