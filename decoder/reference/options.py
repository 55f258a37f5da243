"""Everything that can be asked of one attention call, as one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from numpy.typing import ArrayLike


class Options(TypedDict, total=False):
    """The keyword options of :func:`attend`, :func:`explain`, :func:`hard_lookup` and :func:`backward`.

    They act in this order: scale and temperature, softcap, ALiBi and bias, what is not visible, softmax.
    """

    scale: float | None
    """Multiplier of q·k; None = 1/√Dk."""
    temperature: float
    """Divides the scaled scores; above 0, default 1. Ahead of softcap and bias, which it leaves alone."""
    softcap: float | None
    """c bends a score s to ``c·tanh(s/c)``; above 0."""
    alibi: ArrayLike | None
    """Slopes [Hq] (arXiv 2108.12409): adds slope · (j - p), see :func:`distances`."""
    bias: ArrayLike | None
    """Added to the scores, broadcast to [Hq, N, M]; -inf hides a key."""
    mask: ArrayLike | None
    """Bool, broadcast to [Hq, N, M]; False hides a key."""
    ranges: Sequence[tuple[int, int]] | None
    """Key positions [low, high) that exist for all rows, their union: padding, block lists. None = all."""
    causal: bool
    """False = every key is seen (then no window and no sinks). Default True."""
    window: int | None
    """W: positions that a row sees, its own included. None = all."""
    window_right: int
    """Positions after its own that a row sees. Default 0."""
    sinks: int
    """S: the first positions of the stream, which the window does not hide. Default 0."""
    null_logit: ArrayLike | None
    """[Hq]: one more score per row whose value is zero. It takes weight, and is not in lse."""
    position: int | None
    """Position of the first row; None = the rows are the last N positions."""
    key_positions: ArrayLike | None
    """Ascending positions of the keys, [M]; None = 0 to M-1. For rings that dropped some."""
