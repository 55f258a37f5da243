"""When operations are to be sent. An open loop's times do not depend on answers; a closed loop's do.

Only an open loop tells what users who come of their own accord would see: while a server stalls they keep
coming, and wait. A closed loop sends nothing meanwhile, so its figures hide the stall (coordinated omission).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rondel.decoder.errors import InvalidSpec

MAX_RATE: Final = 1e6
_BLOCK: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """Operation n at ``first`` + n / ``rate`` seconds. Raises InvalidSpec."""

    rate: float
    """Operations per second."""
    first: float = 0.0
    """Seconds from the start to the first one."""

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def offsets(self) -> Iterator[float]:
        """Seconds from the start, ascending, without an end."""
        # Not a running sum: its rounding would add up.
        return (self.first + number / self.rate for number in itertools.count())

    def share(self, index: int, of: int) -> Constant:
        """Every ``of``-th operation; all shares together are this schedule."""
        return Constant(rate=self.rate / of, first=self.first + index / self.rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Operations that know nothing of each other: gaps are exponential, 1 / ``rate`` on average.

    Raises InvalidSpec.
    """

    rate: float
    """Operations per second, on average."""
    seed: int = 0
    part: int = 0

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def offsets(self) -> Iterator[float]:
        """Seconds from the start, ascending, without an end; the same for the same seed."""
        rng = np.random.default_rng([self.seed, self.part])
        last = 0.0
        while True:
            times = last + np.cumsum(rng.exponential(1 / self.rate, _BLOCK))
            last = float(times[-1])
            yield from times.tolist()

    def share(self, index: int, of: int) -> Poisson:
        """One of ``of`` independent processes; merged they are a Poisson process of the whole rate."""
        return replace(self, rate=self.rate / of, part=index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """So many operations under way: each begins when another was answered. Raises InvalidSpec."""

    concurrency: int

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise InvalidSpec(f"concurrency must be 1 or more, got {self.concurrency}", field="concurrency")

    def share(self, index: int, of: int) -> Closed:
        """An even part."""
        return Closed(concurrency=self.concurrency // of + (index < self.concurrency % of))


Schedule = Constant | Poisson | Closed


def _check_rate(rate: float) -> None:
    if not (math.isfinite(rate) and 0 < rate <= MAX_RATE):
        raise InvalidSpec(
            f"rate must be above 0 and at most {MAX_RATE:g} per second, got {rate!r}", field="rate"
        )
