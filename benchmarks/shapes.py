"""The shapes that are measured, and the numbers that fill them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Shape:
    """One decode step: one query token of ``query_heads`` over ``keys`` cached tokens of ``kv_heads``."""

    name: str
    query_heads: int
    kv_heads: int
    dim: int
    keys: int

    @property
    def group(self) -> int:
        """G: query heads that share a kv head."""
        return self.query_heads // self.kv_heads

    def __str__(self) -> str:
        return f"{self.query_heads}/{self.kv_heads}×{self.dim}, {self.keys:,} keys"


SHAPES: Final = {
    shape.name: shape
    for shape in (
        Shape("a", 32, 8, 128, 4_096),
        Shape("b", 32, 8, 128, 32_768),
        Shape("c", 9, 3, 64, 8_192),
        Shape("d", 32, 32, 128, 4_096),
        Shape("e", 4, 1, 256, 8_192),
        Shape("f", 64, 8, 128, 32_768),
    )
}
"""The six that the targets are stated for."""

GROUPED: Final = ("a", "b", "c", "e", "f")
"""Those of them in which several query heads share a kv head."""

CONTEXT: Final = tuple(128 << i for i in range(10))
"""Keys of the curve of time against context: 128 to 65,536."""


def parse_shape(text: str) -> Shape:
    """One of the six by letter, or ``QUERYxKVxDIMxKEYS`` such as ``32x8x128x4096``.

    Raises:
        ValueError: neither.
    """
    if text in SHAPES:
        return SHAPES[text]
    if found := re.fullmatch(r"(\d+)x(\d+)x(\d+)x(\d+)", text):
        query_heads, kv_heads, dim, keys = map(int, found.groups())
        if kv_heads and not query_heads % kv_heads:
            return Shape(text, query_heads, kv_heads, dim, keys)
    raise ValueError(f"a shape is one of {', '.join(SHAPES)} or QUERYxKVxDIMxKEYS, got {text!r}")


@dataclass(frozen=True, slots=True)
class Problem:
    """What is attended with and to: q [N, Hq, D], k and v [M, Hkv, D], float32.

    Contestants that round their input return another one: what they really computed from.
    """

    shape: Shape
    q: Floats
    k: Floats
    v: Floats


def draw(shape: Shape, *, rows: int = 1, seed: int = 0) -> Problem:
    """Gaussian queries, keys and values; the same for the same arguments."""
    rng = np.random.default_rng([seed, *shape.name.encode()])
    cached = (shape.keys, shape.kv_heads, shape.dim)
    return Problem(
        shape,
        rng.standard_normal((rows, shape.query_heads, shape.dim), dtype=np.float32),
        rng.standard_normal(cached, dtype=np.float32),
        rng.standard_normal(cached, dtype=np.float32),
    )
