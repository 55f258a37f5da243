"""Histograms of seconds (HdrHistogram): bounded memory, exact to three digits, can be sent and added up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

LONGEST: Final = 3600.0
"""Seconds; what takes longer counts as this."""

PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)
MISSING: Final = (
    "the load generator needs the package hdrhistogram; install it with: pip install 'rondel[load]'"
)


class Histogram:
    """Counts of seconds, kept in whole microseconds. Raises ModuleNotFoundError without hdrhistogram."""

    def __init__(self, parts: Iterable[bytes] = ()) -> None:
        # Here, because it is an optional dependency.
        try:
            from hdrh.histogram import HdrHistogram
        except ImportError:
            raise ModuleNotFoundError(MISSING, name="hdrh") from None
        self._counts = HdrHistogram(1, int(LONGEST * 1e6), 3)
        for part in parts:
            self._counts.decode_and_add(part)

    def record(self, seconds: float) -> None:
        """Count one."""
        self._counts.record_value(round(1e6 * min(max(seconds, 0.0), LONGEST)))

    def encoded(self) -> bytes:
        """All of it, for another process's ``Histogram([...])``."""
        return bytes(self._counts.encode())

    @property
    def count(self) -> int:
        """How many were recorded."""
        return int(self._counts.get_total_count())

    def milliseconds(self, percentile: float) -> float:
        """The value that ``percentile`` per cent do not pass; 0 when nothing was recorded."""
        return float(self._counts.get_value_at_percentile(percentile)) / 1e3

    def summary(self) -> dict[str, float]:
        """Count, and percentiles and largest in milliseconds: ``count``, ``p50`` … ``p99.9``, ``max``."""
        values = {f"p{percentile:g}": self.milliseconds(percentile) for percentile in PERCENTILES}
        return {"count": self.count, **values, "max": self.milliseconds(100.0)}
