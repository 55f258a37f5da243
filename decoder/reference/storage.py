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


def store_centred(k: ArrayLike, sinks: int = 0, page: int = 128) -> Array:
    """What centred int8 storage keeps of a stream's keys k [M, Hkv, Dk] float32, from position 0 on: float64.

    A key is stored as the codes of ``(k - mean) / power``, all three float32. Mean (bfloat16) and power (of
    two) of a page, per kv head and channel, come from the page before it, as it is stored: the mean of its
    keys, and the power of two nearest to a channel's standard deviation over their median where that ratio is
    at least 8, no more than 2**20. The first page and the sinks have mean 0 and power 1.
    """
    keys = np.asarray(k, np.float32)
    stored = np.zeros(keys.shape, np.float32)
    starts = ([0] if sinks else []) + list(range(sinks, len(keys), page))
    for start in starts:
        end = sinks if start < sinks else min(start + page, len(keys))
        mean = np.zeros(keys.shape[1:], np.float32)
        powers = np.ones(keys.shape[1:], np.float32)
        if start >= sinks + page:
            before = stored[start - page : start].astype(np.float64)
            average = before.mean(axis=0)
            mean = _nearest_bfloat16(average.astype(np.float32))
            spread = np.maximum((before * before).mean(axis=0) - average * average, 0.0)
            powers = _powers(np.sqrt(spread.astype(np.float32)))
        codes, scales = quantise_rows((keys[start:end] - mean) / powers)
        stored[start:end] = dequantise(codes, scales).astype(np.float32) * powers + mean
    return stored.astype(np.float64)


def _nearest_bfloat16(x: NDArray[np.float32]) -> NDArray[np.float32]:
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
    return (rounded & 0xFFFFFFFF).astype(np.uint32).view(np.float32)


def _powers(sizes: NDArray[np.float32]) -> NDArray[np.float32]:
    """sizes [Hkv, Dk] -> the powers of two that channels far larger than the median are divided by."""
    typical = np.sort(sizes, axis=-1)[:, sizes.shape[-1] // 2, None]
    with np.errstate(over="ignore"):
        ratio = np.minimum(sizes / np.where(typical > 0, typical, np.float32(1)), np.float32(1e9))
    fraction, exponent = np.frexp(ratio)
    exponent = np.minimum(exponent - 1 + (fraction > np.float32(0.70710678)), 20)
    outlying = (typical > 0) & (sizes >= np.float32(8) * typical)
    powers: NDArray[np.float32] = np.where(outlying, np.ldexp(np.float32(1), exponent), np.float32(1))
    return powers
