"""How a client of a simulation asks: again and again, until it has its answer."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message
from sim_properties import hold
from sim_stream import Known

from rondel.decoder.errors import (
    BudgetExceeded,
    DeadlineExpired,
    Draining,
    Overloaded,
    QuotaExceeded,
    RondelError,
    StaleGeneration,
    StreamClosed,
    StreamNotFound,
)

if TYPE_CHECKING:
    from simulate import Simulation

AGAIN = (Overloaded, Draining, DeadlineExpired)
FULL = (BudgetExceeded, QuotaExceeded)
GONE = (StreamClosed, StreamNotFound)


class Lost(Exception):
    """The stream was ended by its lease."""


class Asker:
    """One caller; ``tenant`` is whose."""

    def __init__(self, simulation: Simulation, number: int, tenant: str) -> None:
        self._simulation = simulation
        self._plan = simulation.plan
        self._rng = random.Random(f"client {simulation.plan.seed} {number}")
        self._number = number
        self._tenant = tenant
        self._requests = 0
        self._tokens = number * 1_000_000
        self._streams: list[Known] = []

    async def _ask(self, method: str, request: Message) -> Any:
        """The answer, or an error that asking again would not change."""
        rng, plan = self._rng, self._plan
        for attempt in range(1000):
            timeout = rng.expovariate(1 / plan.patience) + 2 * plan.delay + (0.05 * attempt)
            leave = rng.uniform(0, timeout) if rng.random() < plan.cancels else None
            answer = await self._simulation.call(method, request, self._tenant, timeout, leave)
            if answer is not None and not isinstance(answer, AGAIN):
                if isinstance(answer, StaleGeneration):
                    self._simulation.tally.note("stale")
                return answer
            pause = getattr(answer, "retry_after_ms", 1) / 1000
            await asyncio.sleep(min(pause, 1.0) * rng.uniform(1.0, 1.5) + rng.expovariate(1 / plan.delay))
        hold("answered", False, f"{method} was asked for 1000 times")
        return None

    def _fine(self, reply: Any, stream: Known | None = None) -> Any:
        """An answer. Raises Lost if the stream was ended by its lease, and what it may not be otherwise."""
        if isinstance(reply, GONE) and stream is not None:
            self._gone(stream)
            raise Lost
        if isinstance(reply, RondelError):
            raise reply
        return reply

    def _gone(self, stream: Known) -> None:
        hold(
            "lease", self._is_gone(stream), f"{stream.ref.handle} is not there, and its lease had not run out"
        )

    def _is_gone(self, stream: Known) -> bool:
        return stream.ref.handle in self._simulation.monitor.ended

    def _name(self) -> str:
        self._requests += 1
        return f"{self._number}.{self._requests}"

    def _new(self, count: int) -> list[int]:
        self._tokens += count
        return list(range(self._tokens - count, self._tokens))
