"""Numbers that are read when somebody asks: memory, streams, queues.

A scrape runs on a thread of the admin port. What belongs to the worker is read by the worker, between two
pieces of its work. While it is busy, the numbers of the last time are told, and their age.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rondel.decoder.errors import RondelError
from rondel.server.metrics import Metrics
from rondel.server.scheduler import Scheduler
from rondel.server.streams import StreamRegistry

_PATIENCE: Final = 1.0
"""Seconds that a scrape waits for new numbers."""
_FRESH: Final = 1.0
_KINDS: Final = ("reserved", "resident", "shared")
_COUNTED: Final = ("streams", "calls", *_KINDS)


@dataclass(slots=True)
class Readings:
    """What was read, and when."""

    read: float = -1e9
    arena: dict[str, int] = field(default_factory=dict)
    usages: dict[str, dict[str, int]] = field(default_factory=dict)
    """By tenant's label."""


class Gauges(Collector):
    """Reads a server for a Prometheus registry."""

    def __init__(self, metrics: Metrics, streams: StreamRegistry, workers: Mapping[str, Scheduler]) -> None:
        self._metrics = metrics
        self._streams = streams
        self._workers = workers
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._last = Readings()
        self._reading: concurrent.futures.Future[Readings] | None = None

    def describe(self) -> Iterable[Metric]:
        return list(families(Readings(), {}))

    def collect(self) -> Iterable[Metric]:
        """On any thread but the loop's."""
        with self._lock:
            if time.monotonic() - self._last.read > _FRESH:
                self._renew()
            queues = {name: scheduler.waiting_bytes for name, scheduler in self._workers.items()}
            return list(families(self._last, queues))

    def _renew(self) -> None:
        # A reading that takes longer than a scrape waits is there for the next one.
        with contextlib.suppress(RuntimeError, TimeoutError, RondelError):  # the loop has ended, and so on
            if self._reading is None:
                self._reading = asyncio.run_coroutine_threadsafe(self._read(), self._loop)
            self._last = self._reading.result(_PATIENCE)
        if self._reading is not None and self._reading.done():
            self._reading = None

    async def _read(self) -> Readings:
        return await self._workers["attention"].run(self._look, cost=0)

    def _look(self) -> Readings:
        """On the worker."""
        memory = self._streams.arena.stats()
        readings = Readings(time.monotonic(), {name: getattr(memory, name) for name in ("budget", *_KINDS)})
        readings.usages = {label: dict.fromkeys(_COUNTED, 0) for label in self._metrics.labels()}
        for tenant, usage in self._streams.usages().items():
            counts = readings.usages.setdefault(self._metrics.tenant(tenant), dict.fromkeys(_COUNTED, 0))
            for name in _COUNTED:
                counts[name] += getattr(usage, name)
        return readings


def families(last: Readings, queues: Mapping[str, int]) -> Iterator[Metric]:
    """What is told. ``queues`` has the bytes that wait for each worker."""
    arena = GaugeMetricFamily("rondel_arena_bytes", "Bytes of the arena.", labels=["kind"])
    for kind, value in last.arena.items():
        arena.add_metric([kind], value)
    yield arena
    streams = GaugeMetricFamily("rondel_streams", "Open streams.", labels=["tenant"])
    calls = GaugeMetricFamily("rondel_calls", "Calls at work.", labels=["tenant"])
    held = GaugeMetricFamily(
        "rondel_stream_bytes",
        "Bytes of pages that streams were promised, hold, and hold together with forks.",
        labels=["tenant", "kind"],
    )
    for label, usage in last.usages.items():
        streams.add_metric([label], usage["streams"])
        calls.add_metric([label], usage["calls"])
        for kind in _KINDS:
            held.add_metric([label, kind], usage[kind])
    yield from (streams, calls, held)
    queue = GaugeMetricFamily(
        "rondel_queue_bytes", "Request bytes that wait for a worker or are with it.", labels=["worker"]
    )
    for name, waiting in queues.items():
        queue.add_metric([name], waiting)
    yield queue
    age = GaugeMetricFamily(
        "rondel_gauges_age_seconds",
        "How old the numbers of streams and arena are; large = a busy worker.",
    )
    age.add_metric([], max(0.0, time.monotonic() - last.read))
    yield age
