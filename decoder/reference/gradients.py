"""Attention, backwards: how the output moves with queries, keys, values, scores and null logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import numpy as np
from numpy.typing import ArrayLike

from rondel.decoder.reference.arrays import Array, finite, per_query_head, tokens, wrong_shape
from rondel.decoder.reference.forward import explain, factor
from rondel.decoder.reference.options import Options


def softmax_jacobian(weights: ArrayLike) -> Array:
    """∂α_i/∂s_j = α_i (δ_ij - α_j): [..., M, M] from weights [..., M]; row i, column j.

    Symmetric. Row i sums to α_i (1 - Σα), zero without a null logit: a constant added to all scores then
    changes nothing. Close to zero everywhere once one weight is close to 1.
    """
    alpha = finite("weights", weights)
    jacobian: Array = alpha[..., :, None] * (np.eye(alpha.shape[-1]) - alpha[..., None, :])
    return jacobian


@dataclass(frozen=True)
class Gradients:
    """Derivatives of Σ d_out · out, each of the shape of what it is by."""

    q: Array
    """[N, Hq, Dk]"""
    k: Array
    """[M, Hkv, Dk], summed over the query heads that read the kv head."""
    v: Array
    """[M, Hkv, Dv], likewise."""
    scores: Array
    """[Hq, N, M], by the scores that the softmax is taken of: also the gradient by a full bias."""
    null_logit: Array
    """[Hq]; zeros without one."""


def backward(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, d_out: ArrayLike, **options: Unpack[Options]
) -> Gradients:
    """The gradients of :func:`attend` with the same arguments, for d_out [N, Hq, Dv] = ∂loss/∂out.

    Backwards through the stages::

        ∂out_n/∂v_j = α_j            dα_j = d_out·v_j            ds_j = α_j (dα_j - Σ_i α_i dα_i)

    then ``1 - tanh²`` through the softcap, and scale / temperature into q and k. What is not visible gets
    exactly zero. (An lse that is used as well has the gradient ∂lse/∂s_j = α_j, which is not in here.)

    Raises what :func:`attend` raises, and InvalidShape for d_out.
    """
    q64, k64, v64 = tokens("q", q), tokens("k", k), tokens("v", v)
    stages = explain(q64, k64, **options)
    heads, rows, keys = stages.weights.shape
    v_of_head = per_query_head("v", tokens("v", v64, length=keys), heads)
    d_out64 = tokens("d_out", d_out, length=rows, dim=v64.shape[2])
    if d_out64.shape[1] != heads:
        raise wrong_shape("d_out", d_out64.shape, f"{[rows, heads, v64.shape[2]]}")
    alpha = stages.weights
    d_alpha = np.einsum("nhd,mhd->hnm", d_out64, v_of_head)
    mean = (alpha * d_alpha).sum(axis=-1, keepdims=True)
    d_scores = alpha * (d_alpha - mean)
    softcap = options.get("softcap")
    bent = 1.0 if softcap is None else 1 - (stages.capped / softcap) ** 2
    d_product = d_scores * bent * factor(q64.shape[2], options.get("scale"), options.get("temperature", 1.0))
    return Gradients(
        q=np.einsum("hnm,mhd->nhd", d_product, per_query_head("k", k64, heads)),
        k=_per_kv_head(np.einsum("hnm,nhd->mhd", d_product, q64), k64.shape[1]),
        v=_per_kv_head(np.einsum("hnm,nhd->mhd", alpha, d_out64), v64.shape[1]),
        scores=d_scores,
        null_logit=-(stages.null_weight.T * mean[..., 0]).sum(axis=-1),  # its value is zero, so dα is too
    )


def _per_kv_head(x: Array, kv_heads: int) -> Array:
    """[M, Hq, dim] -> [M, Hkv, dim], summed over each group."""
    summed: Array = x.reshape(x.shape[0], kv_heads, -1, x.shape[2]).sum(axis=2)
    return summed
