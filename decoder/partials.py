"""One answer from several over parts of the keys: split streams, shards, block lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.errors import InvalidShape, ValueRange

Floats = NDArray[np.float32]
_Wide = NDArray[np.float64]


def merge_partials(
    outs: Sequence[Floats] | Floats, lses: Sequence[Floats] | Floats, null_logit: Floats | None = None
) -> tuple[Floats, Floats]:
    """The attention over all keys from that over disjoint parts of them: (out [N, Hq, Dv], lse [N, Hq]).

    lse = log Σ exp(lse_i) and out = Σ exp(lse_i - lse) · out_i (online softmax, arXiv 1805.02867), computed
    in float64 and returned as float32. The parts must come without a null logit; ``null_logit`` [Hq] joins
    here, once, and only ``out``. A part that saw nothing (lse -inf) counts for nothing, whatever its ``out``
    holds; where no part saw anything, or there is none, the answer is zeros and -inf.

    Args:
        outs: float32 [parts, N, Hq, Dv], or a list of parts. No parts at all have no shape: pass an array.
        lses: float32 [parts, N, Hq], likewise.

    Raises:
        InvalidShape: the parts do not belong together.
        ValueRange: an lse or the null logit is NaN or +inf, or a part that saw something holds NaN or an
            infinity.
    """
    out_of, lse_of = _stack("outs", outs, 4), _stack("lses", lses, 3)
    if out_of.shape[:3] != lse_of.shape:
        raise _wrong("outs", out_of.shape, f"[{', '.join(map(str, lse_of.shape))}, Dv] as lses")
    _check_logits("lses", lse_of)
    blind = np.isneginf(lse_of)
    # Replaced, not multiplied by zero: 0 · NaN would be NaN.
    kept = np.where(blind[..., None], 0.0, out_of)
    if not np.isfinite(kept).all():
        raise ValueRange("outs must hold finite numbers where anything was seen", array="outs")
    top = lse_of.max(axis=0, initial=-np.inf)
    part = np.exp(lse_of - np.where(np.isneginf(top), 0.0, top))
    total = np.maximum(part.sum(axis=0), 1.0)  # at least 1 already where anything was seen
    out = (part[..., None] * kept).sum(axis=0) / total[..., None]
    lse = top + np.log(total)
    if null_logit is not None:
        null = np.asarray(null_logit, np.float64)
        if null.shape != lse.shape[1:]:
            raise _wrong("null_logit", null.shape, f"[{lse.shape[1]}]")
        _check_logits("null_logit", null)
        out = out * null_share(null, lse)[..., None]
    return out.astype(np.float32), lse.astype(np.float32)


def null_share(null: _Wide, lse: _Wide) -> _Wide:
    """What a null logit leaves to the keys: 1 / (1 + exp(null - lse)), 0 where nothing was seen. Float64."""
    blind = np.isneginf(lse)
    seen: _Wide = np.exp(-np.logaddexp(0.0, null - np.where(blind, 0.0, lse)))
    return np.where(blind, 0.0, seen)


def _check_logits(name: str, x: _Wide) -> None:
    if np.isnan(x).any() or np.isposinf(x).any():
        raise ValueRange(f"{name} must hold finite numbers or -inf, got {x.min()} to {x.max()}", array=name)


def _stack(name: str, parts: Sequence[Floats] | Floats, axes: int) -> _Wide:
    expected = "[parts, N, Hq, Dv]" if axes == 4 else "[parts, N, Hq]"
    try:
        stacked = np.asarray(parts, np.float64)
    except ValueError:
        got = "parts of different shapes"
        raise InvalidShape(
            f"{name} must be {expected}, got {got}", field=name, got=got, expected=expected
        ) from None
    if stacked.ndim != axes:
        raise _wrong(name, stacked.shape, expected)
    return stacked


def _wrong(name: str, got: tuple[int, ...], expected: str) -> InvalidShape:
    return InvalidShape(
        f"{name} must be {expected}, got {list(got)}", field=name, got=str(list(got)), expected=expected
    )
