"""Beside attention: the projections before it, the lookup that it softens, and an older way to score."""

from __future__ import annotations

from typing import Unpack

import numpy as np
from numpy.typing import ArrayLike

from rondel.decoder.reference.arrays import Array, finite, per_head, per_query_head, tokens, wrong_shape
from rondel.decoder.reference.forward import explain, weighted_sum
from rondel.decoder.reference.options import Options


def project(x: ArrayLike, w: ArrayLike, heads: int = 1) -> Array:
    """X·W cut into heads: [T, heads, dim] from x [T, D] and w [D, heads · dim]. For W_Q, W_K and W_V alike.

    Head h gets columns h·dim to (h+1)·dim.

    Raises:
        InvalidShape, ValueRange: the arrays do not fit, or are not finite.
    """
    x64, w64 = finite("x", x), finite("w", w)
    if x64.ndim != 2:
        raise wrong_shape("x", x64.shape, "[tokens, model dim]")
    if w64.ndim != 2 or w64.shape[0] != x64.shape[1] or heads < 1 or w64.shape[1] % heads:
        raise wrong_shape("w", w64.shape, f"[{x64.shape[1]}, heads · dim] with heads = {heads}")
    return (x64 @ w64).reshape(len(x64), heads, w64.shape[1] // heads)


def hard_lookup(q: ArrayLike, k: ArrayLike, v: ArrayLike, **options: Unpack[Options]) -> Array:
    """The value of the best key instead of a mixture: out [N, Hq, Dv].

    All visible keys with the largest score share equally, a null logit that equals it included; a larger one
    takes everything. It is what :func:`attend` tends to as all scores grow by a common factor: without bias
    and null logit, as temperature → 0. A row that sees nothing gives zeros.

    Raises what :func:`explain` raises.
    """
    s = explain(q, k, **options).masked
    null = np.full(len(s), -np.inf)
    if (logit := options.get("null_logit")) is not None:
        null = per_head("null_logit", logit, len(s))
    top = np.maximum(s.max(axis=-1, initial=-np.inf), null[:, None])[..., None]
    best = (s == top) & (s > -np.inf)
    winners = best.sum(axis=-1, keepdims=True) + (null[:, None, None] == top)
    return weighted_sum(best / np.maximum(winners, 1), v)


def additive_scores(q: ArrayLike, k: ArrayLike, w_q: ArrayLike, w_k: ArrayLike, w: ArrayLike) -> Array:
    """wᵀ·tanh(W_q·q + W_k·k) for every row and key: [Hq, N, M], to go into :func:`softmax`.

    q [N, Hq, Dq] and k [M, Hkv, Dk] may differ in dim; w_q [A, Dq], w_k [A, Dk] and w [A] are shared by the
    heads. A network with one hidden layer where attention has a dot product: it costs a tanh per hidden unit,
    row and key, and no matrix product gives it. Source: Bahdanau, Cho and Bengio, arXiv 1409.0473.

    Raises:
        InvalidShape, ValueRange: the arrays do not fit, or are not finite.
    """
    q64, k64, w64 = tokens("q", q), tokens("k", k), finite("w", w)
    if w64.ndim != 1:
        raise wrong_shape("w", w64.shape, "[hidden]")
    to_hidden = []
    for name, matrix, dim in (("w_q", w_q, q64.shape[2]), ("w_k", w_k, k64.shape[2])):
        m64 = finite(name, matrix)
        if m64.shape != (w64.size, dim):
            raise wrong_shape(name, m64.shape, f"[hidden, dim], here [{w64.size}, {dim}]")
        to_hidden.append(m64)
    of_rows = q64 @ to_hidden[0].T
    of_keys = per_query_head("k", k64 @ to_hidden[1].T, q64.shape[1])
    s: Array = np.einsum("nmha,a->hnm", np.tanh(of_rows[:, None] + of_keys[None]), w64)
    return s
