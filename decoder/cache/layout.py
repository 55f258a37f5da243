"""The stored form of a layer's ring: sizes of pages and of the ring, and where everything is inside.

The byte order of a page is described in ``kernels/geometry.pxi``, which reads it; this module computes the
sizes. The format is the same on every processor, and versioned: :data:`FORMAT_VERSION` stands in each page
header. Changing anything here or there means a new version.

Page header (32 bytes, last in the page, little-endian): magic uint32 · version uint16 · storage uint8 ·
flags uint8 · position of the token in slot 0 int64 · crc32c of the header uint32 · 12 bytes reserved.
The checksums are CRC-32C (``kernels/checksum.pxi``). Flag 1: key means and exponents are in
force (``kernels/centre.pxi``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.spec import PAGE_SLOTS, STORAGE_TYPES, LayerGroup

FORMAT_VERSION: Final = 1
HEADER_BYTES: Final = 32
ALIGNMENT: Final = 64
_TILE: Final = 16
_UNBOUNDED: Final = 1 << 60


def round_up(value: int, unit: int) -> int:
    """The smallest multiple of ``unit`` that is not below ``value``."""
    return -(-value // unit) * unit


@dataclass(frozen=True, slots=True)
class PageLayout:
    """One page of ``slots`` token slots (a multiple of 16) of one layer."""

    storage: str
    slots: int
    kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def key_pad(self) -> int:
        """Kp: key_dim with padding, a multiple of 8."""
        return round_up(self.key_dim, 8)

    @property
    def value_pad(self) -> int:
        """Vp: value_dim with padding, a multiple of 16."""
        return round_up(self.value_dim, _TILE)

    @property
    def run_bytes(self) -> int:
        """Bytes of one kv head: codes, scales, and for int8 the key mean and exponents."""
        values = self.slots * (self.key_pad + self.value_pad)
        if self.storage == "float32":
            return round_up(4 * values, ALIGNMENT)
        return round_up(values + 4 * self.slots + 3 * self.key_pad, ALIGNMENT)

    @property
    def tail_offset(self) -> int:
        """Offset of the checksums; the header follows them."""
        return self.kv_heads * self.run_bytes

    @property
    def page_bytes(self) -> int:
        """Size of the page."""
        return round_up(self.tail_offset + 4 * self.slots + HEADER_BYTES, ALIGNMENT)


@dataclass(frozen=True, slots=True)
class RingLayout:
    """Every size of one layer's ring. ``slot(p) = (p - S) mod capacity`` for positions p >= S."""

    group: LayerGroup
    capacity: int
    page: PageLayout
    sink_page: PageLayout | None

    @classmethod
    def of(cls, group: LayerGroup, length_limit: int) -> RingLayout:
        """The ring of one layer of a group whose stream holds at most ``length_limit`` tokens: no larger than
        those tokens need."""
        whole = round_up(length_limit, PAGE_SLOTS)
        capacity = whole if group.capacity is None else min(group.capacity, whole)
        shape = (group.kv_heads, group.key_dim, group.value_dim)
        sinks = round_up(group.sinks, _TILE)
        return cls(
            group=group,
            capacity=capacity,
            page=PageLayout(group.storage, PAGE_SLOTS, *shape),
            sink_page=PageLayout(group.storage, sinks, *shape) if sinks else None,
        )

    @property
    def ring_pages(self) -> int:
        """Pages of the ring, without the sink page."""
        return self.capacity // PAGE_SLOTS

    @property
    def demand(self) -> Counter[int]:
        """Pages that all layers of the group may ever need, by page size in bytes."""
        layers = len(self.group.layers)
        demand = Counter({self.page.page_bytes: layers * self.ring_pages})
        if self.sink_page:
            demand[self.sink_page.page_bytes] += layers
        return demand

    @property
    def bits_per_value(self) -> float:
        """Stored bits per key or value element of a full ring page, everything included."""
        values = PAGE_SLOTS * self.page.kv_heads * (self.page.key_dim + self.page.value_dim)
        return 8 * self.page.page_bytes / values

    def oldest_whole(self, high_water: int) -> int:
        """First ring position (>= S) that no page rewrite has touched, once ``high_water`` was claimed."""
        laps = round_up(max(0, high_water - self.group.sinks), PAGE_SLOTS) - self.capacity
        return self.group.sinks + max(0, laps)

    def wraps_at(self, length: int) -> bool:
        """Whether a stream of this length has overwritten anything."""
        return length - self.group.sinks > self.capacity

    def rewritten(self, claimed: int, end: int) -> list[int]:
        """The ring's pages that lose an old lap when a layer that has claimed ``claimed`` claims ``end``."""
        sinks = self.group.sinks
        fresh = max(self.capacity, round_up(max(0, claimed - sinks), PAGE_SLOTS))
        if end - sinks <= fresh:
            return []  # nearly always: a page is begun once in 128 tokens
        first, stop = fresh // PAGE_SLOTS, round_up(end - sinks, PAGE_SLOTS) // PAGE_SLOTS
        return [page % self.ring_pages for page in range(first, min(stop, first + self.ring_pages))]

    def columns(self, start: int, stop: int) -> list[int]:
        """Columns of a page table (sink page, then ring pages) that positions start to stop - 1 are in."""
        sinks = self.group.sinks
        first = max(0, start - sinks) // PAGE_SLOTS
        last = min(-(-max(0, stop - sinks) // PAGE_SLOTS), first + self.ring_pages)
        ring = [1 + page % self.ring_pages for page in range(first, last)] if stop > start else []
        return [0, *ring] if start < min(stop, sinks) else ring

    def words(self) -> NDArray[np.int64]:
        """The same facts for the kernels, in the order of ``geometry_from`` in ``kernels/geometry.pxi``."""
        sink = self.sink_page
        return np.array(
            [
                STORAGE_TYPES.index(self.group.storage),
                self.page.kv_heads,
                self.group.group_size,
                self.page.key_dim,
                self.page.value_dim,
                self.page.key_pad,
                self.page.value_pad,
                _UNBOUNDED if self.group.window is None else self.group.window,
                self.group.sinks,
                self.capacity,
                sink.slots if sink else 0,
                self.page.run_bytes,
                self.page.tail_offset,
                sink.run_bytes if sink else 0,
                sink.tail_offset if sink else 0,
                int(self.group.centring),
            ],
            dtype=np.int64,
        )
