"""Rotary position: neighbouring elements of a head are turned as one complex number.

GGUF files of the llama family hold the q and k rows in the order that this interleaved form wants (the
converter permutes them), whatever the form of the model's first implementation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Rotary:
    """Turns the first ``dim`` elements of each head by ``position * base ** (-2i / dim)``, pair i.

    Args:
        base: the frequency base.
        dim: elements of a head that are turned; even.
        factor: linear scaling, a divisor of all angles.
        factors: divisors per pair, [dim / 2], or None.
    """

    def __init__(
        self, base: float, dim: int, *, factor: float = 1.0, factors: NDArray[np.float32] | None = None
    ) -> None:
        frequencies = base ** (np.arange(0, dim, 2, dtype=np.float64) / -dim) / factor
        self._frequencies = frequencies if factors is None else frequencies / factors.astype(np.float64)
        self._dim = dim

    def phases(self, position: int, count: int) -> NDArray[np.complex64]:
        """The turns of ``count`` positions from ``position`` on, [count, 1, dim / 2].

        Angles are float64: at position 100,000 a float32 angle is off by up to 0.004.
        """
        angles = np.arange(position, position + count, dtype=np.float64)[:, None, None] * self._frequencies
        turns: NDArray[np.complex64] = np.exp(1j * angles).astype(np.complex64)
        return turns

    def turn(self, x: NDArray[np.float32], phases: NDArray[np.complex64]) -> NDArray[np.float32]:
        """A turned C-order copy of x [n, heads, head_dim]."""
        turned = np.array(x, dtype=np.float32, order="C")
        pairs = turned[..., : self._dim].view(np.complex64)
        pairs *= phases
        return turned
