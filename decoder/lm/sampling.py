"""Choosing a token from logits. The noise depends on (seed, token index) alone: a resumed run repeats it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.errors import InvalidSpec, ValueRange

MAX_TEMPERATURE: Final = 100.0
MAX_TOP_K: Final = (1 << 31) - 1
MAX_SEED: Final = (1 << 64) - 1
MAX_INDEX: Final = (1 << 64) - 1


def _real(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to choose. Order: temperature, then the top_k likeliest, then the smallest set of mass top_p.

    Raises:
        InvalidSpec: a setting is out of range.
    """

    temperature: float = 0.0
    """0 = greedy (the others are then without effect); up to 100."""
    top_p: float = 1.0
    """In (0, 1]; 1 = off."""
    top_k: int = 0
    """0 = off; below 2**31."""
    seed: int = 0
    """Unsigned, 64 bits."""

    def __post_init__(self) -> None:
        if not (_real(self.temperature) and 0.0 <= self.temperature <= MAX_TEMPERATURE):
            raise InvalidSpec(
                f"temperature is from 0 to {MAX_TEMPERATURE:g}, got {self.temperature!r}", field="temperature"
            )
        if not (_real(self.top_p) and 0.0 < self.top_p <= 1.0):
            raise InvalidSpec(f"top_p must be above 0 and at most 1, got {self.top_p!r}", field="top_p")
        if not (_whole(self.top_k) and 0 <= self.top_k <= MAX_TOP_K):
            raise InvalidSpec(f"top_k must be a whole number below 2**31, got {self.top_k!r}", field="top_k")
        if not (_whole(self.seed) and 0 <= self.seed <= MAX_SEED):
            raise InvalidSpec(f"seed must be a whole number below 2**64, got {self.seed!r}", field="seed")

    def choose(self, logits: NDArray[np.float32], index: int) -> tuple[int, float]:
        """The id of the chosen token and its log-probability.

        Args:
            logits: [vocab].
            index: number of the token in its generation, from 0; picks the noise.

        Returns:
            The id, and the natural log of the probability that the model itself (temperature 1, nothing
            left out) gives it. Among equal logits greedy takes the lowest id.

        Raises:
            ValueRange: a logit is not finite.
        """
        # A NaN anywhere makes both extremes NaN.
        if not (math.isfinite(logits.max()) and math.isfinite(logits.min())):
            raise ValueRange("the model's logits are not finite")
        wide = logits.astype(np.float64)
        token = int(wide.argmax()) if self.temperature == 0.0 else self._draw(wide, index)
        top = wide.max()
        return token, float(wide[token] - top - math.log(np.exp(wide - top).sum()))

    def _draw(self, logits: NDArray[np.float64], index: int) -> int:
        with np.errstate(over="ignore"):  # to -inf: as good as never
            scores = (logits - logits.max()) / self.temperature
        ids = self._candidates(scores)
        # Gumbel noise belongs to a token id, so it stays with it when the set of candidates changes.
        return int(ids[(scores[ids] + gumbel(self.seed, index, len(logits))[ids]).argmax()])

    def _candidates(self, scores: NDArray[np.float64]) -> NDArray[np.int64]:
        """The ids that may be drawn. Ties at an edge go to the lower id."""
        every = np.arange(len(scores))
        limit = self.top_k if self.top_k else len(scores)
        if limit >= len(scores) and self.top_p == 1.0:
            return every
        order = np.argsort(-scores, kind="stable")[:limit]
        if self.top_p < 1.0:
            mass = np.exp(scores[order]).cumsum()
            # The token that crosses the line belongs to the set.
            order = order[: int(np.searchsorted(mass, self.top_p * mass[-1])) + 1]
        return order


GREEDY: Final = Sampling()


def gumbel(seed: int, index: int, count: int) -> NDArray[np.float64]:
    """Standard Gumbel noise for token ids 0..count-1 of the token at ``index``, [count].

    Philox is counter-based: nothing needs to be drawn for the tokens before. Only its raw output is
    used, which NumPy promises to keep; its distributions may change between versions.
    """
    # Arrays, because NumPy turns a list with a number above 2**63 into floats.
    key, counter = np.array([seed, 0], np.uint64), np.array([0, index, 0, 0], np.uint64)
    raw = np.random.Philox(key=key, counter=counter).random_raw(count)
    uniform = (raw >> np.uint64(11)) * 2.0**-53
    noise: NDArray[np.float64] = -np.log(-np.log(np.maximum(uniform, 2.0**-54)))
    return noise
