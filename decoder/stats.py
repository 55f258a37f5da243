"""A stream's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rondel.decoder.cache.extent import StreamExtent
from rondel.decoder.cache.reservation import Reservation
from rondel.decoder.cache.ring import GroupRings
from rondel.decoder.quality import Quality


@dataclass(frozen=True, slots=True)
class SessionStats:
    """A stream's numbers at one moment. Bytes are bytes of pages: promised to the stream, held by it, and
    those of them that its forks, or what it was forked from, hold as well. Bits per value are those of a full
    page, scales, headers and padding included, averaged over the layers."""

    length: int
    high_water: int
    min_length: int
    generation: int
    layers: int
    pages: int
    bytes_reserved: int
    bytes_resident: int
    bytes_shared: int
    bits_per_value: float
    sealed: bool
    quality: Quality | None = None
    """What int8 storage makes of the keys, if that was asked for and there are keys to tell by."""


def stats_of(
    extent: StreamExtent, rings: Sequence[GroupRings], pages: Reservation, *, closed: bool
) -> SessionStats:
    """The numbers of a stream with these parts."""
    weights = [len(r.group.layers) * r.group.kv_heads * (r.group.key_dim + r.group.value_dim) for r in rings]
    bits = [r.layout.bits_per_value for r in rings]
    return SessionStats(
        length=extent.length,
        high_water=extent.high_water,
        min_length=extent.min_length,
        generation=extent.generation,
        layers=sum(len(r.group.layers) for r in rings),
        pages=0 if closed else sum(r.pages_taken for r in rings),
        bytes_reserved=pages.reserved_bytes,
        bytes_resident=pages.resident_bytes,
        bytes_shared=pages.shared_bytes,
        bits_per_value=sum(b * w for b, w in zip(bits, weights, strict=True)) / sum(weights),
        sealed=extent.sealed,
    )
