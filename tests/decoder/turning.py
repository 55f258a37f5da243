"""A rotary embedding once more: angles in 60 digits, one pair at a time, no code of the one tested."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal, localcontext

import numpy as np
from numpy.typing import ArrayLike, NDArray

PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")


def reduced(position: int, frequency: Decimal | float) -> float:
    """The angle, modulo 2π, to the last bit but one."""
    with localcontext() as context:
        context.prec = 60
        return float(position * Decimal(frequency) % (2 * PI))


def exact(theta: float, dim: int) -> list[Decimal]:
    """theta ** (-2i / dim) to 60 digits."""
    with localcontext() as context:
        context.prec = 60
        return [Decimal(theta) ** (Decimal(-2 * i) / dim) for i in range(dim // 2)]


def turn(
    x: ArrayLike,
    positions: Sequence[int],
    frequencies: Sequence[Decimal] | Sequence[float] | NDArray[np.float64],
    *,
    interleaved: bool = False,
    magnitude: float = 1.0,
) -> NDArray[np.float64]:
    """x [tokens, heads, dim] with pair i turned by position · frequencies[i]; the rest as it was."""
    turned = np.array(x, np.float64)
    pairs = len(frequencies)
    for row, position in zip(turned, positions, strict=True):
        for i, frequency in enumerate(frequencies):
            one, other = (2 * i, 2 * i + 1) if interleaved else (i, i + pairs)
            angle = reduced(int(position), frequency)
            z = (row[:, one] + 1j * row[:, other]) * complex(math.cos(angle), math.sin(angle)) * magnitude
            row[:, one], row[:, other] = z.real, z.imag
    return turned
