"""What is done to a server on purpose while it is under load."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Final

from rondel.decoder.errors import InvalidSpec

_WEIGHT: Final = 0.05
"""Of a new time in the typical one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Numbers are for the whole run; their times are spread over it. Raises InvalidSpec.

    Stalls and kills hit processes that only exist for that, victims, not those that measure: a worker that
    stands still says nothing about the server.
    """

    cancels: float = 0.0
    """Share of calls that are cancelled while under way, and made again."""
    reconnects: int = 0
    """Times that each worker breaks its connection."""
    stalls: int = 0
    """Times that a client process stops dead, reading nothing, and goes on later."""
    stall_seconds: float = 1.0
    kills: int = 0
    """Client processes that are killed in the middle of their calls, one after the other."""

    def __post_init__(self) -> None:
        if not 0 <= self.cancels <= 1:
            raise InvalidSpec(f"cancels must be from 0 to 1, got {self.cancels!r}", field="cancels")
        for name in ("reconnects", "stalls", "kills"):
            if not 0 <= getattr(self, name) <= 1000:
                raise InvalidSpec(f"{name} must be from 0 to 1000, got {getattr(self, name)}", field=name)
        if not (math.isfinite(self.stall_seconds) and self.stall_seconds > 0):
            raise InvalidSpec(
                f"stall_seconds must be above 0, got {self.stall_seconds!r}", field="stall_seconds"
            )


def spread(count: int, seconds: float) -> list[float]:
    """``count`` times, evenly apart, from the start and the end as well."""
    return [(number + 1) * seconds / (count + 1) for number in range(count)]


class Cancels:
    """Which calls are cancelled, and after how long: anywhere in twice the time that a call takes."""

    def __init__(self, share: float, seed: str) -> None:
        self.made = 0
        self._share = share
        self._rng = random.Random(seed)
        self._typical = 0.001

    def after(self) -> float | None:
        """Seconds until the next call is cancelled; None = it is not."""
        if self._rng.random() >= self._share:
            return None
        return self._rng.uniform(0, 2 * self._typical)

    def took(self, seconds: float) -> None:
        """A call was answered."""
        self._typical += _WEIGHT * (seconds - self._typical)
