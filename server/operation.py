"""Something that waits for the scheduler's worker, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from rondel.server.account import CURRENT, Account


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
