"""A whole run: starts the processes, does what is to be done to them, collects what they have measured."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from rondel.client.load.check import Findings
from rondel.client.load.connection import Connection
from rondel.client.load.crew import Member, hear_all
from rondel.client.load.faults import spread
from rondel.client.load.histogram import Histogram
from rondel.client.load.job import Progress
from rondel.client.load.plan import Plan
from rondel.client.load.result import Inflicted, LoadResult
from rondel.decoder.errors import ServerInternal

READY_SECONDS: Final = 120.0
LEAD_SECONDS: Final = 0.2
"""From the last process being ready to the start of the load."""

TURN_SECONDS: Final = 0.25
LATE_SECONDS: Final = 60.0
"""For comparing what is left when the load is over, and closing the streams."""


@dataclass(frozen=True, slots=True)
class View:
    """A run in progress, all processes together."""

    elapsed: float
    """Seconds; below 0 while streams are opened."""
    progress: Progress
    """Sums, and the largest of the percentiles."""


def run_load(plan: Plan, show: Callable[[View], None] = lambda view: None) -> LoadResult:
    """Carry a plan out. ``show`` is told how it goes, some times per second.

    Raises ModuleNotFoundError without hdrhistogram, and what opening the streams raises.
    """
    Histogram()
    run = _Run(plan, show)
    try:
        run.begin()
        run.last()
        return run.result()
    finally:
        run.end()


class _Run:
    def __init__(self, plan: Plan, show: Callable[[View], None]) -> None:
        self._plan = plan
        self._show = show
        self._workers: list[Member] = []
        self._victims: list[Member] = []
        self._to_stop: Member | None = None
        self._to_kill: Member | None = None
        self._inflicted = Inflicted()
        self._start = 0.0

    def begin(self) -> None:
        """Start all processes and wait until their streams are open."""
        faults = self._plan.faults
        for job in self._plan.jobs():
            self._workers.append(Member(job))
        self._to_stop = self._victim() if faults.stalls else None
        self._to_kill = self._victim() if faults.kills else None
        deadline = time.perf_counter() + READY_SECONDS
        while missing := [member for member in self._all if member.ready is None]:
            hear_all(self._all, deadline)
            for member in missing:
                if member.gone or time.perf_counter() >= deadline:
                    raise ServerInternal(f"{member.job.name} of the load generator did not begin")
            self._show(View(-1.0, self._progress()))
        self._start = time.perf_counter() + LEAD_SECONDS
        for member in self._all:
            member.start(self._start)

    def last(self) -> None:
        """Listen until all have measured, and inflict the faults in time."""
        deadline = self._start + self._plan.duration + self._plan.drain + LATE_SECONDS
        planned = self._faults()
        due = next(planned, None)
        while any(member.done is None and not member.gone for member in self._workers):
            now = time.perf_counter()
            if now >= deadline:
                return
            if due is not None and now >= due[0]:
                due[1]()
                due = next(planned, None)
                continue
            turn = now + TURN_SECONDS
            self._hear(turn if due is None else min(turn, due[0]))
        # Those that were not killed tell what they have found.
        left = [member for member in self._victims if member.started]
        for member in left:
            member.finish()
        while time.perf_counter() < deadline and any(m.done is None and not m.gone for m in left):
            self._hear(deadline)

    def result(self) -> LoadResult:
        """What came of it. Closes the streams that killed processes have left."""
        killed = [member for member in self._victims if member.done is None]
        handles = [handle for member in killed for handle in member.handles]
        self._inflicted.left_open = asyncio.run(_close(self._plan, handles))
        ready = next(member.ready for member in self._workers if member.ready is not None)
        done = [member.done for member in self._workers if member.done is not None]
        lost = [member.job.name for member in self._workers if member.done is None]
        found = [member.findings for member in self._victims]
        return LoadResult.of(self._plan, ready, done, lost, self._inflicted, found)

    def end(self) -> None:
        """End all processes, each closing its streams. Also in the middle of a run."""
        for member in self._all:
            member.let_go()
        for member in self._all:
            member.close()

    @property
    def _all(self) -> list[Member]:
        return self._workers + self._victims

    def _victim(self) -> Member:
        self._victims.append(Member(self._plan.victim(len(self._victims))))
        return self._victims[-1]

    def _hear(self, until: float) -> None:
        hear_all(self._all, until)
        for member in self._victims:  # one that has come for another starts when its streams are open
            if member.ready is not None and not member.started:
                member.start(time.perf_counter())
        self._show(View(time.perf_counter() - self._start, self._progress()))

    def _faults(self) -> Iterator[tuple[float, Callable[[], None]]]:
        """What is done to the victims, and when."""
        faults, seconds = self._plan.faults, self._plan.duration
        planned: list[tuple[float, Callable[[], None]]] = [
            (self._start + when, partial(self._kill, number + 1 < faults.kills))
            for number, when in enumerate(spread(faults.kills, seconds))
        ]
        if (member := self._to_stop) is not None:
            for when in spread(faults.stalls, seconds):
                planned.append((self._start + when, partial(self._stop, member)))
                planned.append((self._start + when + faults.stall_seconds, member.go_on))
        return iter(sorted(planned, key=lambda fault: fault[0]))

    def _kill(self, another: bool) -> None:
        """Kill the process that is there for it; ``another`` takes its place."""
        if self._to_kill is not None:
            self._to_kill.kill()
            self._inflicted.kills += 1
        self._to_kill = self._victim() if another else None

    def _stop(self, member: Member) -> None:
        member.stop()
        self._inflicted.stalls += 1

    def _progress(self) -> Progress:
        parts = [member.progress for member in self._workers]
        return Progress(
            done=sum(part.done for part in parts),
            failed=sum(part.failed for part in parts),
            waiting=sum(part.waiting for part in parts),
            findings=Findings.joined(member.findings for member in self._all),
            p50=max(part.p50 for part in parts),
            p99=max(part.p99 for part in parts),
        )


async def _close(plan: Plan, handles: Sequence[str]) -> int:
    if not handles:
        return 0
    async with Connection(plan.target, timeout=plan.timeout, **plan.access) as connection:
        return sum([await connection.close_handle(handle) for handle in handles])
