"""Checks of the numbers in a description: each names the field that is wrong and what would be right."""

from __future__ import annotations

import math

from rondel.decoder.errors import InvalidSpec


def whole(name: str, value: object, low: int, high: int) -> int:
    """``value`` if it is an int, no bool, from ``low`` to ``high``. Raises InvalidSpec."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidSpec(f"{name} must be an integer from {low} to {high}, got {value!r}", field=name)
    return value


def real(name: str, value: object, low: float, high: float, *, above: bool = False) -> float:
    """``value`` as a float if it is a number, no bool, from ``low`` (with ``above``: above it) to ``high``.

    Raises:
        InvalidSpec: it is not; NaN and the infinities never are.
    """
    # The comparison comes before float(): an int too large for one is refused like any other.
    fits = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    if not fits or (above and value == low) or not math.isfinite(number := float(value)):  # type: ignore[arg-type]
        bounds = f"in ({low:g}, {high:g}]" if above else f"from {low:g} to {high:g}"
        raise InvalidSpec(f"{name} must be {bounds}, got {value!r}", field=name)
    return number
