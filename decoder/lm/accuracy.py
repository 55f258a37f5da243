"""What a cache storage type does to a model's next-token distributions, beside float32 storage."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.errors import ValueRange
from rondel.decoder.lm.distributions import Rows, Wide
from rondel.decoder.spec import STORAGE_TYPES

REFERENCE: Final = "float32"
COMPARED: Final = tuple(storage for storage in STORAGE_TYPES if storage != REFERENCE)
"""The storage types that can lose something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """One storage type against float32: a row per predicted token, a number per continued prompt."""

    storage: str
    positions: NDArray[np.int64]
    """[rows] where in its context the predicted token stands."""
    rows: Rows
    """p is float32 storage, q is this one."""
    first_divergences: tuple[int, ...]
    """Index of the first token at which the two greedy continuations of a prompt differ; the number of
    tokens made when they do not."""
    seconds: float
    """Time that the passes with this storage and the comparisons took; float32's own is not in it."""

    @property
    def tokens(self) -> int:
        """Predicted tokens."""
        return len(self.positions)

    @property
    def prompts(self) -> int:
        """Continued prompts."""
        return len(self.first_divergences)

    @property
    def kl_mean(self) -> float:
        """Nats."""
        return float(self.rows.kl.mean())

    @property
    def kl_max(self) -> float:
        """Nats."""
        return float(self.rows.kl.max())

    @property
    def top1(self) -> float:
        """Share of the rows in which both hold the same token for the likeliest."""
        return float(self.rows.same_top.mean())

    @property
    def ppl(self) -> float:
        """Perplexity with this storage. Raises ValueRange when it is beyond float64."""
        return _in_range(math.exp, self.rows.surprise_q)

    @property
    def ppl_float32(self) -> float:
        """Perplexity with float32 storage. Raises ValueRange when it is beyond float64."""
        return _in_range(math.exp, self.rows.surprise_p)

    @property
    def ppl_delta(self) -> float:
        """ppl / ppl_float32 − 1; negative when this storage happens to predict better. Raises ValueRange."""
        return _in_range(math.expm1, self.rows.surprise_q - self.rows.surprise_p)

    @property
    def first_divergence_median(self) -> float:
        """Over the prompts; the mean of the middle two when their number is even."""
        return float(statistics.median(self.first_divergences))

    def kl_by_position(self) -> tuple[NDArray[np.int64], Wide]:
        """The positions, ascending, and the mean KL at each over the contexts."""
        positions, which = np.unique(self.positions, return_inverse=True)
        return positions, np.bincount(which, weights=self.rows.kl) / np.bincount(which)


def _in_range(function: Callable[[float], float], surprises: Wide) -> float:
    mean = float(surprises.mean())
    try:
        return function(mean)
    except OverflowError:
        raise ValueRange(f"the model's mean surprise of {mean:g} nats has no perplexity in float64") from None
