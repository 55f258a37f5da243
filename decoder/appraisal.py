"""A stream's keys appraised from their stored bytes, when somebody asks.

Nothing is counted while tokens come and go: a page of each layer, the newest full one, says what the scheme
makes of keys like those. It is looked at as the codes see it, after centring: channels in which a page's keys
spread alike share the 8 bits well; one channel far larger than the others takes the bits from all of them.

Values need no such numbers: an output is an average of stored values, so its error is at most half a scale,
1/254 of the largest number of a value's row, whatever the channels are like.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.cache.extent import StreamExtent
from rondel.decoder.cache.layout import PageLayout
from rondel.decoder.cache.ring import GroupRings
from rondel.decoder.quality import Quality
from rondel.decoder.spec import PAGE_SLOTS

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

MAX_EXPONENT: Final = 20
"""Of the powers of two that bring a channel down; also in ``kernels/centre.pxi``."""


def appraise(
    extent: StreamExtent, rings: Sequence[GroupRings], contents: Callable[[int, int], Bytes]
) -> Quality | None:
    """The numbers of a stream with these parts; ``contents(page_bytes, offset)`` gives a page's bytes.

    None where no int8 layer has a page to tell by yet: 128 tokens behind the sinks, 256 with centring.
    """
    error, worst, ratio, capped = -1.0, 0, 0.0, 0
    for ring in rings:
        layout = ring.layout.page
        if layout.storage != "int8":
            continue
        for layer in ring.group.layers:
            number = _newest_full(ring, extent.layer_length(layer), extent.claimed(layer))
            if number is None:
                continue
            page = contents(layout.page_bytes, int(ring.table(layer)[1 + number]))
            for run in page[: layout.tail_offset].reshape(layout.kv_heads, layout.run_bytes):
                codes, scales, exponents = keys_of(layout, run)
                seen = codes * scales[:, None]
                ratio = max(ratio, _over_median(np.sqrt(np.square(seen, dtype=np.float64).mean(axis=0))))
                capped += int(np.count_nonzero(exponents >= MAX_EXPONENT))
                own = _score_error(seen, scales)
                if own > error:
                    error, worst = own, layer
    return None if error < 0.0 else Quality(error, worst, ratio, capped)


def keys_of(layout: PageLayout, run: Bytes) -> tuple[Floats, Floats, NDArray[np.int8]]:
    """Codes [slots, Dk], scales [slots] and exponents [Dk] of one kv head's run in a page (the byte order is
    described in ``kernels/geometry.pxi``)."""
    slots, pad = layout.slots, layout.key_pad
    tiles = run[: slots * pad].view(np.int8).reshape(slots // 16, pad // 4, 16, 4)
    codes = tiles.transpose(0, 2, 1, 3).reshape(slots, pad)[:, : layout.key_dim]
    at = slots * (pad + layout.value_pad)
    scales = (run[at : at + 2 * slots].view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    at += 4 * slots + 2 * pad
    return codes.astype(np.float32), scales, run[at : at + layout.key_dim].view(np.int8)


def _newest_full(ring: GroupRings, length: int, claimed: int) -> int | None:
    """Which of the ring's pages was filled last, by the rule ``slot(p) = (p - S) mod capacity``."""
    last = max(0, length - ring.group.sinks) // PAGE_SLOTS - 1
    # Tokens that were taken off again may have begun its next lap.
    rewritten = ring.group.sinks + last * PAGE_SLOTS < ring.layout.oldest_whole(claimed)
    if last < int(ring.group.centring) or rewritten:
        return None
    return last % ring.layout.ring_pages


def _over_median(sizes: NDArray[np.float64]) -> float:
    middle, largest = float(np.median(sizes)), float(sizes.max())
    if middle > 0.0:
        return largest / middle
    return math.inf if largest > 0.0 else 1.0


def _score_error(seen: Floats, scales: Floats) -> float:
    """A number is off by anything up to half a step: step² / 12 in the mean of squares. How a typical channel
    spreads over the keys is what tells them apart by it. The median of the channels: neither an outlier nor
    one that is never used shall decide."""
    noise = float(np.square(scales, dtype=np.float64).mean()) / 12.0
    spread = float(np.median(seen.var(axis=0, dtype=np.float64)))
    if spread > 0.0:
        return math.sqrt(min(1.0, noise / spread))
    # All codes of a typical channel are alike. Keys that are all the same lose nothing by it.
    return 1.0 if (seen.var(axis=0, dtype=np.float64) > 0.0).any() else 0.0
