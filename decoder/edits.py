"""Options, and windows with two sides, as the kernels take them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.arrays import Floats
from rondel.decoder.options import AttendOptions
from rondel.decoder.spec import LayerGroup

Sight = tuple[int, int, int]
"""Of rows that are not causal: positions seen after the own one, positions stored, how far rows are apart."""
Edits = tuple[float, Floats | None, Floats | None, int]
"""softcap (0 = none), slopes [Hq], bias [Hq or 1, N or 1, M] (-inf hides), position of its first column."""


def sight_of(group: LayerGroup, held: int) -> Sight | None:
    """What rows of a layer that holds so many tokens see to the right; None = nothing, they are causal."""
    if group.causal:
        return None
    # Not beyond what there is: the kernels refuse more positions than the ring has slots.
    return (min(group.window_right, held), held, 1) if group.placed else (0, held, 0)


def reach(group: LayerGroup, first: int, rows: int, held: int) -> tuple[int, int]:
    """[low, high): all positions that any row from ``first`` on sees, sinks included, lie in it."""
    if not group.placed:
        return 0, held
    low = 0 if group.window is None or group.sinks else max(0, first - group.window + 1)
    return low, min(held, first + rows + group.window_right)


def edits_of(options: AttendOptions, part: slice | None, low: int, high: int) -> Edits | None:
    """What the options do to the scores of a part of the call's rows (None = all), which see positions in
    [low, high) only.

    None if they do nothing: options that hide nothing cost nothing.
    """
    bias, first = _bias(options, part, low, high)
    if options.softcap is None and options.alibi is None and bias is None:
        return None
    slopes = None if options.alibi is None else np.require(options.alibi, requirements=["C", "A"])
    return options.softcap or 0.0, slopes, bias, first


def shown(options: AttendOptions, part: slice | None, low: int, high: int) -> NDArray[np.bool_] | None:
    """What mask and ranges leave of [low, high): bool [Hq or 1, N or 1, high - low]; None = all of it."""
    mask = None if options.mask is None else columns(options.mask, options.bias_first, part, low, high)
    if mask is not None and mask.all():
        mask = None
    if options.ranges is None:
        return mask
    inside = np.zeros((1, 1, high - low), np.bool_)
    for start, stop in options.ranges:
        inside[..., max(start, low) - low : max(stop, low) - low] = True
    if inside.all():
        return mask
    return inside if mask is None else mask & inside


def columns(
    array: NDArray[np.generic], first: int, part: slice | None, low: int, high: int
) -> NDArray[np.generic]:
    """Of a bias or mask whose first column is ``first``: rows ``part`` (None = all), columns [low, high)."""
    rows = array if part is None or array.shape[1] == 1 else array[:, part]
    return rows[..., low - first : high - first]


def _bias(options: AttendOptions, part: slice | None, low: int, high: int) -> tuple[Floats | None, int]:
    seen = shown(options, part, low, high) if low < high else None
    if seen is None and options.bias is None:
        return None, 0
    added = None if options.bias is None else columns(options.bias, options.bias_first, part, low, high)
    if seen is not None:
        added = np.where(seen, np.float32(0) if added is None else added, np.float32(-np.inf))
    return np.require(added, np.float32, ["C", "A"]), low
