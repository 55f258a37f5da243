"""What a tenant may have at most, and the bucket that its steps are taken from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rondel.decoder.errors import QuotaExceeded

_BURST_SECONDS: Final = 1.0
_MAX_HINT_MS: Final = 60_000
CALLS_RETRY_MS: Final = 100
"""When to come again after too many calls at work: nobody knows how long those take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Bounds of one tenant; None = none of its own, only the server's."""

    max_streams: int | None = None
    """Open streams at a time."""
    max_bytes: int | None = None
    """Bytes that its streams and generations reserve together."""
    steps_per_second: float | None = None
    """Tokens stored, or rows attended from, each counted once in every layer, per second. A second's worth
    may be taken at once."""
    max_calls: int | None = None
    """Calls at work at a time; a Decode or a Generate is one for as long as it is open."""


NO_QUOTA: Final = Quota()


class Bucket:
    """Steps that may be taken now. Filled at a rate, up to a second's worth; ``clock`` in seconds.

    A call takes what it needs, or as much as there can ever be: then what it takes beyond that must come in
    again before the next. So no call is too large, and over time no more is taken than the rate.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rate: float | None = None
        self._level = 0.0
        self._filled = clock()

    @property
    def rate(self) -> float | None:
        """Steps per second; None = any number."""
        return self._rate

    @rate.setter
    def rate(self, rate: float | None) -> None:
        if rate == self._rate:
            return
        self._fill()
        # A new rate begins with a full second, but debts of the old one stay.
        self._level = self._level if self._level < 0 else (rate or 0.0) * _BURST_SECONDS
        self._rate = rate

    def take(self, steps: int) -> None:
        """Takes steps, or raises QuotaExceeded and takes none."""
        if self._rate is None:
            return
        self._fill()
        missing = min(steps, self._rate * _BURST_SECONDS) - self._level
        if missing > 0:
            raise QuotaExceeded(
                f"this tenant may not take {steps} steps now, its quota is {self._rate:g} per second",
                quota="steps_per_second",
                limit=math.floor(self._rate),
                retry_after_ms=min(_MAX_HINT_MS, max(1, math.ceil(missing / self._rate * 1000))),
            )
        self._level -= steps

    def owe(self, steps: int) -> None:
        """Takes steps that were carried out already, whatever there is; a negative number gives them back."""
        if self._rate is not None:
            self._fill()
            self._level = min(self._level - steps, self._rate * _BURST_SECONDS)

    def pause(self) -> float:
        """Seconds until what was taken beyond the rate has come in again."""
        if self._rate is None:
            return 0.0
        self._fill()
        return max(0.0, -self._level / self._rate)

    def _fill(self) -> None:
        now = self._clock()
        if self._rate is not None:
            most = self._rate * _BURST_SECONDS
            self._level = min(most, self._level + (now - self._filled) * self._rate)
        self._filled = now
