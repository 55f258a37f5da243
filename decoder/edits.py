"""Options, and windows with two sides, as the kernels take them."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.arrays import Floats
from rondel.decoder.kernels import Edits, Sight
from rondel.decoder.options import MAX_BIAS, AttendOptions
from rondel.decoder.spec import LayerGroup

Kind = TypeVar("Kind", bound=np.generic)


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


def columns(array: NDArray[Kind], first: int, part: slice | None, low: int, high: int) -> NDArray[Kind]:
    """Of a bias or mask whose first column is ``first``: rows ``part`` (None = all), columns [low, high)."""
    rows = array if part is None or array.shape[1] == 1 else array[:, part]
    return rows[..., low - first : high - first]


def added(options: AttendOptions, part: slice | None, low: int, high: int) -> Floats | None:
    """The bias over [low, high): float32 [Hq or 1, N or 1, high - low], -inf where it hides."""
    if options.bias is None:
        return None
    bias = columns(options.bias, options.bias_first, part, low, high)
    # The largest negative number is another way to say -inf. Added to a score it might overflow, or not.
    faint = bias < -MAX_BIAS
    return np.where(faint, np.float32(-np.inf), bias) if faint.any() else bias


def _bias(options: AttendOptions, part: slice | None, low: int, high: int) -> tuple[Floats | None, int]:
    seen, bias = shown(options, part, low, high), added(options, part, low, high)
    if seen is not None:
        bias = np.where(seen, np.float32(0) if bias is None else bias, np.float32(-np.inf))
    return (None, 0) if bias is None else (np.require(bias, np.float32, ["C", "A"]), low)
