"""A batch's queue: operations that were due wait here until the one before them has been answered."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Sequence

from rondel.client.load.player import Player
from rondel.client.load.recorder import UNFINISHED, Recorder
from rondel.client.load.schedule import Closed, Schedule


class Lane:
    """Arrivals of one batch of streams, in order. ``run`` takes them; nothing else does."""

    def __init__(self, player: Player, recorder: Recorder) -> None:
        self.player = player
        self._recorder = recorder
        self._arrivals: deque[tuple[float, float]] = deque()
        self._sent = 0.0
        self._under_way = False
        self._came = asyncio.Event()
        self.idle = asyncio.Event()
        """Set while nothing waits and nothing is under way."""
        self.idle.set()

    @property
    def waiting(self) -> int:
        """Operations that are due and not answered."""
        return len(self._arrivals)

    def arrive(self, intended: float) -> None:
        """An operation was due at ``intended``."""
        self._arrivals.append((intended, time.perf_counter()))
        self.idle.clear()
        self._came.set()

    async def run(self) -> None:
        """Carry out what arrives, until cancelled."""
        free = 0.0
        while True:
            await self._came.wait()
            while self._arrivals:
                intended, noticed = self._arrivals[0]  # stays there until it is answered: see `unfinished`
                self._sent = sent = time.perf_counter()
                self._under_way = True
                # Behind another operation of the batch it waits for the server. The rest is our doing.
                lag = max(noticed - intended, sent - max(intended, free))
                outcome = await self.player.play()
                free = time.perf_counter()
                self._under_way = False
                self._arrivals.popleft()
                self._recorder.record(
                    outcome.kind,
                    outcome.status,
                    intended=intended,
                    sent=sent,
                    done=free,
                    lag=lag,
                    tokens=outcome.tokens,
                    disturbed=outcome.disturbed,
                )
            self._came.clear()
            self.idle.set()

    def unfinished(self) -> None:
        """Record what still waits with the time it has waited: leaving it out would hide the worst."""
        now = time.perf_counter()
        for number, (intended, noticed) in enumerate(self._arrivals):
            under_way = self._under_way and number == 0
            self._recorder.record(
                self.player.kind if under_way else None,
                UNFINISHED,
                intended=intended,
                sent=self._sent if under_way else None,
                done=now,
                lag=noticed - intended,
                tokens=0,
                disturbed=False,
            )
        self._arrivals.clear()


async def feed(schedule: Schedule, lanes: Sequence[Lane], start: float, duration: float) -> None:
    """Let operations arrive from ``start``, for ``duration`` seconds; lanes take turns."""
    if isinstance(schedule, Closed):
        parts = [lanes[part :: schedule.concurrency] for part in range(schedule.concurrency)]
        await asyncio.gather(*(_in_turn(part, start, start + duration) for part in parts if part))
    else:
        await _on_time(schedule.offsets(), lanes, start, duration)


async def _on_time(offsets: Iterator[float], lanes: Sequence[Lane], start: float, duration: float) -> None:
    for number, offset in enumerate(offsets):
        if offset >= duration:
            return
        # Also when it is late already: a backlog must not keep answers from being read.
        await asyncio.sleep(max(0.0, start + offset - time.perf_counter()))
        lanes[number % len(lanes)].arrive(start + offset)


async def _in_turn(lanes: Sequence[Lane], start: float, end: float) -> None:
    await asyncio.sleep(max(0.0, start - time.perf_counter()))
    while True:
        for lane in lanes:
            now = time.perf_counter()
            if now >= end:
                return
            lane.arrive(now)
            await lane.idle.wait()
