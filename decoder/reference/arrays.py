"""How the reference takes its arrays: as float64, of the shape they must have, without NaN."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rondel.decoder.errors import InvalidShape, ValueRange

Array = NDArray[np.float64]
Kind = TypeVar("Kind", bound=np.generic)


def wrong_shape(name: str, got: tuple[int, ...], expected: str) -> InvalidShape:
    return InvalidShape(
        f"{name} must be {expected}, got {list(got)}", field=name, got=str(list(got)), expected=expected
    )


def finite(name: str, x: ArrayLike, *, or_minus_infinity: bool = False) -> Array:
    """``x`` as float64. Raises ValueRange if it holds NaN or an infinity that it may not."""
    x64 = np.asarray(x, np.float64)
    if not (np.isfinite(x64) | (np.isneginf(x64) & or_minus_infinity)).all():
        wanted = "finite numbers or -inf" if or_minus_infinity else "finite numbers"
        raise ValueRange(f"{name} must hold {wanted}, got {x64.min()} to {x64.max()}", array=name)
    return x64


def tokens(name: str, x: ArrayLike, *, length: int | None = None, dim: int | None = None) -> Array:
    """``x`` as float64 [tokens, heads, dim]. Raises InvalidShape, ValueRange."""
    x64 = finite(name, x)
    free = x64.ndim == 3 and x64.shape[1] > 0 and x64.shape[2] > 0
    if not free or length not in (None, x64.shape[0]) or dim not in (None, x64.shape[2]):
        raise wrong_shape(name, x64.shape, f"[{length or 'tokens'}, heads, {dim or 'dim'}]")
    return x64


def spread(name: str, x: NDArray[Kind], shape: tuple[int, ...]) -> NDArray[Kind]:
    """``x`` broadcast to ``shape``. Raises InvalidShape."""
    try:
        return np.broadcast_to(x, shape)
    except ValueError:
        raise wrong_shape(name, x.shape, f"broadcastable to {list(shape)}") from None


def per_head(name: str, x: ArrayLike, heads: int) -> Array:
    """``x`` as float64 [Hq], -inf allowed. Raises InvalidShape, ValueRange."""
    x64 = finite(name, x, or_minus_infinity=True)
    if x64.shape != (heads,):
        raise wrong_shape(name, x64.shape, f"one number per query head, [{heads}]")
    return x64


def per_query_head(name: str, x: Array, query_heads: int) -> Array:
    """[M, Hkv, dim] -> [M, Hq, dim]: query head h gets kv head ``h // (Hq / Hkv)``. Raises InvalidShape."""
    if query_heads % x.shape[1]:
        raise wrong_shape(name, x.shape, f"[tokens, heads, dim] with heads dividing {query_heads}")
    return np.repeat(x, query_heads // x.shape[1], axis=1)
