"""What one attention call did, stage by stage, as numbers to look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.checks import integer

MAX_CELLS: Final = 1 << 24
"""Most cells, rows x heads x keys, of one explanation: each takes 16 bytes, more while it is made."""

Floats = NDArray[np.float32]
Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """One call's scores and weights, float32. N rows, M keys, Hq query heads.

    The weights say where the output was mixed from. They do not say why.
    """

    positions: Positions
    """Of the rows, [N]; -1 where rows have none."""
    key_positions: Positions
    """Of the keys that any row sees by its place, ascending, [M]."""
    raw: Floats
    """scale / temperature · q·k as the kernels have it, [Hq, N, M]; -inf where the row does not see the key
    by its place (causality, window)."""
    capped: Floats
    """After the softcap."""
    masked: Floats
    """After ALiBi and bias, -inf where not visible: what the softmax is taken of."""
    weights: Floats
    """[Hq, N, M], 0 where not visible. Along M they sum to 1 - null_weight; to 0 where nothing is visible."""
    null_weight: Floats
    """What the null logit took, [N, Hq]: 0 without one; with one, all of it where nothing is visible."""
    lse: Floats
    """Natural log of Σ exp(masked), without the null logit, [N, Hq]; -inf where nothing is visible."""

    def entropy(self) -> Floats:
        """-Σ α ln α of every row and head, [N, Hq], in nats: 0 = one key has it all, ln M = all alike.

        α are the weights without the null logit's share. 0 where nothing is visible.
        """
        masked = self.masked.astype(np.float64)
        top = masked.max(axis=-1, initial=-np.inf, keepdims=True)
        shifted = masked - np.where(np.isneginf(top), 0.0, top)
        e = np.exp(shifted)
        total = np.maximum(e.sum(axis=-1), 1.0)  # at least 1 already where anything is visible
        # ln α = shifted - ln Σ e, and the α sum to 1; 0 · -inf is to be 0.
        mean = (e * np.where(np.isneginf(shifted), 0.0, shifted)).sum(axis=-1) / total
        gained: Floats = np.maximum(np.log(total) - mean, 0.0).T.astype(np.float32)
        return gained

    def top_k(self, count: int) -> tuple[Positions, Floats]:
        """The keys of the largest weights: (positions int64 [N, Hq, count], weights [N, Hq, count]).

        Largest first, of equal weights the smaller position first. Only visible keys count; where they are
        fewer than ``count``, position -1 and weight 0 fill up.

        Raises:
            InvalidRequest: ``count`` is no integer of at least 1.
        """
        count = integer("count", count, least=1)
        ranked = np.where(np.isneginf(self.masked), np.float32(-1), self.weights)
        # Positions ascend, so a stable sort leaves equal weights in the right order.
        order = np.argsort(-ranked, axis=-1, kind="stable")[..., :count]
        best = np.take_along_axis(ranked, order, axis=-1)
        at = np.where(best < 0, -1, self.key_positions[order])
        fill = [(0, 0), (0, 0), (0, count - order.shape[-1])]
        positions = np.pad(at, fill, constant_values=-1).transpose(1, 0, 2)
        weights = np.pad(np.maximum(best, 0), fill).transpose(1, 0, 2)
        return np.ascontiguousarray(positions), np.ascontiguousarray(weights)
