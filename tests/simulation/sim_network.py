"""Messages on their way: late, in another order, twice, or never."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from sim_plan import Plan


class Network:
    """Brings things from one side to the other, or not."""

    def __init__(self, loop: asyncio.AbstractEventLoop, plan: Plan) -> None:
        self._loop = loop
        self._plan = plan
        self._rng = random.Random(f"network {plan.seed}")
        self.healed = False
        """From now on everything arrives, once."""

    def later(self, not_before: float, arrive: Callable[[], None]) -> float:
        """Has ``arrive`` called once, and after a time; when."""
        delay = self._rng.expovariate(1 / self._plan.delay)
        # Not at the same time: timers that are due together have no order.
        when = max(not_before + 1e-6, self._loop.time() + delay)
        self._loop.call_at(when, arrive)
        return when

    def breaks(self) -> bool:
        """Whether a connection breaks at this message."""
        return not self.healed and self._rng.random() < self._plan.drops / 4

    def send(self, arrive: Callable[[], None]) -> None:
        """Has ``arrive`` called, when and as often as the network likes."""
        rng, plan = self._rng, self._plan
        if not self.healed and rng.random() < plan.drops:
            return
        copies = 2 if not self.healed and rng.random() < plan.doubles else 1
        for _ in range(copies):
            slow = 20.0 if not self.healed and rng.random() < 0.02 else 1.0
            self._loop.call_later(slow * rng.expovariate(1 / plan.delay), arrive)
