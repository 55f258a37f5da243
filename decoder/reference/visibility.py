"""Which keys a query row sees, and how far away they count as being. All by position, nothing by content."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rondel.decoder.errors import InvalidRequest
from rondel.decoder.reference.arrays import wrong_shape

Positions = NDArray[np.int64]


def visible(
    positions_q: ArrayLike,
    positions_k: ArrayLike,
    window: int | None = None,
    sinks: int = 0,
    causal: bool = True,
    *,
    window_right: int = 0,
    ranges: Sequence[tuple[int, int]] | None = None,
) -> NDArray[np.bool_]:
    """Which keys each query row sees: bool [N, M], True = seen.

    The row at position p sees the key at j when ``j <= p + window_right`` and (``j > p - window`` or
    ``j < sinks``): the window counts the row's own position, the sinks are the first positions of the
    stream (arXiv 2309.17453). Rows are the last positions unless told otherwise, so the mask is aligned to
    its bottom right corner::

        N=2, M=5        N=5, M=2        N=4, M=7, window=3, sinks=1     and window_right=1

        1 1 1 1 0       0 0             1 1 1 1 0 0 0                   1 1 1 1 1 0 0
        1 1 1 1 1       0 0             1 0 1 1 1 0 0                   1 0 1 1 1 1 0
                        0 0             1 0 0 1 1 1 0                   1 0 0 1 1 1 1
                        1 0             1 0 0 0 1 1 1                   1 0 0 0 1 1 1
                        1 1

    Rows before position 0 see nothing; their output is zero. ``causal=False`` sees everything stored.
    ``ranges`` then leaves only keys whose position is in one of the [low, high), sinks included.

    Raises:
        InvalidRequest: a size is out of range, a range ends before it begins, or a window or sinks come
            together with ``causal=False``.
    """
    if window is not None and window < 1:
        raise InvalidRequest(f"window must be None or at least 1, got {window}", field="window")
    for name, value in (("sinks", sinks), ("window_right", window_right)):
        if value < 0:
            raise InvalidRequest(f"{name} must be at least 0, got {value}", field=name)
    if not causal and (window is not None or window_right or sinks):
        got = f"window={window}, window_right={window_right}, sinks={sinks}"
        raise InvalidRequest(f"causal=False takes no window and no sinks, got {got}", field="causal")
    p, j = np.asarray(positions_q, np.int64)[:, None], np.asarray(positions_k, np.int64)[None, :]
    seen = np.ones((p.size, j.size), np.bool_)
    if causal:
        seen &= j <= p + window_right
    if window is not None:
        seen &= (j > p - window) | (j < sinks)
    return seen if ranges is None else seen & _within(j, ranges)


def _within(j: Positions, ranges: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    inside = np.zeros(j.shape, np.bool_)
    for low, high in ranges:
        if low > high:
            raise InvalidRequest(
                f"a range must not end before it begins, got [{low}, {high})", field="ranges"
            )
        inside |= (low <= j) & (j < high)
    return inside


def sink_position(positions_q: ArrayLike, window: int | None = None, sinks: int = 0) -> Positions:
    """Where a row stands when it looks at the sinks: ``min(p, S + W - 1)``, int64 [N]; p without a window.

    Counted in the cache and not in the stream (StreamingLLM, arXiv 2309.17453): once the window has left
    the sinks, they stay as far away as the model has ever seen them.
    """
    p = np.asarray(positions_q, np.int64)
    return p if window is None else np.minimum(p, sinks + window - 1)


def distances(
    positions_q: ArrayLike, positions_k: ArrayLike, window: int | None = None, sinks: int = 0
) -> Positions:
    """j - p for every row and key, int64 [N, M]: 0 for itself, negative for the past.

    Of the keys before ``sinks`` it is j - :func:`sink_position`. A sink that is still inside the window has
    the same distance either way.
    """
    p, j = np.asarray(positions_q, np.int64)[:, None], np.asarray(positions_k, np.int64)[None, :]
    return np.where(j < sinks, j - sink_position(p, window, sinks), j - p)


def placed(
    rows: int, keys: int, position: int | None, key_positions: ArrayLike | None
) -> tuple[Positions, Positions]:
    """Positions of the rows [N] and the keys [M] of one call, defaults filled in.

    Raises:
        InvalidShape: ``key_positions`` is not [M].
        InvalidRequest: they do not ascend.
    """
    at = np.arange(keys) if key_positions is None else np.asarray(key_positions, np.int64)
    if at.shape != (keys,):
        raise wrong_shape("key_positions", at.shape, f"one position per key, [{keys}]")
    if (np.diff(at) <= 0).any():
        raise InvalidRequest(f"key_positions must ascend, got {at.tolist()}", field="key_positions")
    first = (int(at[-1]) + 1 if keys else 0) - rows if position is None else position
    return first + np.arange(rows), at
