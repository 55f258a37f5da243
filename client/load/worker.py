"""One process of a load generator, from inside: its part of the streams and of the schedule."""

from __future__ import annotations

import asyncio
import gc
import random
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection as Pipe
from typing import Final

from rondel.client.load.check import Checker
from rondel.client.load.connection import Connection
from rondel.client.load.faults import Cancels
from rondel.client.load.job import Done, Failed, Job, Message, Opened, Progress, Ready
from rondel.client.load.lane import Lane, feed
from rondel.client.load.player import Company, Player
from rondel.client.load.recorder import OK, Recorder
from rondel.client.values import ServerInfo
from rondel.decoder.errors import RondelError

PROGRESS_SECONDS: Final = 0.5
LEAVE_SECONDS: Final = 10.0
OPENING: Final = 32
"""Streams that are opened, or closed, at the same time before and after the load."""


def main(job: Job, pipe: Pipe) -> None:
    """Entry point of the process. Told the start time by the pipe; ends early when that is closed."""
    # Ctrl-C at the terminal reaches all processes; the one that started us decides what comes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The thread that checks must hand the interpreter over quickly: each time counts as a delay of ours.
    sys.setswitchinterval(0.0005)
    with suppress(BrokenPipeError, EOFError):
        try:
            # select, not epoll, which rounds every time up to a millisecond.
            with asyncio.Runner(
                loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())
            ) as runner:
                done = runner.run(_work(job, pipe))
        except RondelError as error:
            pipe.send(Failed(error.reason, error.message, error.facts))
        else:
            pipe.send(done)


async def _work(job: Job, pipe: Pipe) -> Done:
    told: asyncio.Queue[float | None] = asyncio.Queue()

    def hear() -> None:
        try:
            told.put_nowait(pipe.recv())
        except (EOFError, OSError):
            told.put_nowait(None)
            asyncio.get_running_loop().remove_reader(pipe.fileno())

    asyncio.get_running_loop().add_reader(pipe.fileno(), hear)
    async with Connection(job.target, timeout=job.timeout, **job.access) as connection:
        work = Work(job, connection, await connection.info(), pipe.send)
        try:
            starting = asyncio.create_task(told.get())
            # Before the streams are open there is only one thing to be told: that it is over.
            starting.add_done_callback(lambda task: work.open_no_more())
            await work.open()
            pipe.send(work.ready())
            if (start := await starting) is None:
                raise EOFError
            await work.load(start, told)
        finally:
            await work.leave()
        return await work.done()


class Work:
    """A job at work: ``open``, ``load``, ``leave``, ``done``, in that order."""

    def __init__(
        self, job: Job, connection: Connection, server: ServerInfo, send: Callable[[Message], None]
    ) -> None:
        # Here, because only this process needs the kernels; the one that started it does without.
        from rondel.client.load.twin import Twins

        self._job = job
        self._connection = connection
        self._server = server
        self._send = send
        twins = Twins(job.workload.spec(), server.tier, server.budget)
        self._exact = twins.exact
        self._checker = Checker(twins.twin)
        self._cancels = Cancels(job.cancels, f"{job.workload.seed}/{job.name}")
        company = Company(
            connection=connection,
            workload=job.workload,
            numbers=job.workload.numbers(),
            checker=self._checker,
            checked=self._checked,
            cancels=self._cancels,
            opened=lambda handle: send(Opened(handle)) if job.victim else None,
        )
        batch = job.workload.batch
        parts = [job.streams[first : first + batch] for first in range(0, len(job.streams), batch)]
        self._players = [Player(part, company) for part in parts]
        self._recorder = Recorder(0.0, 0.0)
        self._lanes: list[Lane] = []
        self._busy = 0.0
        self._open_no_more = False

    def open_no_more(self) -> None:
        """Open the streams that are being opened, and no others. Cancelled, they would be left behind."""
        self._open_no_more = True

    async def open(self) -> None:
        """Open all streams and store their first tokens, before the time counts. Raises what that raises."""
        turns = asyncio.Semaphore(OPENING)
        # One that comes for another comes into the load, and perhaps when there is no room.
        patience = self._job.timeout if self._job.victim else 0.0

        async def open_one(player: Player) -> None:
            async with turns:
                if not self._open_no_more:
                    await player.prepare(patience)

        for error in await asyncio.gather(*map(open_one, self._players), return_exceptions=True):
            if error is not None:
                raise error
        await asyncio.to_thread(self._checker.caught_up)

    def ready(self) -> Ready:
        """What the server is, and whether its answers can be compared to the bit."""
        return Ready(self._server, self._exact)

    async def load(self, start: float, told: asyncio.Queue[float | None]) -> None:
        """Make the load from ``start`` (``time.perf_counter``) on. Ends early when told to, by None."""
        job = self._job
        self._recorder = Recorder(start + job.warmup, start + job.duration)
        self._lanes = [Lane(player, self._recorder) for player in self._players]
        beside = [asyncio.create_task(lane.run()) for lane in self._lanes]
        beside.append(asyncio.create_task(self._report()))
        if job.reconnects:
            beside.append(asyncio.create_task(self._break_connections(start)))
        feeding = asyncio.create_task(self._feed(start))
        stopped = asyncio.create_task(told.get())
        with _no_collection():
            busy, began = time.thread_time(), time.perf_counter()
            await asyncio.wait([feeding, stopped, *beside], return_when=asyncio.FIRST_COMPLETED)
            self._busy = (time.thread_time() - busy) / max(1e-9, time.perf_counter() - began)
        for task in (feeding, stopped, *beside):
            task.cancel()
        ended = await asyncio.gather(feeding, stopped, *beside, return_exceptions=True)
        for lane in self._lanes:
            lane.unfinished()
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def leave(self) -> None:
        """Close the streams, or leave them to their leases where the server does not answer in time."""
        turns = asyncio.Semaphore(OPENING)

        async def leave_one(player: Player) -> None:
            async with turns:
                await player.leave()

        try:
            async with asyncio.timeout(max(self._job.timeout, LEAVE_SECONDS)):
                await asyncio.gather(*map(leave_one, self._players))
        except TimeoutError:
            for player in self._players:
                player.abandon()

    async def done(self) -> Done:
        """All that was measured, when the last answer has been compared."""
        findings = await asyncio.to_thread(self._checker.finish)
        cancelled, reconnected = self._cancels.made, self._connection.breaks
        return Done(self._recorder.tallies(), findings, cancelled, reconnected, self._busy)

    async def _feed(self, start: float) -> None:
        job = self._job
        with suppress(TimeoutError):
            async with asyncio.timeout(start + job.duration + job.drain - time.perf_counter()):
                await feed(job.schedule, self._lanes, start, job.duration)
                for lane in self._lanes:
                    await lane.idle.wait()

    async def _break_connections(self, start: float) -> None:
        for seconds in self._job.reconnects:
            await asyncio.sleep(max(0.0, start + seconds - time.perf_counter()))
            await self._connection.reconnect()
        await asyncio.Event().wait()

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            statuses, (p50, p99) = self._recorder.statuses, self._recorder.recent()
            done = statuses[OK]
            waiting = sum(lane.waiting for lane in self._lanes)
            findings = self._checker.findings()
            self._send(Progress(done, statuses.total() - done, waiting, findings, p50, p99))

    def _checked(self, stream: int, life: int) -> bool:
        # Not the workload's own draw: what a stream does must not depend on whether it is looked at.
        drawn = random.Random(f"check/{self._job.workload.seed}/{stream}/{life}").random()
        return drawn < self._job.check


@contextmanager
def _no_collection() -> Iterator[None]:
    """Within the block the cyclic collector looks at new objects only: a full one stops all sending."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
