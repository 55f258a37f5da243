"""Which keys a row sees: the operator's causal and window attributes in terms of a layer group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cases import Attributes

MASK: Final = "mask"
"""The name of a sight that no layer group has."""
MASK_REASON: Final = (
    "rows before a stream's first key or after its last have no position in it, and scores are not computed "
    "for keys that a group hides; there every key is seen and the call's mask hides the rest"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """The fields of a LayerGroup and the position to attend at, or a mask where a group cannot say it."""

    name: str
    """How it is said: ``all``, ``causal``, ``window``, ``two-sided`` or ``mask``."""
    causal: bool = False
    window: int | None = None
    window_right: int = 0
    position: int | None = None
    mask: NDArray[np.bool_] | None = None  # [1, N, T]


def sight(attributes: Attributes, offset: int, rows: int, total: int, *, hidden_scores: bool) -> Sight:
    """How ``rows`` queries, the first at position ``offset``, see ``total`` stored keys.

    The operator lets a row at p see p - left to p + right, and a causal one nothing after p; a bound of -1 is
    none. A group says the same where it can (MASK_REASON says where it cannot). With ``hidden_scores`` the
    case asks for the scores of keys that its rows may not see.
    """
    left, right = attributes.left_window_size, attributes.right_window_size
    if attributes.is_causal:
        right = 0
    if left < 0 and right < 0:
        return Sight(name="all")
    if hidden_scores or offset < 0 or offset + rows > total:
        return Sight(name=MASK, mask=_mask(left, right, offset, rows, total))
    if right == 0:
        window = left + 1 if left >= 0 else None
        return Sight(
            name="causal" if window is None else "window", causal=True, window=window, position=offset
        )
    return Sight(
        name="two-sided",
        window=left + 1 if left >= 0 else offset + rows,
        window_right=right if right >= 0 else total,
        position=offset,
    )


def _mask(left: int, right: int, offset: int, rows: int, total: int) -> NDArray[np.bool_]:
    ahead = np.arange(total) - (offset + np.arange(rows))[:, None]  # how far a key lies after its row
    seen = np.ones_like(ahead, dtype=np.bool_)
    if left >= 0:
        seen &= ahead >= -left
    if right >= 0:
        seen &= ahead <= right
    return seen[None]
