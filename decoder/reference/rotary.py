"""Rotary position embedding, unscaled: the oracle for sessions that rotate queries and keys themselves.

Sinks under a wrapped window are scored by queries rotated at :func:`sink_position`, everything else by
queries rotated at their own position. Two attentions over disjoint keys are one, so the oracle for that is
:func:`merge_partials` of the two.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rondel.decoder.errors import InvalidRequest
from rondel.decoder.reference.arrays import Array, tokens, wrong_shape


def rotate(
    x: ArrayLike,
    positions: ArrayLike,
    theta: float = 10000.0,
    dim: int | None = None,
    interleaved: bool = False,
) -> Array:
    """x [tokens, heads, D] with its first ``dim`` channels (None = all) turned by position.

    Pair i of the dim / 2 pairs is turned by the angle ``p · theta**(-2i / dim)``; then q·k depends on the
    positions only by their difference, and no length changes. Pair i is channels (i, i + dim/2), halves
    side by side (GPT-NeoX, Hugging Face), or with ``interleaved`` (2i, 2i + 1) as in the paper, RoFormer,
    arXiv 2104.09864.

    Raises:
        InvalidShape: positions are not [tokens].
        InvalidRequest: dim is odd, below 2 or above D, or theta is not above 0.
        ValueRange: x is not finite.
    """
    x64, p = tokens("x", x), np.asarray(positions, np.float64)
    turned = x64.shape[2] if dim is None else dim
    if p.shape != x64.shape[:1]:
        raise wrong_shape("positions", p.shape, f"one per token, [{len(x64)}]")
    if turned % 2 or not 2 <= turned <= x64.shape[2]:
        raise InvalidRequest(f"dim must be even, from 2 to {x64.shape[2]}, got {turned}", field="dim")
    if not theta > 0:
        raise InvalidRequest(f"theta must be above 0, got {theta}", field="theta")
    pair = np.arange(turned // 2)
    angle = p[:, None, None] * theta ** (-2 * pair / turned)
    first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + turned // 2)
    out = x64.copy()
    out[..., first] = x64[..., first] * np.cos(angle) - x64[..., second] * np.sin(angle)
    out[..., second] = x64[..., first] * np.sin(angle) + x64[..., second] * np.cos(angle)
    return out
