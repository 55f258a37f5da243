"""The scheduler's worker without a thread: work is done at the moment it begins, and takes its time then."""

from __future__ import annotations

import asyncio
import random
from typing import Any, ClassVar

from sim_monitor import Monitor
from sim_plan import Plan

from rondel.server.operation import Batch, Operation
from rondel.server.worker import Worker

KINDS = ("step", "append", "attend", "open", "fork", "short", "post")


class Pace:
    """How long the machine takes for what, drawn for one start of the server."""

    def __init__(self, plan: Plan, number: int) -> None:
        self._plan = plan
        self._rng = random.Random(f"machine {plan.seed} {number}")
        self._speeds = {kind: self._rng.uniform(0.3, 3.0) for kind in KINDS}

    def __call__(self, batch: Batch) -> float:
        """Seconds."""
        rng, operations = self._rng, batch.operations
        if not operations:
            return 0.0
        items = sum(1 + operation.load.items for operation in operations)
        spread = self._plan.noise ** rng.uniform(-1, 1)
        stall = rng.uniform(5, 30) if rng.random() < 0.01 else 1.0
        return self._plan.work * 0.5 * items * self._speeds[operations[0].load.kind] * spread * stall


class SimulatedWorker(Worker):
    """Its methods are called on the loop; so is what they have done."""

    pace: ClassVar[Pace]
    monitor: ClassVar[Monitor]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._over = False
        self._dead = False

    def start(self) -> None:
        self._idle = True

    def join(self) -> None:
        pass

    def kill(self) -> None:
        """Nothing more comes of it."""
        self._dead = True
        if self._timer is not None:
            self._timer.cancel()

    def admit(self, operation: Operation) -> list[Operation]:
        self.monitor.arrives()
        removed = super().admit(operation)
        self.monitor.admitted(self._dispatch, operation, removed)
        return removed

    def at_once(self, operation: Operation) -> bool:
        self.monitor.arrives()
        return super().at_once(operation)

    def _carry_out(self, batch: Batch) -> bool:
        """At once; it takes no time."""
        self.monitor.begins(self._dispatch, batch, 0.0)
        over = super()._carry_out(batch)
        self.monitor.worked(batch)
        self.monitor.tally.note("carried out at once")
        return over

    def withdraw(self, operation: Operation) -> None:
        super().withdraw(operation)
        if not self._dead:
            self.monitor.withdrawn(self._dispatch)

    def _ring(self) -> None:
        if self._idle:
            self._idle = False
            self._timer = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        if self._dead:
            return
        batch = self._dispatch.next(self._clock())
        if batch is None:
            self._idle = True
            if self._ending and not self._over:
                self._over = True
                self._ended()
            return
        seconds = type(self).pace(batch)
        self.monitor.begins(self._dispatch, batch, seconds)
        over = self.work(batch)
        self.monitor.worked(batch)
        self._timer = self._loop.call_later(seconds, self._finish, batch, over)

    def _finish(self, batch: Batch, over: bool) -> None:
        self._dispatch.finish(batch, self._clock(), over=over)
        if not over:
            self.monitor.put_back(batch.operations[0])
        self.monitor.finished(self._dispatch)
        self._hand_out([*batch.expired, *batch.cancelled, *(batch.operations if over else ())])
        self._turn()


def simulated(plan: Plan, monitor: Monitor, number: int) -> type[SimulatedWorker]:
    """The worker of one start of the server."""
    return type("Simulated", (SimulatedWorker,), {"pace": Pace(plan, number), "monitor": monitor})
