"""What one attention call can ask for beyond the plain answer. Client, wire and session share it.

Letters: N query rows, Hq query heads, M columns of a bias or mask, S sinks, W window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.checks import integer
from rondel.decoder.errors import InvalidRequest, InvalidShape, ValueRange
from rondel.decoder.spec import MAX_LENGTH, MAX_MAGNITUDE, MAX_SCALE, LayerGroup

MAX_BIAS: Final = 1e38
"""Largest magnitude of a bias that is added: float32 has room for every score beside it. What is below hides."""
MAX_RANGES: Final = 1 << 16
"""Most key ranges of one call."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttendOptions:
    """How one call scores and masks: scale and temperature, softcap, ALiBi and bias, masks, softmax. In that
    order; :func:`rondel.decoder.reference.attend` says in float64 what each means.

    Raises:
        InvalidRequest: a number or a range is out of bounds.
        InvalidShape: an array is not of its type or number of axes.
        ValueRange: an array holds what it may not.
    """

    scale: float | None = None
    """Multiplier of q·k, above 0, at most 1e4; None = the group's."""
    temperature: float = 1.0
    """Divides the scores, before the softcap; above 0. scale / temperature is at most 1e4."""
    softcap: float | None = None
    """c bends a score s to c·tanh(s/c); from 1e-15 to 1e15, None = it stays."""
    alibi: NDArray[np.float32] | None = None
    """float32 [Hq]: slopes (arXiv 2108.12409). Adds slope·(j - p) for a key at j; a sink's distance counts
    from min(p, S + W - 1). For rows with positions only."""
    bias: NDArray[np.float32] | None = None
    """float32 [Hq or 1, N or 1, M], added to the scores; -inf hides a key,
    and so does everything below -1e38. Column m is the key at position
    ``bias_first`` + m, and there must be one for every key that a row may see, sinks included."""
    mask: NDArray[np.bool_] | None = None
    """bool [Hq or 1, N or 1, M], its columns as those of ``bias``; False hides a key."""
    bias_first: int = 0
    """Position of the first column of ``bias`` and ``mask``."""
    ranges: tuple[tuple[int, int], ...] | None = None
    """Only keys at positions in one of these [low, high) are visible, sinks included: padding, block lists.
    Ascending, disjoint, none empty; () hides everything. None = all."""
    null_logit: NDArray[np.float32] | None = None
    """float32 [Hq]: one more score whose value is zero. It takes its share of ``out`` and is not in lse; -inf
    takes none."""

    def __post_init__(self) -> None:
        number = _number("temperature", self.temperature, 0.0, math.inf)
        object.__setattr__(self, "temperature", number)
        if self.scale is not None:
            number = _number("scale", self.scale, 0.0, MAX_SCALE)
            object.__setattr__(self, "scale", number)
        if self.softcap is not None:
            number = _number("softcap", self.softcap, 0.0, MAX_MAGNITUDE)
            if number < 1 / MAX_MAGNITUDE:
                raise InvalidRequest(f"softcap must be at least 1e-15, got {number!r}", field="softcap")
            object.__setattr__(self, "softcap", number)
        _check("alibi", self.alibi, np.float32, 1)
        _check("bias", self.bias, np.float32, 3)
        _check("mask", self.mask, np.bool_, 3)
        _check("null_logit", self.null_logit, np.float32, 1)
        _check_values(self.alibi, "alibi", MAX_MAGNITUDE, finite=True)
        _check_values(self.bias, "bias", MAX_BIAS)
        _check_values(self.null_logit, "null_logit", MAX_BIAS)
        first = integer("bias_first", self.bias_first, least=0)
        if first > MAX_LENGTH:
            raise InvalidRequest(f"bias_first must be at most {MAX_LENGTH}, got {first}", field="bias_first")
        object.__setattr__(self, "bias_first", first)
        if self.ranges is not None:
            object.__setattr__(self, "ranges", _ranges(self.ranges))

    def check(self, group: LayerGroup, rows: int) -> None:
        """Whether a call with so many rows on a layer of this group may have these options.

        Raises:
            InvalidShape: an array is not of the shape that it must have.
            InvalidRequest: scale / temperature is too large, or ALiBi is asked of rows without positions.
        """
        heads = group.query_heads
        for name in ("alibi", "null_logit"):
            array = getattr(self, name)
            if array is not None and array.shape != (heads,):
                raise _wrong(name, array, f"{array.dtype} [{heads}]")
        for name in ("bias", "mask"):
            array = getattr(self, name)
            if array is not None and not (array.shape[0] in (1, heads) and array.shape[1] in (1, rows)):
                raise _wrong(name, array, f"{array.dtype} [{heads} or 1, {rows} or 1, columns]")
        if self.score_scale(group) > MAX_SCALE:
            raise InvalidRequest(
                f"scale / temperature must be at most {MAX_SCALE:g}, got {self.score_scale(group):g}",
                field="temperature",
            )
        if self.alibi is not None and not group.placed:
            raise InvalidRequest(
                "alibi must be None where rows have no positions (causal=False without a window), got slopes",
                field="alibi",
            )

    def score_scale(self, group: LayerGroup) -> float:
        """What q·k is multiplied by: scale / temperature."""
        return (group.score_scale if self.scale is None else self.scale) / self.temperature

    def check_columns(self, low: int, high: int) -> None:
        """Raises InvalidShape unless bias and mask have a column for every position from ``low`` to
        ``high`` - 1."""
        for name in ("bias", "mask"):
            array = getattr(self, name)
            if array is None or low >= high:
                continue
            if self.bias_first > low or self.bias_first + array.shape[2] < high:
                got = f"columns for positions {self.bias_first} to {self.bias_first + array.shape[2] - 1}"
                expected = f"one for every key the rows may see, {low} to {high - 1}"
                raise InvalidShape(
                    f"{name} must have {expected}, got {got}", field=name, got=got, expected=expected
                )


def checked_options(options: object) -> AttendOptions | None:
    """What a call may be given as ``options``. Raises InvalidRequest."""
    if options is None or isinstance(options, AttendOptions):
        return options
    raise InvalidRequest(
        f"options must be AttendOptions or None, got {type(options).__name__}", field="options"
    )


def _number(name: str, value: object, above: float, most: float) -> float:
    """``value`` as a float above one bound and not beyond the other, nor infinite. Raises InvalidRequest."""
    if isinstance(value, np.floating | np.integer):
        value = value.item()
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    # The comparison comes before float(): an int too large for one is refused like any other.
    if not fits or not above < value <= min(most, 1e300):  # type: ignore[operator]
        bound = "and finite" if most == math.inf else f"and at most {most:g}"
        raise InvalidRequest(f"{name} must be above {above:g} {bound}, got {value!r}", field=name)
    return float(value)  # type: ignore[arg-type]


def _wrong(name: str, x: object, expected: str) -> InvalidShape:
    got = f"{x.dtype} {list(x.shape)}" if isinstance(x, np.ndarray) else type(x).__name__
    return InvalidShape(f"{name} must be {expected}, got {got}", field=name, got=got, expected=expected)


def _check(name: str, x: object, dtype: type[np.generic], axes: int) -> None:
    if x is None or (isinstance(x, np.ndarray) and x.dtype == dtype and x.ndim == axes):
        return
    shape = "[query heads]" if axes == 1 else "[query heads or 1, rows or 1, columns]"
    raise _wrong(name, x, f"{np.dtype(dtype)} {shape} or None")


def _check_values(x: NDArray[Any] | None, name: str, most: float, *, finite: bool = False) -> None:
    """Raises ValueRange for NaN, what is above ``most`` and, if ``finite``, what is below -``most``."""
    if x is None:
        return
    # NaN passes through max() and fails the comparison.
    if not (x.max(initial=-np.inf) <= most and (not finite or x.min(initial=np.inf) >= -most)):
        wanted = f"numbers of magnitude at most {most:g}" if finite else f"numbers up to {most:g}, or -inf"
        got = f"{x.min()} to {x.max()}"
        raise ValueRange(f"{name} must hold {wanted}, got {got}", array=name, got=got, expected=wanted)


def _ranges(ranges: object) -> tuple[tuple[int, int], ...]:
    expected = "pairs (low, high) of integers, low < high, ascending and disjoint"
    if not isinstance(ranges, tuple | list) or len(ranges) > MAX_RANGES:
        got = f"{len(ranges)} of them" if isinstance(ranges, tuple | list) else repr(ranges)
        raise InvalidRequest(f"ranges must be at most {MAX_RANGES} {expected}, got {got}", field="ranges")
    checked: list[tuple[int, int]] = []
    end = 0
    for pair in ranges:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidRequest(f"ranges must be {expected}, got {pair!r} in it", field="ranges")
        low, high = (integer("ranges", bound) for bound in pair)
        if not end <= low < high <= MAX_LENGTH:
            raise InvalidRequest(
                f"ranges must be {expected}, from 0 to {MAX_LENGTH}, got ({low}, {high}) after {end}",
                field="ranges",
            )
        checked.append((low, high))
        end = high
    return tuple(checked)
