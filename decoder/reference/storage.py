"""What the int8 storage keeps of a key or value, and what the stored bytes stand for."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rondel.decoder.reference.arrays import Array

SMALLEST_SCALE = 2.0**-110
"""A row of zeros still gets a scale that can be divided by."""


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
