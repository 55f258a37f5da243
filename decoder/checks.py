"""Checks of the numbers in descriptions and calls: each names what is wrong and what would be right."""

from __future__ import annotations

import math
import operator
from typing import Final, SupportsIndex

from rondel.decoder.errors import InvalidRequest, InvalidSpec

VERIFY: Final = ("full", "tail")
"""How much of a stream in a file is looked at when it is attached to: all tokens that can be read, or those
in the last page of each layer."""


def checked_verify(verify: object) -> bool:
    """Whether all tokens are meant. Raises InvalidSpec unless it is one of VERIFY."""
    if verify not in VERIFY:
        raise InvalidSpec(f"verify must be one of {', '.join(VERIFY)}, got {verify!r}", field="verify")
    return verify == "full"


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


def integer(name: str, value: object, *, least: int | None = None) -> int:
    """``value`` as an int, if it is a whole number (NumPy's included), no bool, and not below ``least``.

    Raises:
        InvalidRequest: it is not.
    """
    if type(value) is int and (least is None or value >= least):
        return value  # the usual case, on every call's path; the protocol check below takes microseconds
    if not isinstance(value, bool) and isinstance(value, SupportsIndex):
        number = operator.index(value)
        if least is None or number >= least:
            return number
    bound = "" if least is None else f" of at least {least}"
    raise InvalidRequest(f"{name} must be an integer{bound}, got {value!r}", field=name)
