"""Comparators that name the worst element, and short lists of combinations. They have tests of their own."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

HULL = {"int8": 2.0**-15, "float32": 1e-6}
"""How far rounding may carry an output out of the convex hull, as a fraction of the largest |v|.

int8: one unit of an int16 weight; the denominator is summed from the weights before they are rounded.
"""
TINY = 2.0**-146
"""Rounding of denormal outputs."""


def assert_near(got: NDArray[Any], want: NDArray[Any], bound: NDArray[Any] | float, name: str) -> float:
    """Every element within its bound (infinities equal, no NaN); names the worst. Returns the worst share."""
    assert got.shape == want.shape, f"{name}: shape {got.shape}, expected {want.shape}"
    assert got.dtype == np.float32, f"{name}: dtype {got.dtype}, expected float32"
    assert not np.isnan(got).any(), f"{name}: NaN at {_first(np.isnan(got))}"
    limit = np.broadcast_to(np.asarray(bound, np.float64), want.shape)
    with np.errstate(invalid="ignore"):
        error = np.where(got == want, 0.0, np.abs(got.astype(np.float64) - want))
    share = np.divide(error, limit, out=np.where(error > 0, np.inf, 0.0), where=limit > 0)
    worst = float(share.max(initial=0.0))
    if worst > 1.0:
        at = tuple(int(i) for i in np.unravel_index(int(share.argmax()), share.shape))
        raise AssertionError(
            f"{name}: {worst:.3g} of the bound at {at}: got {got[at]!r}, expected {want[at]!r}, "
            f"error {error[at]:.3g}, bound {limit[at]:.3g}; {(share > 1).sum()} of {share.size} are beyond"
        )
    return worst


def assert_same_bits(got: NDArray[Any], want: NDArray[Any], name: str) -> None:
    """The same shape, dtype and bytes: 0.0 and -0.0 differ, a NaN equals itself."""
    assert got.shape == want.shape, f"{name}: shape {got.shape}, expected {want.shape}"
    assert got.dtype == want.dtype, f"{name}: dtype {got.dtype}, expected {want.dtype}"
    integer = f"u{got.dtype.itemsize}"
    other = np.ascontiguousarray(got).view(integer) != np.ascontiguousarray(want).view(integer)
    if other.any():
        at = _first(other)
        raise AssertionError(
            f"{name}: {other.sum()} of {other.size} elements differ, first at {at}: "
            f"got {got[at]!r}, expected {want[at]!r}"
        )


def assert_in_hull(out: NDArray[Any], values: NDArray[Any], slack: float, name: str) -> None:
    """Outputs [N, Hq, Dv] lie between the least and largest of values [M, Hkv, Dv] in every channel.

    ``slack`` is a fraction of the largest |value| of the kv head.
    """
    group = out.shape[1] // values.shape[1]
    room = np.repeat(np.abs(values).max(axis=(0, 2)), group)[None, :, None] * slack + TINY
    low, high = (np.repeat(x, group, axis=0)[None] for x in (values.min(axis=0), values.max(axis=0)))
    outside = ~((out >= low - room) & (out <= high + room))
    assert not outside.any(), f"{name}: {outside.sum()} outputs outside the hull, first at {_first(outside)}"


def _first(where: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(where)[0])


def covering(factors: Mapping[str, Sequence[Any]], *, seed: int = 0, tries: int = 40) -> list[dict[str, Any]]:
    """A short list of combinations in which every pair of values of two factors occurs together."""
    names, rng = list(factors), random.Random(seed)
    missing = {
        ((a, x), (b, y))
        for a, b in itertools.combinations(names, 2)
        for x, y in itertools.product(range(len(factors[a])), range(len(factors[b])))
    }

    def pairs(row: Mapping[str, int]) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
        return itertools.combinations([(name, row[name]) for name in names], 2)

    rows = []
    while missing:
        pinned = dict(min(missing))
        best = max(
            (
                {name: pinned.get(name, rng.randrange(len(values))) for name, values in factors.items()}
                for _ in range(tries)
            ),
            key=lambda row: sum(pair in missing for pair in pairs(row)),
        )
        missing.difference_update(pairs(best))
        rows.append({name: factors[name][index] for name, index in best.items()})
    return rows
