"""Rotary position (arXiv 2104.09864): pairs of a head's elements turned by position times frequency.

Angles are float64. Their error is that of one product, at most ``position * frequency * 2**-53``: 1e-7 at
position 1e9 for the fastest pair, 0.03 at 2**48. (The rounding of a frequency is the same at every position
and moves nothing.) Cosine and sine reduce the angle exactly; an explicit reduction modulo 2π would only add
the error of π. The turn is float64 too and rounded once, to float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, get_args

from rondel.decoder.checks import real, whole
from rondel.decoder.errors import InvalidShape, InvalidSpec
from rondel.decoder.rope_config import scaling_of
from rondel.decoder.rope_scaling import Scaling, plain

if TYPE_CHECKING:  # a description of a stream must not cost the import of NumPy
    import numpy as np
    from numpy.typing import NDArray

    from rondel.decoder.rope_scaling import Frequencies

MAX_DIM: Final = 1024
"""Most elements per head."""
MAX_THETA: Final = 1e12
LEAST_THETA: Final = 1.001
"""YaRN divides by its logarithm."""

_BLOCK: Final = 16
"""Tokens turned at once: the float64 intermediates stay in the cache (half the time of 256 at 40 × 128)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """A rotary embedding: which elements of a head are turned, and how fast.

    Pair i is turned by ``position * theta ** (-2i / dim)``, as ``scaling`` changes that.

    Raises:
        InvalidSpec: a field is out of range, or they do not go together.
    """

    theta: float = 10_000.0
    """The frequency base, from LEAST_THETA to MAX_THETA."""
    dim: int | None = None
    """The first ``dim`` elements of a head are turned, the others stay; even. None = the whole head."""
    interleaved: bool = False
    """False: pair i is elements i and i + dim / 2 (Hugging Face). True: 2i and 2i + 1 (GGUF, the paper)."""
    scaling: Scaling | None = None
    _frequencies: Frequencies | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "theta", real("theta", self.theta, LEAST_THETA, MAX_THETA))
        if not isinstance(self.interleaved, bool):
            raise InvalidSpec(
                f"interleaved must be true or false, got {self.interleaved!r}", field="interleaved"
            )
        if self.scaling is not None and not isinstance(self.scaling, Scaling):
            raise InvalidSpec(
                f"scaling must be None or one of {', '.join(kind.__name__ for kind in get_args(Scaling))}, "
                f"got {self.scaling!r}",
                field="scaling",
            )
        frequencies = None
        if self.dim is not None:
            if whole("dim", self.dim, 2, MAX_DIM) % 2:
                raise InvalidSpec(f"dim must be even, got {self.dim}", field="dim")
            scaling = self.scaling
            frequencies = (
                plain(self.theta, self.dim) if scaling is None else scaling.frequencies(self.theta, self.dim)
            )
            frequencies.flags.writeable = False
        object.__setattr__(self, "_frequencies", frequencies)

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, object] | None,
        *,
        theta: float | None = None,
        dim: int | None = None,
        interleaved: bool = False,
        context: int | None = None,
    ) -> Rope:
        """The embedding that a Hugging Face ``rope_scaling`` or ``rope_parameters`` entry describes.

        Args:
            config: the entry; None or empty = no scaling.
            theta: the model's ``rope_theta``; the entry's own, where it has one, must be the same. None =
                the entry's, else 10000.
            dim: see :class:`Rope`; needed where the entry has a ``partial_rotary_factor`` other than 1.
            interleaved: see :class:`Rope`.
            context: the model's ``max_position_embeddings``; YaRN entries without an original context and
                those without a factor need it.

        Raises:
            InvalidSpec: the type depends on the length (dynamic, longrope) or is unknown, a key is missing,
                unknown or out of range.
        """
        entry = dict(config or {})
        own = entry.pop("rope_theta", None)
        if own is not None and theta is not None and own != theta:
            raise InvalidSpec(f"the entry's rope_theta must be {theta!r}, got {own!r}", field="theta")
        base = next((each for each in (theta, own) if each is not None), 10_000.0)
        partial = entry.pop("partial_rotary_factor", None)
        if partial not in (None, 1) and dim is None:
            raise InvalidSpec(
                f"an entry with a partial_rotary_factor needs the dim that it comes to, got {partial!r}",
                field="dim",
            )
        return cls(
            theta=real("theta", base, LEAST_THETA, MAX_THETA),
            dim=dim,
            interleaved=interleaved,
            scaling=scaling_of(entry, context),
        )

    def of_head(self, key_dim: int) -> Rope:
        """The same for heads of ``key_dim`` elements: ``dim`` is no longer None.

        Raises:
            InvalidSpec: dim is larger than that, or None and key_dim odd, or the scaling does not fit.
        """
        if self.dim is None:
            return replace(self, dim=key_dim)
        if self.dim > key_dim:
            raise InvalidSpec(f"dim must be at most the key_dim of {key_dim}, got {self.dim}", field="dim")
        return self

    def frequencies(self) -> Frequencies:
        """Radians per position, [dim / 2] float64, read-only. Raises InvalidSpec while dim is None."""
        if self._frequencies is None:
            raise InvalidSpec("frequencies need a dim, got None (see of_head)", field="dim")
        return self._frequencies

    def rotate(self, x: NDArray[np.float32], positions: NDArray[np.int64]) -> NDArray[np.float32]:
        """A turned C-ordered copy of x [..., tokens, heads, key_dim] float32 at ``positions`` [tokens].

        Elements beyond ``dim`` are copied. A token's bits depend on its elements and its position alone. The
        last bit of a cosine is the C library's: on another machine an element in some 1e8 may be rounded
        the other way.

        Raises:
            InvalidShape: x is no such array, or there are not as many positions as tokens.
            InvalidSpec: dim does not fit key_dim.
        """
        import numpy as np

        if not isinstance(x, np.ndarray) or x.dtype != np.float32 or x.ndim < 3:
            got = f"{x.dtype} {list(x.shape)}" if isinstance(x, np.ndarray) else type(x).__name__
            expected = "float32 [..., tokens, heads, key_dim]"
            raise InvalidShape(f"x must be {expected}, got {got}", field="x", got=got, expected=expected)
        if positions.shape != x.shape[-3:-2]:
            shape, expected = str(list(positions.shape)), str(list(x.shape[-3:-2]))
            raise InvalidShape(
                f"positions must be {expected}, got {shape}", field="positions", got=shape, expected=expected
            )
        rope = self.of_head(x.shape[-1])
        frequencies = rope.frequencies()
        dim = 2 * len(frequencies)
        first, second = (
            (slice(0, dim, 2), slice(1, dim, 2))
            if self.interleaved
            else (slice(0, dim // 2), slice(dim // 2, dim))
        )
        turned = np.empty(x.shape, np.float32)
        if dim < x.shape[-1]:
            turned[..., dim:] = x[..., dim:]
        for start in range(0, len(positions), _BLOCK):
            rows = slice(start, start + _BLOCK)
            angles = positions[rows, None, None] * frequencies
            cos, sin = np.cos(angles), np.sin(angles)
            if self.scaling is not None and self.scaling.magnitude != 1.0:
                cos *= self.scaling.magnitude
                sin *= self.scaling.magnitude
            # Real products, not complex ones: NumPy fuses those on some processors, in the middle of an array
            # and not at its ends, and a token's bits would depend on its place in the call.
            a, b = x[..., rows, :, first], x[..., rows, :, second]
            turned[..., rows, :, first] = a * cos - b * sin
            turned[..., rows, :, second] = b * cos + a * sin
        return turned
