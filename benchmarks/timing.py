"""Interleaved timing: A B C A B C …, so that what else the machine does falls on all alike.

In every round each contestant first runs untimed for :data:`WARM_SECONDS`, so that all are measured in the
same state: after runs of their own, with their data as warm as it gets. (One run is not enough: a last-level
cache takes several passes over the same data before it keeps them.) A sample is the median of as many calls
as fill :data:`SAMPLE_SECONDS`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean, median
from typing import Final

WARM_SECONDS: Final = 0.04
SAMPLE_SECONDS: Final = 0.005


@dataclass(slots=True)
class Timing:
    """Samples of one contestant, seconds per call, one per round."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def us(self) -> float:
        """Median wall time in microseconds."""
        return 1e6 * median(self.wall)

    @property
    def cpu_us(self) -> float:
        """Median processor time of the whole process in microseconds: user and system, all threads."""
        return 1e6 * median(self.cpu)

    @property
    def spread(self) -> float:
        """Largest sample over smallest: how quiet the machine was."""
        return max(self.wall) / min(self.wall)


Measure = Callable[[Timing], Sequence[float]]
"""Which time is meant: :func:`wall`, or :func:`cpu` where others have the processor half of the time."""


def wall(timing: Timing) -> Sequence[float]:
    """Seconds that passed, one per round."""
    return timing.wall


def cpu(timing: Timing) -> Sequence[float]:
    """Seconds that a processor worked for us, one per round."""
    return timing.cpu


def interleave(
    calls: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    before: Callable[[str], object] = lambda name: None,
    warm_seconds: float = WARM_SECONDS,
    sample_seconds: float = SAMPLE_SECONDS,
) -> dict[str, Timing]:
    """Time every call in each of ``rounds`` rounds; ``before`` is told whose turn it is.

    Raises:
        ValueError: no rounds.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    timings = {name: Timing() for name in calls}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, call in calls.items():
                before(name)
                _run(call, warm_seconds)
                used, seconds = time.process_time(), _run(call, sample_seconds)
                timings[name].cpu.append((time.process_time() - used) / len(seconds))
                timings[name].wall.append(median(seconds))
    finally:
        if collecting:
            gc.enable()
    return timings


def _run(call: Callable[[], object], at_least: float) -> list[float]:
    """Seconds of each call; as many as it takes, one or more."""
    seconds: list[float] = []
    start = end = time.perf_counter()
    while not seconds or end - start < at_least:
        begin = end
        call()
        end = time.perf_counter()
        seconds.append(end - begin)
    return seconds


def ratio(slower: Timing, faster: Timing, by: Measure = wall) -> float:
    """How many times faster: the median of the rounds' ratios.

    Of medians was what it was: where somebody else has half of the core for seconds at a time, one side's
    median then comes from such seconds and the other's does not.
    """
    return median(mine / yours for mine, yours in zip(by(slower), by(faster), strict=True))


def worst(ratios: Iterable[float]) -> float | None:
    """The smallest; None of none."""
    return min(ratios, default=None)


def geomean(ratios: Iterable[float]) -> float | None:
    """The geometric mean; None of none."""
    found = list(ratios)
    return geometric_mean(found) if found else None
