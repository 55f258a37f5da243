"""One attention from several over parts of its keys: what online softmax, split keys and shards rest on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from rondel.decoder.errors import InvalidShape
from rondel.decoder.reference.arrays import Array, finite, per_head, wrong_shape
from rondel.decoder.reference.forward import share


def merge_partials(
    outs: Sequence[ArrayLike] | ArrayLike,
    lses: Sequence[ArrayLike] | ArrayLike,
    null_logit: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """The attention over all keys from those over disjoint parts of them: (out [N, Hq, Dv], lse [N, Hq]).

    With out_i and lse_i of part i, computed without a null logit::

        lse = log Σ exp(lse_i)        out = Σ exp(lse_i - lse) · out_i

    with the largest lse_i subtracted first. Right for any split, order and nesting (a merge may be merged
    again), up to float64 rounding; empty parts change no bit. A part that saw nothing (lse -inf) is left out,
    whatever its ``out`` holds; where no part saw anything, or there is none, the answer is zeros and -inf.
    ``null_logit`` [Hq] joins ``out`` here, once, and never lse: see :func:`softmax`.

    Source: online softmax, arXiv 1805.02867; over parts of the keys as in Flash-Decoding
    (https://crfm.stanford.edu/2023/10/12/flashdecoding.html).

    Args:
        outs: [parts, N, Hq, Dv], or a list of parts. A list of none has no shape: pass [0, N, Hq, Dv].
        lses: [parts, N, Hq], likewise.

    Raises:
        InvalidShape: the parts do not belong together.
        ValueRange: an lse is NaN or +inf, or a part that saw something holds NaN or an infinity.
    """
    lse_of = finite("lses", _stack("lses", lses, 3), or_minus_infinity=True)
    out_of = _stack("outs", outs, 4)
    if out_of.shape[:3] != lse_of.shape:
        raise wrong_shape("outs", out_of.shape, f"[{', '.join(map(str, lse_of.shape))}, Dv], as lses")
    top = lse_of.max(axis=0, initial=-np.inf)
    part = np.exp(lse_of - np.where(np.isneginf(top), 0.0, top))
    total = part.sum(axis=0)  # at least 1 where anything was seen
    # Blended, not multiplied by zero: 0 · NaN would be NaN.
    kept = finite("outs", np.where(np.isneginf(lse_of)[..., None], 0.0, out_of))
    out = (part[..., None] * kept).sum(axis=0) / np.maximum(total, 1.0)[..., None]
    lse = top + np.log(np.maximum(total, 1.0))
    if null_logit is not None:
        out = out * share(lse, per_head("null_logit", null_logit, lse.shape[1]))[..., None]
    return out, lse


def _stack(name: str, parts: Sequence[ArrayLike] | ArrayLike, ndim: int) -> Array:
    try:
        stacked = np.asarray(parts, np.float64)
    except ValueError:
        got = "parts of different shapes"
        expected = "parts of one shape"
        raise InvalidShape(
            f"{name} must be {expected}, got {got}", field=name, got=got, expected=expected
        ) from None
    if stacked.ndim != ndim:
        raise wrong_shape(name, stacked.shape, "[parts, N, Hq, Dv]" if ndim == 4 else "[parts, N, Hq]")
    return stacked
