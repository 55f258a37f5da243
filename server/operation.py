"""Something that waits for the scheduler's worker, and what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


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
