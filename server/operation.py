"""Something that waits for the scheduler's worker, and what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rondel.server.account import CURRENT, Account


@dataclass(slots=True, eq=False)
class Operation:
    """``work`` takes the argument; if it is ``joint``, a list of arguments of such operations."""

    work: Callable[[Any], Any]
    argument: Any
    joint: bool
    future: asyncio.Future[Any]
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
