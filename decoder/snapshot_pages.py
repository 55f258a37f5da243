"""The pages of a stream that a snapshot holds, and what must be true of their bytes.

Only pages with a token that can still be read are held: what was undone, and old laps, stay behind. Within a
page the stored bytes are taken as they are, so a restored stream has the same ones, the slots not in use
included.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.cache.layout import FORMAT_VERSION, HEADER_BYTES, PageLayout, RingLayout
from rondel.decoder.errors import CorruptSnapshot
from rondel.decoder.kernels import KERNELS
from rondel.decoder.snapshot_header import SnapshotHeader
from rondel.decoder.spec import MAX_MAGNITUDE, PAGE_SLOTS, STORAGE_TYPES

PAGE_MAGIC: Final = 0x47505252
"""As in kernels/geometry.pxi."""

_HEADER: Final = struct.Struct("<IHBBq")

# What the kernels can have stored. Turning and stretching makes a key element up to 4·√2 times as large, and
# centring adds a mean of that size: scales, as bfloat16, stay below 2^47, means below 2^53.
_MOST: Final = 8 * MAX_MAGNITUDE
_MOST_SCALE: Final = (47 + 127) << 7
_MOST_MEAN: Final = (53 + 127) << 7
_MOST_EXPONENT: Final = 20


@dataclass(frozen=True, slots=True)
class SnapshotPage:
    """One page of one layer. ``index`` is its place in the layer's page table: 0 the sink page, then the
    ring. ``position`` is that of the token in its first slot."""

    layer: int
    index: int
    position: int
    layout: PageLayout
    centring: bool

    def sections(self) -> Iterator[slice]:
        """Its bytes in pieces of at most 1 MiB: one run per kv head, then the tail."""
        for head in range(self.layout.kv_heads):
            yield slice(head * self.layout.run_bytes, (head + 1) * self.layout.run_bytes)
        yield slice(self.layout.tail_offset, self.layout.page_bytes)

    def check(self, section: slice, held: NDArray[np.uint8]) -> None:
        """Raises CorruptSnapshot unless the kernels can have stored these bytes of a section."""
        if section.start == self.layout.tail_offset:
            sound = self._tail_is_sound(held)
        elif self.layout.storage == "float32":
            sound = KERNELS.in_range(held.view(np.float32), _MOST)
        else:
            sound = self._run_is_sound(held)
        if not sound:
            raise CorruptSnapshot(
                f"page {self.index} of layer {self.layer} has bytes at {section.start} to {section.stop - 1} "
                f"that no {self.layout.storage} page for position {self.position} can have",
                part="page",
                layer=self.layer,
                page=self.index,
            )

    def _tail_is_sound(self, held: NDArray[np.uint8]) -> bool:
        start = 4 * self.layout.slots
        storage = STORAGE_TYPES.index(self.layout.storage)
        want = (PAGE_MAGIC, FORMAT_VERSION, storage, int(self.centring), self.position)
        return _HEADER.unpack(held[start : start + HEADER_BYTES].tobytes()[: _HEADER.size]) == want

    def _run_is_sound(self, held: NDArray[np.uint8]) -> bool:
        layout = self.layout
        codes = layout.slots * (layout.key_pad + layout.value_pad)
        scales = codes + 4 * layout.slots
        means = scales + 2 * layout.key_pad
        centre = held[scales : means + layout.key_pad]
        if not self.centring:
            if centre.any():
                return False
        elif (held[scales:means].view(np.uint16) & 0x7FFF).max() > _MOST_MEAN or (
            centre[2 * layout.key_pad :].max() > _MOST_EXPONENT
        ):
            return False
        # As unsigned numbers, negative scales, infinities and NaN are all larger.
        largest = held[codes:scales].view(np.uint16).max()
        return bool(held[:codes].view(np.int8).min() > -128 and largest <= _MOST_SCALE)


def pages_of(header: SnapshotHeader, layouts: Sequence[RingLayout]) -> Iterator[SnapshotPage]:
    """The pages of a snapshot, in the order they have in it: by layer group, place in the page table, and
    layer.

    So whoever reads it takes pages of memory as their bytes come in, never many for a few bytes.
    """
    for group, layout in zip(header.spec.groups, layouts, strict=True):
        if layout.sink_page is not None:
            for layer in group.layers:
                if header.lengths[layer]:
                    yield SnapshotPage(layer, 0, 0, layout.sink_page, group.centring)
        runs = [_readable(layout, header.lengths[layer], header.claimed[layer]) for layer in group.layers]
        for place in range(columns_of(header, layout)):
            for layer, run in zip(group.layers, runs, strict=True):
                lap = run.start + (place - run.start) % layout.ring_pages
                if lap in run:
                    position = group.sinks + lap * PAGE_SLOTS
                    yield SnapshotPage(layer, 1 + place, position, layout.page, group.centring)


def columns_of(header: SnapshotHeader, layout: RingLayout) -> int:
    """Ring pages per layer that a restored stream needs: all once the ring has wrapped, else those with
    tokens."""
    layers = layout.group.layers
    if layout.wraps_at(max(header.claimed[layer] for layer in layers)):
        return layout.ring_pages
    return max(_readable(layout, header.lengths[layer], 0).stop for layer in layers)


def _readable(layout: RingLayout, length: int, claimed: int) -> range:
    """Which pages of a layer, counted from its first token after the sinks on, hold a token that can be
    read."""
    sinks = layout.group.sinks
    first = (layout.oldest_whole(claimed) - sinks) // PAGE_SLOTS
    return range(first, -(-max(0, length - sinks) // PAGE_SLOTS))
