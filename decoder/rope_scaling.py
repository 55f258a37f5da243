"""How a rotary embedding is stretched beyond the context that it was trained for.

All of these are fixed: a frequency depends on the description alone, never on how long a stream has become.
What depends on the length (dynamic NTK, LongRoPE) would turn keys that are already stored once more; it is
refused. A scaling gives the frequencies, [dim / 2] float64 in radians per position, and the magnitude that
turned elements are multiplied by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rondel.decoder.checks import real, whole
from rondel.decoder.errors import InvalidSpec

if TYPE_CHECKING:  # a description of a stream must not cost the import of NumPy
    import numpy as np
    from numpy.typing import NDArray

    Frequencies = NDArray[np.float64]

MAX_FACTOR: Final = 1e6
"""Largest factor of any scaling."""
LEAST: Final = 1e-6
"""Least divisor and beta, so that nothing computed from them overflows."""
MAX_CONTEXT: Final = 1 << 48
"""Largest context, in tokens, that a model can have been trained for."""
MAX_MAGNITUDE_FACTOR: Final = 4.0
"""Largest attention_factor. It enters a score twice: 16 keeps the largest score within float32."""


def plain(theta: float, dim: int) -> Frequencies:
    """``theta ** (-2i / dim)`` for pair i: the frequencies without any scaling (arXiv 2104.09864)."""
    import numpy as np

    frequencies: Frequencies = theta ** (np.arange(0, dim, 2, dtype=np.float64) / -dim)
    return frequencies


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Position interpolation (arXiv 2306.15595): all frequencies divided by ``factor``.

    Raises:
        InvalidSpec: factor is not from 1 to MAX_FACTOR.
    """

    factor: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", real("factor", self.factor, 1.0, MAX_FACTOR))

    @property
    def magnitude(self) -> float:
        return 1.0

    def frequencies(self, theta: float, dim: int) -> Frequencies:
        return plain(theta, dim) / self.factor


@dataclass(frozen=True, slots=True)
class NtkScaling:
    """NTK-aware scaling with a fixed factor: theta becomes ``theta * factor ** (dim / (dim - 2))``.

    The lowest frequency is divided by ``factor``, the highest stays. Needs at least two pairs.

    Raises:
        InvalidSpec: factor is not from 1 to MAX_FACTOR.
    """

    factor: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", real("factor", self.factor, 1.0, MAX_FACTOR))

    @property
    def magnitude(self) -> float:
        return 1.0

    def frequencies(self, theta: float, dim: int) -> Frequencies:
        if dim < 4:
            raise InvalidSpec(f"NTK scaling needs a dim of at least 4, got {dim}", field="dim")
        return plain(theta * self.factor ** (dim / (dim - 2)), dim)


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071), with the numbers that Hugging Face transformers computes.

    Pairs that turn more than ``beta_fast`` times within ``original_context`` keep their frequency, those
    that turn less than ``beta_slow`` times have it divided by ``factor``, a ramp over the pairs lies between.

    Raises:
        InvalidSpec: a number is out of range.
    """

    factor: float
    original_context: int
    """Tokens that the model was trained for before the stretch."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    """Multiplier of turned elements; None = 0.1 · ln(factor) + 1, and the field then holds that."""
    truncate: bool = True
    """Whether the ends of the ramp are rounded outwards to whole pairs."""

    def __post_init__(self) -> None:
        factor = real("factor", self.factor, 1.0, MAX_FACTOR)
        object.__setattr__(self, "factor", factor)
        whole("original_context", self.original_context, 1, MAX_CONTEXT)
        slow = real("beta_slow", self.beta_slow, LEAST, MAX_FACTOR)
        object.__setattr__(self, "beta_slow", slow)
        object.__setattr__(self, "beta_fast", real("beta_fast", self.beta_fast, slow, MAX_FACTOR))
        wanted = 0.1 * math.log(factor) + 1.0 if self.attention_factor is None else self.attention_factor
        magnitude = real("attention_factor", wanted, 0.0, MAX_MAGNITUDE_FACTOR, above=True)
        object.__setattr__(self, "attention_factor", magnitude)
        if not isinstance(self.truncate, bool):
            raise InvalidSpec(f"truncate must be true or false, got {self.truncate!r}", field="truncate")

    @property
    def magnitude(self) -> float:
        return 1.0 if self.attention_factor is None else self.attention_factor

    def frequencies(self, theta: float, dim: int) -> Frequencies:
        import numpy as np

        low, high = self._pair(self.beta_fast, theta, dim), self._pair(self.beta_slow, theta, dim)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        # dim - 1 and not dim / 2 - 1: what models were trained with.
        low, high = max(low, 0), min(high, dim - 1)
        if low > high:
            raise InvalidSpec(
                f"YaRN's ramp must begin before it ends, got pairs {low:g} to {high:g} of {dim // 2} from an "
                f"original_context of {self.original_context} and a theta of {theta:g}",
                field="original_context",
            )
        if low == high:
            high += 0.001
        stretched = np.clip((np.arange(dim // 2, dtype=np.float64) - low) / (high - low), 0.0, 1.0)
        kept = plain(theta, dim)
        return kept / self.factor * stretched + kept * (1.0 - stretched)

    def _pair(self, turns: float, theta: float, dim: int) -> float:
        """The pair, as a real number, that turns so many times within the original context."""
        return dim * math.log(self.original_context / (turns * 2.0 * math.pi)) / (2.0 * math.log(theta))


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """The scaling of Llama 3.1, with the numbers that Hugging Face transformers computes.

    A pair whose wavelength is below ``original_context / high_freq_factor`` keeps its frequency, one above
    ``original_context / low_freq_factor`` has it divided by ``factor``, and in between it is blended.

    Raises:
        InvalidSpec: a number is out of range, or high_freq_factor is not above low_freq_factor.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int
    """Tokens that the model was trained for before the stretch."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", real("factor", self.factor, 1.0, MAX_FACTOR))
        low = real("low_freq_factor", self.low_freq_factor, 0.0, MAX_FACTOR, above=True)
        object.__setattr__(self, "low_freq_factor", low)
        high = real("high_freq_factor", self.high_freq_factor, low, MAX_FACTOR, above=True)
        object.__setattr__(self, "high_freq_factor", high)
        whole("original_context", self.original_context, 1, MAX_CONTEXT)

    @property
    def magnitude(self) -> float:
        return 1.0

    def frequencies(self, theta: float, dim: int) -> Frequencies:
        import numpy as np

        kept = plain(theta, dim)
        turns = self.original_context * kept / (2.0 * math.pi)
        # One blend for all: 0 where a pair turns less than low_freq_factor times, 1 above high_freq_factor.
        share = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        share = np.clip(share, 0.0, 1.0)
        return (1.0 - share) * kept / self.factor + share * kept


@dataclass(frozen=True, slots=True)
class DivisorScaling:
    """A divisor for every pair, as in the ``rope_freqs`` tensor of GGUF files.

    Raises:
        InvalidSpec: a divisor is not from LEAST to MAX_FACTOR; or, when used, their number is not dim / 2.
    """

    divisors: tuple[float, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.divisors, tuple | list):
            raise InvalidSpec(f"divisors must be a tuple of numbers, got {self.divisors!r}", field="divisors")
        divisors = tuple(real("divisors", each, LEAST, MAX_FACTOR) for each in self.divisors)
        object.__setattr__(self, "divisors", divisors)

    @property
    def magnitude(self) -> float:
        return 1.0

    def frequencies(self, theta: float, dim: int) -> Frequencies:
        import numpy as np

        if len(self.divisors) != dim // 2:
            raise InvalidSpec(
                f"a dim of {dim} needs {dim // 2} divisors, got {len(self.divisors)}", field="divisors"
            )
        return plain(theta, dim) / np.array(self.divisors, np.float64)


Scaling = LinearScaling | NtkScaling | YarnScaling | Llama3Scaling | DivisorScaling
