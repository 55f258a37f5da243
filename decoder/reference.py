"""What Rondel computes, written to be read: attention and int8 storage in float64 NumPy.

This is the specification. The kernels are tested against it and never the other way round; nothing here is
fast and nothing on the hot path imports it.

Letters: N query rows, M keys, Hq query heads, Hkv kv heads, G = Hq / Hkv, Dk and Dv the dims of keys and
values, W window, S sinks. Arrays are [tokens, heads, dim].
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

SMALLEST_SCALE = 2.0**-110
"""A row of zeros still gets a scale that can be divided by."""


def visible(
    positions_q: ArrayLike,
    positions_k: ArrayLike,
    window: int | None = None,
    sinks: int = 0,
    causal: bool = True,
) -> NDArray[np.bool_]:
    """Which keys each query row sees: bool [N, M], True = seen.

    The row at position p sees the key at j when ``j <= p`` and (``j > p - window`` or ``j < sinks``): the
    window counts the row's own position, the sinks are the first positions of the stream. Rows are the last
    positions unless told otherwise, so the mask is aligned to its bottom right corner::

        N=2, M=5        N=5, M=2        N=4, M=7, window=3, sinks=1

        1 1 1 1 0       0 0             1 1 1 1 0 0 0
        1 1 1 1 1       0 0             1 0 1 1 1 0 0
                        0 0             1 0 0 1 1 1 0
                        1 0             1 0 0 0 1 1 1
                        1 1

    Rows before position 0 see nothing; their output is zero. ``causal=False`` sees everything stored.

    Raises:
        ValueError: a window or sinks together with ``causal=False``.
    """
    p = np.asarray(positions_q, np.int64)[:, None]
    j = np.asarray(positions_k, np.int64)[None, :]
    if not causal:
        if window is not None or sinks:
            raise ValueError(f"causal=False takes no window and no sinks, got window={window}, sinks={sinks}")
        return np.ones((p.size, j.size), np.bool_)
    in_window = np.ones((p.size, j.size), np.bool_) if window is None else j > p - window
    return (j <= p) & (in_window | (j < sinks))


def scores(q: ArrayLike, k: ArrayLike, *, scale: float | None = None, softcap: float | None = None) -> Array:
    """How well each query row matches each key: [Hq, N, M] from q [N, Hq, Dk] and k [M, Hkv, Dk].

    Query head h reads kv head ``h // G``: with 6 heads over 2, heads 0 to 2 read kv head 0 and heads 3 to 5
    read kv head 1. ``scale`` multiplies q·k (None = 1/√Dk); ``softcap`` c then bends it to ``c·tanh(s/c)``.
    """
    q64, k64 = np.asarray(q, np.float64), np.asarray(k, np.float64)
    k_of_head = np.repeat(k64, q64.shape[1] // k64.shape[1], axis=1)
    factor = 1 / math.sqrt(q64.shape[2]) if scale is None else scale
    s: Array = np.einsum("nhd,mhd->hnm", q64, k_of_head) * factor
    return s if softcap is None else softcap * np.tanh(s / softcap)


def softmax(s: ArrayLike, null_logit: ArrayLike | None = None) -> tuple[Array, Array]:
    """Weights [Hq, N, M] along the keys, and lse [Hq, N], from scores [Hq, N, M]; -inf = not visible.

    The running maximum is subtracted first, so no exp overflows. ``null_logit`` [Hq] is one more score whose
    value is zero: it takes its share of the weights and is left out of lse. A row that sees nothing has
    weights 0 and lse -inf.
    """
    s64 = np.asarray(s, np.float64)
    top = s64.max(axis=-1, initial=-np.inf)
    e = np.exp(s64 - np.where(np.isneginf(top), 0.0, top)[..., None])
    total = e.sum(axis=-1)  # at least 1 where anything is visible
    weights = e / np.maximum(total, 1.0)[..., None]
    lse = top + np.log(np.maximum(total, 1.0))
    if null_logit is not None:
        null = np.asarray(null_logit, np.float64)[:, None]
        share = np.exp(-np.logaddexp(0.0, null - np.where(np.isneginf(lse), 0.0, lse)))
        weights = weights * share[..., None]
    return weights, lse


def attend(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    scale: float | None = None,
    position: int | None = None,
    key_positions: ArrayLike | None = None,
    window: int | None = None,
    sinks: int = 0,
    softcap: float | None = None,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    causal: bool = True,
    null_logit: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Attention of q [N, Hq, Dk] over k [M, Hkv, Dk] and v [M, Hkv, Dv]: (out [N, Hq, Dv], lse [N, Hq]).

    Scale, softcap, bias, masks, then softmax along the keys, then the weighted sum of the values. Masks come
    before the softmax, so the keys that remain share the whole weight.

    Args:
        position: position of the first row; None = the rows are the last N positions.
        key_positions: ascending positions of the keys, [M]; None = 0 to M-1. For rings that dropped some.
        bias: added to the scores, broadcast to [Hq, N, M]; -inf hides a key.
        mask: bool, broadcast to [Hq, N, M]; False hides a key.
        null_logit: [Hq], see :func:`softmax`; the output is then pulled towards zero.
    """
    q64, v64 = np.asarray(q, np.float64), np.asarray(v, np.float64)
    n, m = q64.shape[0], v64.shape[0]
    at = np.arange(m) if key_positions is None else np.asarray(key_positions, np.int64)
    first = (int(at[-1]) + 1 if m else 0) - n if position is None else position
    s = scores(q64, k, scale=scale, softcap=softcap)
    if bias is not None:
        s = s + np.asarray(bias, np.float64)
    seen = visible(first + np.arange(n), at, window, sinks, causal)[None]
    if mask is not None:
        seen = seen & np.asarray(mask, np.bool_)
    weights, lse = softmax(np.where(seen, s, -np.inf), null_logit)
    v_of_head = np.repeat(v64, q64.shape[1] // v64.shape[1], axis=1)
    return np.einsum("hnm,mhd->nhd", weights, v_of_head), lse.T


def quantise_rows(x: ArrayLike) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Int8 storage of x [tokens, heads, dim]: codes int8 of the same shape, scales float32 [tokens, heads].

    One scale per (token, head): the smallest bfloat16 (8 significant bits) that is at least max|x| / 127 and
    at least 2**-110. A code is x / scale rounded to nearest, ties to even; it is in [-127, 127], because the
    scale was rounded up. The error of a stored value is at most half its row's scale.
    """
    x64 = np.asarray(x, np.float64)
    fraction, exponent = np.frexp(np.abs(x64).max(axis=-1, initial=0.0) / 127)
    scales = np.maximum(np.ldexp(np.ceil(fraction * 256), exponent - 8), SMALLEST_SCALE)
    return np.rint(x64 / scales[..., None]).astype(np.int8), scales.astype(np.float32)


def dequantise(codes: NDArray[np.int8], scales: NDArray[np.float32]) -> Array:
    """What the stored bytes stand for: code · scale, float64 (and exact in float32: 7 + 8 bits)."""
    return codes.astype(np.float64) * scales.astype(np.float64)[..., None]
