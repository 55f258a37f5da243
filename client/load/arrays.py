"""Random numbers that cost nothing to draw: arrays are cut from one block that was filled beforehand."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rondel.client.values import Array

BLOCK: Final = 1 << 20
"""Places where an array can begin."""

_STRIDE: Final = 0x9E3779B97F4A7C15
"""Spreads neighbouring numbers over the whole block (the golden ratio of 2**64)."""


class Numbers:
    """Standard normal float32 arrays of up to ``largest`` elements, named by integers; a seed says all."""

    def __init__(self, seed: int, largest: int) -> None:
        self._block = np.random.default_rng(seed).standard_normal(BLOCK + largest, np.float32)
        self._block.flags.writeable = False

    def cut(self, number: int, shape: tuple[int, ...]) -> Array:
        """The array that this number names; a view, not to be written to."""
        start = (number * _STRIDE >> 32) % BLOCK
        return self._block[start : start + math.prod(shape)].reshape(shape)
