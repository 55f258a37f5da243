"""The model once more, in float64, straight down the page, sharing no code with the one under test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.spec import StreamSpec

Wide = NDArray[np.float64]


def attention(
    q: Wide, k: Wide, v: Wide, *, window: int | None = None, sinks: int = 0, q_sinks: Wide | None = None
) -> Wide:
    """Causal attention of the last len(q) positions, one query row and head at a time.

    With a window: over its positions and the first ``sinks``; those before it are asked by ``q_sinks``.
    """
    n, heads, dim = q.shape
    out = np.zeros((n, heads, v.shape[2]))
    for row in range(n):
        seen = len(k) - n + row + 1
        start = 0 if window is None else max(0, seen - window)
        far = min(sinks, start)
        for head in range(heads):
            kv = head // (heads // k.shape[1])
            scores = k[start:seen, kv] @ q[row, head]
            if far and q_sinks is not None:
                scores = np.concatenate([k[:far, kv] @ q_sinks[row, head], scores])
            weights = np.exp(scores / np.sqrt(dim))
            values = np.concatenate([v[:far, kv], v[start:seen, kv]])
            out[row, head] = weights @ values / weights.sum()
    return out


def rotate(
    x: Wide,
    *,
    base: float,
    dim: int,
    factor: float = 1.0,
    factors: Sequence[float] | None = None,
    magnitude: float = 1.0,
    first: int = 0,
) -> Wide:
    """Row p of x [n, heads, d], at first + p: pair (2i, 2i+1) as a complex number, times exp(i theta)."""
    out = x.copy()
    for p in range(len(x)):
        for i in range(dim // 2):
            theta = (first + p) * base ** (-2 * i / dim) / factor / (1.0 if factors is None else factors[i])
            turned = (x[p, :, 2 * i] + 1j * x[p, :, 2 * i + 1]) * complex(np.cos(theta), np.sin(theta))
            turned *= magnitude
            out[p, :, 2 * i], out[p, :, 2 * i + 1] = turned.real, turned.imag
    return out


def logits(
    tokens: Sequence[int],
    weights: Mapping[str, NDArray[np.float32]],
    *,
    heads: int,
    kv_heads: int,
    eps: float,
    base: float,
    rope_dim: int,
    factor: float = 1.0,
    factors: Sequence[float] | None = None,
    magnitude: float = 1.0,
    window: int | None = None,
    sinks: int = 0,
) -> Wide:
    """Logits after every token, [n, vocab]; with a window, as a stream with that many sinks sees them."""
    w = {name: weight.astype(np.float64) for name, weight in weights.items()}
    turn = partial(rotate, base=base, dim=rope_dim, factor=factor, factors=factors, magnitude=magnitude)

    def norm(x: Wide, name: str) -> Wide:
        scaled: Wide = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + eps) * w[name]
        return scaled

    x = w["token_embd.weight"][list(tokens)]
    n = len(x)
    block = 0
    while f"blk.{block}.attn_q.weight" in w:
        b = f"blk.{block}"
        h = norm(x, f"{b}.attn_norm.weight")
        q = (h @ w[f"{b}.attn_q.weight"].T).reshape(n, heads, -1)
        k = (h @ w[f"{b}.attn_k.weight"].T).reshape(n, kv_heads, -1)
        v = (h @ w[f"{b}.attn_v.weight"].T).reshape(n, kv_heads, -1)
        far = None
        if window is not None:  # sinks are as far away as they can be in the cache, not in the text
            last = sinks + window - 1
            far = np.concatenate([turn(q[p : p + 1], first=min(p, last)) for p in range(n)])
        mixed = attention(turn(q), turn(k), v, window=window, sinks=sinks, q_sinks=far)
        x = x + mixed.reshape(n, -1) @ w[f"{b}.attn_output.weight"].T
        h = norm(x, f"{b}.ffn_norm.weight")
        gate, up = h @ w[f"{b}.ffn_gate.weight"].T, h @ w[f"{b}.ffn_up.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"{b}.ffn_down.weight"].T
        block += 1
    return norm(x, "output_norm.weight") @ w.get("output.weight", w["token_embd.weight"]).T


class PlainStream:
    """An AttentionStream that keeps float64 rows in lists; chunks as small as one likes."""

    def __init__(self, spec: StreamSpec, *, at_most: int = 512) -> None:
        self.spec = spec
        self._at_most = at_most
        self._rows: list[list[tuple[Wide, Wide]]] = [[] for _ in range(spec.layers)]

    @property
    def length(self) -> int:
        return min(map(len, self._rows))

    def step(
        self, layer: int, q: NDArray[np.float32], k: NDArray[np.float32], v: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        for array in (q, k, v):
            assert array.dtype == np.float32
            assert array.flags.c_contiguous
        rope = self.spec.group(layer).rope
        assert rope is not None
        assert rope.dim is not None
        assert rope.interleaved
        assert rope.scaling is None
        turn = partial(rotate, base=rope.theta, dim=rope.dim, first=len(self._rows[layer]))
        turned, wide = turn(k.astype(np.float64)), v.astype(np.float64)
        queries = turn(q.astype(np.float64))
        self._rows[layer] += zip(turned, wide, strict=True)
        keys, values = (np.stack(each) for each in zip(*self._rows[layer], strict=True))
        return attention(queries, keys, values).astype(np.float32)

    def truncate(self, length: int) -> None:
        for rows in self._rows:
            del rows[length:]

    def chunks(self, tokens: int, *, at_most: int = 512) -> Iterator[slice]:
        size = min(at_most, self._at_most)
        return (slice(begin, min(begin + size, tokens)) for begin in range(0, tokens, size))
