"""How well a stream's storage suits its keys, in three numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WORRYING_ERROR: Final = 0.08
"""A score error beyond this defeats the scheme. One channel of 64 that is 50 times the others makes 0.12; the
keys of a real model (SmolLM2-135M) 0.05 in its worst head uncentred, 0.03 centred, and it bears both."""


class QualityWarning(UserWarning):
    """A stream's keys defeat its storage: attention is not what exact keys would give."""


@dataclass(frozen=True, slots=True)
class Quality:
    """What int8 storage makes of a stream's keys; each number is that of the worst layer and kv head.

    Told by the newest full page of each layer. What is never centred does not count: the sinks, and the first
    page of a centred group.
    """

    score_error: float
    """Estimated error of a score that all channels have an equal share in, relative to how such scores spread
    over the keys: 0.006 for Gaussian keys of 64 channels, 1 = nothing is left of a typical channel."""
    worst_layer: int
    """The layer with that score error."""
    outlier_ratio: float
    """Root mean square of the largest channel over that of the median channel, as the codes see them, after
    centring: about 1 for Gaussian keys; infinite if only few channels are ever used."""
    capped_channels: int
    """Channels, of all kv heads and layers, so large that centring brings them down by its most, 2**20. Codes
    are never clipped: a row's scale is made for its largest number."""

    @property
    def worrying(self) -> bool:
        """Whether the keys defeat the scheme."""
        return self.score_error > WORRYING_ERROR or self.capped_channels > 0

    def __str__(self) -> str:
        return (
            f"score error {self.score_error:.2g} (layer {self.worst_layer}), "
            f"outlier ratio {self.outlier_ratio:.3g}, {self.capped_channels} capped channels"
        )
