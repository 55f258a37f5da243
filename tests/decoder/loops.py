"""Attention once more in plain Python floats, one row, head and key at a time: the reference's oracle."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rondel.decoder.reference import Array


def draw(n: int, m: int, hq: int, hkv: int, dk: int, dv: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """Gaussian q [n, hq, dk], k [m, hkv, dk] and v [m, hkv, dv]."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, hq, dk)), rng.normal(size=(m, hkv, dk)), rng.normal(size=(m, hkv, dv))


def sees(
    p: int,
    j: int,
    *,
    window: int | None = None,
    sinks: int = 0,
    window_right: int = 0,
    causal: bool = True,
    ranges: Sequence[tuple[int, int]] | None = None,
) -> bool:
    """Whether the row at p sees the key at j."""
    if ranges is not None and not any(low <= j < high for low, high in ranges):
        return False
    if not causal:
        return True
    return j <= p + window_right and (window is None or p - window < j or j < sinks)


def looped(
    q: Array,
    k: Array,
    v: Array,
    *,
    position: int,
    scale: float,
    temperature: float = 1.0,
    softcap: float | None = None,
    alibi: Sequence[float] | None = None,
    bias: Array | None = None,
    mask: Array | None = None,
    null_logit: Array | None = None,
    window: int | None = None,
    sinks: int = 0,
    window_right: int = 0,
    causal: bool = True,
    ranges: Sequence[tuple[int, int]] | None = None,
) -> tuple[Array, Array]:
    """(out, lse) of :func:`rondel.decoder.reference.attend`."""
    n, hq, dk = q.shape
    m, hkv, dv = v.shape
    out, lse = np.zeros((n, hq, dv)), np.full((n, hq), -math.inf)
    for i in range(n):
        for h in range(hq):
            g, p, logits = h // (hq // hkv), position + i, {}
            for j in range(m):
                if not sees(
                    p, j, window=window, sinks=sinks, window_right=window_right, causal=causal, ranges=ranges
                ):
                    continue
                if mask is not None and not mask[i, j]:
                    continue
                s = scale / temperature * sum(float(q[i, h, c]) * float(k[j, g, c]) for c in range(dk))
                if softcap is not None:
                    s = softcap * math.tanh(s / softcap)
                if alibi is not None:
                    stands = p if window is None or j >= sinks else min(p, sinks + window - 1)
                    s += alibi[h] * (j - stands)
                logits[j] = s + (0.0 if bias is None else float(bias[h, i, j]))
            if not logits:
                continue
            total = math.fsum(math.exp(s) for s in logits.values())
            lse[i, h] = math.log(total)
            if null_logit is not None:
                total += math.exp(null_logit[h])
            for j, s in logits.items():
                out[i, h] += math.exp(s) / total * v[j, g]
    return out, lse
