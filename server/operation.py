"""Something that waits for the scheduler's worker, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rondel.server.account import CURRENT, Account
from rondel.server.observer import Observer


class Promise(Protocol):
    """What waits for an operation; a future is one. Settled on the loop, once, unless it is cancelled."""

    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, error: Exception, /) -> None: ...


@dataclass(slots=True, eq=False)
class Operation:
    """``work`` takes the argument; if it is ``joint``, a list of arguments of such operations."""

    work: Callable[[Any], Any]
    argument: Any
    joint: bool
    future: Promise
    cost: int
    deadline: float | None
    tenant: str
    arrived: float
    result: Any = None
    error: Exception | None = None
    settled: bool = False
    began: float | None = None
    """When the worker began it; None = it never did."""
    ended: float = 0.0
    account: Account | None = field(default_factory=CURRENT.get)
    """Of the call that it is for: it is made in the call's task."""


def tell(observer: Observer, together: Sequence[Operation], now: float) -> None:
    """On the worker: what has become of operations that were carried out together and ended now."""
    begun = [operation for operation in together if operation.began is not None]
    for operation in begun:
        operation.ended = now
        observer.waited((operation.began or now) - operation.arrived, operation.tenant)
    if begun:
        observer.carried_out(len(begun), now - (begun[0].began or now))
    for operation in together:
        if operation.began is None:
            left_out = observer.cancelled if operation.error is None else observer.expired
            left_out(operation.tenant)
