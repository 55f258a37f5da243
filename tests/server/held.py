"""Clocks that move when told to, and workers that are kept busy."""

import asyncio
import threading
from typing import Any

from rondel.server.app import Server
from rondel.server.scheduler import Scheduler


class Clock:
    """A clock that moves when told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Gate:
    """Work that keeps the worker busy until told otherwise."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.leave = threading.Event()

    def __call__(self) -> str:
        self.entered.set()
        assert self.leave.wait(20)
        return "through"


async def busy(scheduler: Scheduler) -> tuple[Gate, asyncio.Task[str]]:
    gate = Gate()
    task = asyncio.create_task(scheduler.run(gate, cost=0))
    assert await asyncio.to_thread(gate.entered.wait, 20)
    return gate, task


class Held:
    """The server's worker is busy until this is left."""

    def __init__(self, server: Server) -> None:
        self._scheduler = server.scheduler

    async def __aenter__(self) -> "Held":
        self._gate, self._task = await busy(self._scheduler)
        return self

    async def queued(self, call: object, size: int) -> asyncio.Future[Any]:
        """The call, once it waits in the queue behind all before it."""
        before = self._scheduler.waiting_bytes
        future = asyncio.ensure_future(call)  # type: ignore[arg-type]
        while self._scheduler.waiting_bytes < before + size:
            await asyncio.sleep(0.001)
        return future

    async def __aexit__(self, *_: object) -> None:
        self._gate.leave.set()
        await self._task
