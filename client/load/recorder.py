"""What a worker measures, and how the measures of several are joined."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rondel.client.load.histogram import Histogram
from rondel.client.load.workload import Kind
from rondel.decoder.errors import DeadlineExpired

OK: Final = "OK"
UNFINISHED: Final = "UNFINISHED"
"""Status of what had no answer when the run was over."""

DISTURBED: Final = "disturbed"
"""In place of a kind, for operations that a fault of ours has hit: their times are its doing."""

ALL: Final = "all"
_TIMED: Final = (OK, UNFINISHED, DeadlineExpired.reason)
"""Refusals are quick and would make the times look good. What did not come in time took at least so long."""

_RECENT: Final = 512


@dataclass(frozen=True, slots=True)
class Tallies:
    """The measures of a worker as plain values, histograms encoded."""

    statuses: dict[str, int]
    latency: dict[str, bytes]
    service: dict[str, bytes]
    lag: bytes
    in_time: int
    """Operations that were answered before the time was over."""
    tokens: int
    """What those have stored."""


class Recorder:
    """Times of operations by kind, and how they ended.

    What was due before ``begin`` only warms up; what was answered after ``end`` is no throughput.
    """

    def __init__(self, begin: float, end: float) -> None:
        self.statuses: Counter[str] = Counter()
        self._in_time = 0
        self._tokens = 0
        self._begin = begin
        self._end = end
        self._latency: dict[str, Histogram] = {ALL: Histogram()}
        self._service: dict[str, Histogram] = {ALL: Histogram()}
        self._lag = Histogram()
        self._recent: deque[float] = deque(maxlen=_RECENT)

    def record(
        self,
        kind: Kind | None,
        status: str,
        *,
        intended: float,
        sent: float | None,
        done: float,
        lag: float,
        tokens: int,
        disturbed: bool,
    ) -> None:
        """One operation; times as ``time.perf_counter`` gives them.

        Latency is ``done`` - ``intended``: what whoever wanted it at that time has waited. Service is
        ``done`` - ``sent``. ``lag`` is what this generator alone was late by. What was never sent has
        no ``sent``, and no ``kind`` yet.
        """
        if intended < self._begin:
            return
        self.statuses[status] += 1
        self._lag.record(lag)
        if status == OK and done <= self._end:
            self._in_time += 1
            self._tokens += tokens
        if status not in _TIMED:
            return
        names = [DISTURBED] if disturbed else [ALL, *([] if kind is None else [kind.value])]
        for name in names:
            self._of(self._latency, name).record(done - intended)
            if sent is not None:
                self._of(self._service, name).record(done - sent)
        if not disturbed:
            self._recent.append(done - intended)

    def recent(self) -> tuple[float, float]:
        """p50 and p99 of the latencies since the last call, in milliseconds; 0 when there were none."""
        latest = sorted(self._recent)
        self._recent.clear()
        if not latest:
            return 0.0, 0.0
        return 1e3 * latest[len(latest) // 2], 1e3 * latest[min(len(latest) - 1, len(latest) * 99 // 100)]

    def tallies(self) -> Tallies:
        """All of it, to be sent."""
        return Tallies(
            dict(self.statuses),
            {name: one.encoded() for name, one in self._latency.items()},
            {name: one.encoded() for name, one in self._service.items()},
            self._lag.encoded(),
            self._in_time,
            self._tokens,
        )

    def _of(self, histograms: dict[str, Histogram], name: str) -> Histogram:
        if name not in histograms:
            histograms[name] = Histogram()
        return histograms[name]


class Totals:
    """The measures of all workers together."""

    def __init__(self, parts: Sequence[Tallies]) -> None:
        self.statuses = dict(sum((Counter(part.statuses) for part in parts), Counter[str]()))
        self.in_time = sum(part.in_time for part in parts)
        self.tokens = sum(part.tokens for part in parts)
        self.latency = _joined([part.latency for part in parts])
        self.service = _joined([part.service for part in parts])
        self.lag = Histogram(part.lag for part in parts)


def _joined(parts: Sequence[dict[str, bytes]]) -> dict[str, Histogram]:
    names = dict.fromkeys([ALL, *sorted({name for part in parts for name in part} - {ALL})])
    return {name: Histogram(part[name] for part in parts if name in part) for name in names}
