"""The same steps in this process: how long they take, and how much of that is inside the native calls."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any, Final

from rondel.decoder import kernels
from rondel.decoder.batch import Step, run_steps
from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession
from service.work import spec_of, tokens
from shapes import Shape

_MORE_BYTES: Final = 2 << 20
"""Room of a stream beyond its codes: scales, checksums, whole pages."""


class _Timed:
    """Kernels that know how long they were at work."""

    def __init__(self, tier: kernels.Kernels) -> None:
        self._tier = tier
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        native = getattr(self._tier, name)

        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return native(*arguments)
            finally:
                self.seconds += time.perf_counter() - began

        setattr(self, name, timed)
        return timed


class Local:
    """Streams of one shape in this process."""

    def __init__(self, shape: Shape, streams: int) -> None:
        spec = spec_of(shape)
        self._timed = _Timed(kernels.KERNELS)
        codes = 2 * shape.keys * shape.kv_heads * shape.dim
        self._arena = Arena(budget=streams * (codes * 5 // 4 + _MORE_BYTES))
        _, k, v = tokens(shape, shape.keys, 1)
        self._token = tokens(shape, 1, 2)
        self._sessions = [DecoderSession(spec, self._arena) for _ in range(streams)]
        for session in self._sessions:
            session.append(0, k, v)
            # One object for all, since steps of one tier go as one native call.
            session._kernels = self._timed

    def step(self, count: int) -> tuple[float, float]:
        """Seconds of one batch of the first ``count`` streams: whole, and inside the kernels.

        Raises:
            SystemExit: a step failed.
        """
        self._timed.seconds = 0.0
        began = time.perf_counter()
        results = run_steps([Step(session, 0, *self._token) for session in self._sessions[:count]])
        seconds = time.perf_counter() - began
        for result in results:
            if isinstance(result, Exception):
                raise SystemExit(f"wrong answer: {result}")
        return seconds, self._timed.seconds

    def median_of(self, count: int, calls: int) -> tuple[float, float]:
        """Medians of so many :meth:`step`."""
        return medians([self.step(count) for _ in range(calls)])

    def close(self) -> None:
        """Ends with them."""
        for session in self._sessions:
            session.close()


def medians(samples: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Of each column."""
    whole, inside = zip(*samples, strict=True)
    return median(whole), median(inside)
