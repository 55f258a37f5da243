"""What became of an endless stream: perplexities by segment of the text, memory, time per token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from rondel.decoder.errors import ValueRange
from rondel.decoder.lm.distributions import Wide


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Sampled predictions of one stretch of the text; all arrays are [samples], surprises in nats."""

    start: int
    stop: int
    """Positions of the stretch, start to stop - 1."""
    positions: tuple[int, ...]
    """The predictions sampled: of the token after each of these."""
    stream: Wide
    """-log p of what did come, by the stream with window and sinks."""
    no_sinks: Wide
    """The same by a stream whose window is as many tokens as window and sinks together."""
    recomputed: Wide
    """The same by the model run on as many last tokens from scratch."""

    @property
    def ppl_stream(self) -> float:
        """Perplexity of the stream. Raises ValueRange when it is beyond float64."""
        return _exp(self.stream)

    @property
    def ppl_recomputed(self) -> float:
        """Perplexity from scratch. Raises ValueRange."""
        return _exp(self.recomputed)

    @property
    def ppl_no_sinks(self) -> float:
        """Perplexity without sinks. Raises ValueRange."""
        return _exp(self.no_sinks)

    @property
    def ppl_ratio(self) -> float:
        """ppl_stream / ppl_recomputed. Raises ValueRange."""
        return _exp(self.stream - self.recomputed)

    @property
    def ppl_ratio_no_sinks(self) -> float:
        """ppl_no_sinks / ppl_recomputed. Raises ValueRange."""
        return _exp(self.no_sinks - self.recomputed)

    @classmethod
    def joined(cls, parts: tuple[Self, ...]) -> Self:
        """Several segments as one: what is said of the whole stream."""
        return cls(
            start=parts[0].start,
            stop=parts[-1].stop,
            positions=tuple(at for part in parts for at in part.positions),
            stream=np.concatenate([part.stream for part in parts]),
            no_sinks=np.concatenate([part.no_sinks for part in parts]),
            recomputed=np.concatenate([part.recomputed for part in parts]),
        )


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory at one moment, in bytes."""

    resident: int
    """Pages that the stream has in use."""
    process: int | None
    """Resident set of the whole process; None = the system does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endless:
    """One stream of a whole text, with a window and sinks."""

    tokens: int
    window: int
    sinks: int
    storage: str
    segments: tuple[Segment, ...]
    wrapped: Footprint | None
    """When the ring had gone round once; None = it never did."""
    ended: Footprint
    """With all tokens in the stream."""
    fresh_seconds: float
    """Median time of a token in a stream that has just gone round."""
    long_seconds: float
    """Median time of a token in the stream that has them all, the two taking turns."""

    @property
    def whole(self) -> Segment:
        """All sampled predictions together."""
        return Segment.joined(self.segments)

    @property
    def token_time_ratio(self) -> float:
        """A token of the long stream over one of the fresh stream."""
        return self.long_seconds / self.fresh_seconds


def _exp(surprises: Wide) -> float:
    mean = float(surprises.mean())
    try:
        return math.exp(mean)
    except OverflowError:
        raise ValueRange(f"a mean of {mean:g} nats has no perplexity in float64") from None
