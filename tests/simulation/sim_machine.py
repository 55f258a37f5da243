"""The server of a simulation: the real service, registry, rules, sessions and file, but for a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from google.protobuf.message import Message
from sim_monitor import Monitor
from sim_plan import Plan
from sim_properties import COURT, hold
from sim_wire import Wire
from sim_worker import SimulatedWorker, simulated

from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import Draining, RondelError
from rondel.server import warm
from rondel.server.attention import AttentionService
from rondel.server.config import ServerConfig
from rondel.server.door import Call
from rondel.server.duplex import Duplex
from rondel.server.projections import ProjectionSets
from rondel.server.scheduler import Scheduler
from rondel.server.streams import StreamRegistry

BUDGET = 4 << 20

Answer = Callable[[Message | RondelError], None]


class Machine:
    """One start of the server, on a file that an earlier one may have left."""

    def __init__(self, plan: Plan, path: Path, monitor: Monitor, number: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._lease = plan.lease
        self._monitor = monitor
        self.arena = Arena(BUDGET, path=path)
        clock = self._loop.time
        self.streams = StreamRegistry(self.arena, max_streams=64, lease_seconds=plan.lease, clock=clock)
        warm.take_back(self.streams, ProjectionSets(()), "tail")
        monitor.begun(self.streams)
        self.scheduler = Scheduler(
            "simulation",
            queue_bytes=plan.queue_bytes,
            queue_seconds=plan.queue_seconds,
            clock=clock,
            observer=monitor.tally,
            worker=simulated(plan, monitor, number),
        )
        config = ServerConfig(decode_window_bytes=plan.window)
        self.service = AttentionService(config, self.streams, self.scheduler, ProjectionSets(()))
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._calls = 0
        self._wires: list[Wire] = []
        self._duplexes: list[Duplex] = []
        self._answered = 0
        self._left = 0
        self.up = True
        self._expiry = self._loop.call_later(plan.lease / 4, self._expire)

    @property
    def calls(self) -> int:
        """Under way."""
        return len(self._tasks)

    @property
    def worker(self) -> SimulatedWorker:
        """The scheduler's."""
        worker = self.scheduler._worker
        if not isinstance(worker, SimulatedWorker):
            raise TypeError("a simulation has a simulated worker")
        return worker

    def receive(
        self, method: str, request: Message, deadline: float | None, tenant: str, answer: Answer
    ) -> Callable[[], None]:
        """A request is here. What is returned is to be called when its caller leaves."""
        self._calls += 1
        now = self._loop.time()
        who = self.streams.tenants.get(tenant)
        call = Call(request.ByteSize(), deadline, now, tenant, who, None)  # type: ignore[arg-type]
        task = self._loop.create_task(self._handle(method, request, call, answer))
        self._follow(task)
        return task.cancel

    def _follow(self, task: asyncio.Task[None]) -> None:
        number = self._calls
        self._tasks[number] = task
        task.add_done_callback(lambda task: self._done(number, task))

    def converse(self, wire: Wire, tenant: str) -> None:
        """A Decode call has begun."""
        self._calls += 1
        self._wires.append(wire)
        call = Call(0, None, self._loop.time(), tenant, self.streams.tenants.get(tenant), wire)
        duplex = Duplex(wire)
        self._duplexes.append(duplex)
        task = self._loop.create_task(self._decode(duplex, wire, call))
        self._follow(task)
        wire.on_cut = task.cancel

    async def _decode(self, duplex: Duplex, wire: Wire, call: Call) -> None:
        try:
            await self.service.decode(duplex, call)
        finally:
            wire.end()
        self._answered += 1

    async def _handle(self, method: str, request: Message, call: Call, answer: Answer) -> None:
        result: Message | RondelError
        try:
            if not self.up:
                raise Draining("the server is shutting down")
            result = await getattr(self.service, method)(request, call)
        except RondelError as error:
            result = error
        self._answered += 1
        answer(result)

    def _done(self, number: int, task: asyncio.Task[None]) -> None:
        del self._tasks[number]
        if task.cancelled():
            self._left += 1
        elif isinstance(error := task.exception(), Exception):
            COURT.bring(error)

    def _expire(self) -> None:
        now = self._loop.time()
        self.scheduler.post(lambda: self._monitor.expires(self.streams, self._lease, now))
        self._expiry = self._loop.call_later(self._lease / 4, self._expire)

    def kill(self) -> None:
        """As kill -9 does."""
        self._monitor.tally.note("killed")
        self.up = False
        self._expiry.cancel()
        self.worker.kill()
        for task in self._tasks.values():
            task.cancel()
        for wire in self._wires:
            wire.cut()
        self._monitor.killed()
        if self.arena.file is not None:
            self.arena.file.close()

    async def stop(self) -> None:
        """As SIGTERM does, with a second for what is at work."""
        self._monitor.tally.note("stopped")
        self.up = False
        self._expiry.cancel()
        for duplex in self._duplexes:
            duplex.drain()
        end = self._loop.time() + 1.0
        while self._tasks and self._loop.time() < end:
            await asyncio.sleep(0.01)
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._monitor.killed()
        self.scheduler.post(self.streams.leave_all)
        await self.scheduler.stop()
        hold(
            "answered",
            self._calls == self._answered + self._left,
            f"{self._calls} calls, {self._answered} answers",
        )
        hold(
            "given-back",
            self.scheduler.waiting_bytes == 0,
            f"{self.scheduler.waiting_bytes} bytes wait for nobody",
        )
        self.arena.close()
