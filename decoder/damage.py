"""Whether a stream's stored tokens are what was stored, by their checksums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.cache.layout import RingLayout
from rondel.decoder.kernels import Kernels
from rondel.decoder.spec import PAGE_SLOTS


def damage(
    kernels: Kernels,
    base: int,
    layouts: Sequence[RingLayout],
    tables: Sequence[NDArray[np.int64]],
    length: int,
    claimed: Sequence[int],
    *,
    full: bool,
) -> str:
    """What is wrong with a stream of ``length`` tokens; empty if nothing is.

    Per group a layout and page tables [layers of the group, 1 + ring pages]; per layer what it claimed.
    """
    for layout, group_tables in zip(layouts, tables, strict=True):
        words = layout.words()
        for table, layer in zip(group_tables, layout.group.layers, strict=True):
            for first, stop in _runs(layout, length, claimed[layer], full=full):
                position = kernels.damaged(words, base, table, first, stop - first)
                if position >= 0:
                    return f"position {position} of layer {layer} is not what was stored"
    return ""


def _runs(layout: RingLayout, length: int, claimed: int, *, full: bool) -> list[tuple[int, int]]:
    sinks = layout.group.sinks
    if full:
        runs = [(0, min(sinks, length)), (max(sinks, layout.oldest_whole(claimed)), length)]
    elif length <= sinks:
        runs = [(0, length)]
    else:
        runs = [(length - 1 - (length - 1 - sinks) % PAGE_SLOTS, length)]
    return [(first, stop) for first, stop in runs if first < stop]
