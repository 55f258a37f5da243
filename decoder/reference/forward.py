"""Attention, forwards: scores, softmax, weighted sum, and every stage on the way.

The N×M matrices are written out here because this is to be read and tested against; the kernels never
store one. Maps of rows over keys are [Hq, N, M], numbers per row are [N, Hq].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rondel.decoder.errors import InvalidRequest, InvalidShape, ValueRange
from rondel.decoder.reference.arrays import (
    Array,
    finite,
    per_head,
    per_query_head,
    spread,
    tokens,
    wrong_shape,
)
from rondel.decoder.reference.options import Options
from rondel.decoder.reference.visibility import Positions, distances, placed, visible


def scores(
    q: ArrayLike,
    k: ArrayLike,
    *,
    scale: float | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
) -> Array:
    """How well each query row matches each key: [Hq, N, M] from q [N, Hq, Dk] and k [M, Hkv, Dk].

    Query head h reads kv head ``h // G``: with 6 heads over 2, heads 0 to 2 read kv head 0 and heads 3 to 5
    read kv head 1. ``scale / temperature`` multiplies q·k (scale None = 1/√Dk); ``softcap`` c then bends it
    to ``c·tanh(s/c)``, so that no score leaves [-c, c].

    Raises:
        InvalidShape: the arrays do not fit each other.
        ValueRange: they hold NaN or an infinity, or a score is beyond float64.
        InvalidRequest: temperature or softcap is out of range.
    """
    return bend(products(q, k, scale, temperature), softcap)


def products(q: ArrayLike, k: ArrayLike, scale: float | None, temperature: float) -> Array:
    """scale / temperature · q·k: :func:`scores` before the softcap."""
    q64 = tokens("q", q)
    k64 = tokens("k", k, dim=q64.shape[2])
    with np.errstate(over="ignore", invalid="ignore"):
        s: Array = np.einsum("nhd,mhd->hnm", q64, per_query_head("k", k64, q64.shape[1]))
        s = s * factor(q64.shape[2], scale, temperature)
    if not np.isfinite(s).all():
        raise ValueRange("scores must be finite in float64: q, k or scale / temperature is too large")
    return s


def factor(dim: int, scale: float | None, temperature: float) -> float:
    """What q·k is multiplied by: scale / temperature. Raises InvalidRequest."""
    if not temperature > 0:
        raise InvalidRequest(f"temperature must be above 0, got {temperature}", field="temperature")
    return (1 / math.sqrt(dim) if scale is None else scale) / temperature


def bend(s: Array, softcap: float | None) -> Array:
    """c·tanh(s/c); ``s`` itself without a softcap. Raises InvalidRequest."""
    if softcap is None:
        return s
    if not 0 < softcap < math.inf:  # inf · tanh(0) would be NaN; None is the way to say no cap
        raise InvalidRequest(f"softcap must be above 0 and finite, got {softcap}", field="softcap")
    return softcap * np.tanh(s / softcap)


def softmax(s: ArrayLike, null_logit: ArrayLike | None = None) -> tuple[Array, Array]:
    """Weights [Hq, N, M] along the keys, and lse [Hq, N], from scores [Hq, N, M]; -inf = not visible.

    The running maximum is subtracted first, so no exp overflows. ``null_logit`` [Hq] is one more score whose
    value is zero: it takes its share of the weights and is left out of lse. A row that sees nothing has
    weights 0 and lse -inf.

    Raises:
        InvalidShape: null_logit is not [Hq].
        ValueRange: a score or null logit is NaN or +inf.
    """
    s64 = finite("scores", s, or_minus_infinity=True)
    top = s64.max(axis=-1, initial=-np.inf)
    e = np.exp(s64 - np.where(np.isneginf(top), 0.0, top)[..., None])
    total = e.sum(axis=-1)  # at least 1 where anything is visible
    weights = e / np.maximum(total, 1.0)[..., None]
    lse = top + np.log(np.maximum(total, 1.0))
    if null_logit is not None:
        null = per_head("null_logit", null_logit, lse.shape[0])[:, None]
        weights = weights * share(lse, null)[..., None]
    return weights, lse


def share(one: Array, other: Array) -> Array:
    """Of two logits, what the first gets: ``exp(one) / (exp(one) + exp(other))``, 0 if it is -inf.

    The arrays broadcast. Written with the difference, so that neither exp overflows and a share far below
    the other keeps its digits.
    """
    finite_one = np.where(np.isneginf(one), 0.0, one)
    return np.where(np.isneginf(one), 0.0, np.exp(-np.logaddexp(0.0, other - finite_one)))


def weighted_sum(weights: ArrayLike, v: ArrayLike) -> Array:
    """The values mixed: out [N, Hq, Dv] from weights [Hq, N, M] and v [M, Hkv, Dv].

    Raises:
        InvalidShape, ValueRange: the arrays do not fit, or are not finite.
    """
    w64 = finite("weights", weights)
    if w64.ndim != 3:
        raise wrong_shape("weights", w64.shape, "[query heads, rows, keys]")
    v64 = per_query_head("v", tokens("v", v, length=w64.shape[2]), w64.shape[0])
    out: Array = np.einsum("hnm,mhd->nhd", w64, v64)
    return out


@dataclass(frozen=True)
class Stages:
    """One attention call, stage by stage, up to the weights."""

    positions: Positions
    """Of the rows, [N]."""
    key_positions: Positions
    """Of the keys, [M]."""
    raw: Array
    """scale / temperature · q·k, [Hq, N, M]."""
    capped: Array
    """After the softcap."""
    masked: Array
    """After ALiBi and bias; -inf where not visible. What the softmax is taken of."""
    weights: Array
    """[Hq, N, M], 0 where not visible. They sum to 1 - null_weight along M; to 0 if none is visible."""
    null_weight: Array
    """What the null logit took, [N, Hq]: 0 without one, all of it where nothing is visible."""
    lse: Array
    """log Σ exp(masked), [N, Hq], without the null logit; -inf where nothing is visible."""


def explain(q: ArrayLike, k: ArrayLike, **options: Unpack[Options]) -> Stages:
    """Every stage of q [N, Hq, Dk] over k [M, Hkv, Dk]. See :class:`Options`.

    The weights say where the output was mixed from. They do not say why.

    Raises:
        InvalidShape: an array does not fit.
        ValueRange: an array holds NaN or an infinity (bias and null_logit may hold -inf).
        InvalidRequest: an option is out of range, or two contradict each other.
    """
    raw = products(q, k, options.get("scale"), options.get("temperature", 1.0))
    heads, rows, keys = raw.shape
    at, at_k = placed(rows, keys, options.get("position"), options.get("key_positions"))
    capped = bend(raw, options.get("softcap"))
    masked = np.where(_seen(at, at_k, raw.shape, options), _biased(capped, at, at_k, options), -np.inf)
    null = options.get("null_logit")
    weights, lse = softmax(masked, null)
    taken = np.zeros_like(lse) if null is None else share(per_head("null_logit", null, heads)[:, None], lse)
    return Stages(at, at_k, raw, capped, masked, weights, taken.T, lse.T)


def _biased(s: Array, at: Positions, at_k: Positions, options: Options) -> Array:
    if (alibi := options.get("alibi")) is not None:
        slopes = finite("alibi", per_head("alibi", alibi, len(s)))[:, None, None]
        s = s + slopes * distances(at, at_k, options.get("window"), options.get("sinks", 0))
    if (bias := options.get("bias")) is not None:
        s = s + spread("bias", finite("bias", bias, or_minus_infinity=True), s.shape)
    return s


def _seen(at: Positions, at_k: Positions, shape: tuple[int, ...], options: Options) -> NDArray[np.bool_]:
    seen = visible(
        at,
        at_k,
        options.get("window"),
        options.get("sinks", 0),
        options.get("causal", True),
        window_right=options.get("window_right", 0),
        ranges=options.get("ranges"),
    )
    if (mask := options.get("mask")) is None:
        return seen[None]
    if np.asarray(mask).dtype != np.bool_:  # 0 and -inf, taken for a mask, would read the wrong way round
        raise InvalidShape(
            f"mask must be bool, True = visible, got {np.asarray(mask).dtype}; numbers go into bias",
            field="mask",
            got=str(np.asarray(mask).dtype),
            expected="bool",
        )
    both: NDArray[np.bool_] = seen & spread("mask", np.asarray(mask), shape)
    return both


def weights(q: ArrayLike, k: ArrayLike, **options: Unpack[Options]) -> Array:
    """Only the weights of :func:`explain`: [Hq, N, M]. Raises what it raises."""
    return explain(q, k, **options).weights


def attend(q: ArrayLike, k: ArrayLike, v: ArrayLike, **options: Unpack[Options]) -> tuple[Array, Array]:
    """Attention of q [N, Hq, Dk] over k [M, Hkv, Dk] and v [M, Hkv, Dv]: (out [N, Hq, Dv], lse [N, Hq]).

    Scale, softcap, bias, masks, then softmax along the keys, then the weighted sum of the values. Masks come
    before the softmax, so the keys that remain share the whole weight. A row that sees nothing gives zeros
    and lse -inf.

    Raises:
        InvalidShape, ValueRange, InvalidRequest: as :func:`explain` does.
    """
    stages = explain(q, k, **options)
    return weighted_sum(stages.weights, v), stages.lse
