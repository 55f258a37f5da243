"""The kernels: attention and quantisation over pages, one source compiled once per instruction set.

    simd.h        vector primitives, simd_avx512.h … simd_neon.h: the code that differs between processors
    tiles.h       products of stored tiles with a block of rows: tiles_pairs.h, tiles_planes.h and tiles_amx.h
                  by the multiply that there is, tiles_f32.h
    geometry.pxi  where a token's bytes are
    store.pxi     one row: quantise it, put it into its slot and get it back
    centre.pxi    what a page's keys are stored relative to
    place.pxi     tokens into their slots; read and compare
    softmax.pxi   one row over one page; softmax.h, the same for a whole page in registers
    products.pxi, weigh.pxi   a block of rows over one page: its products, and from them to weights
    block.pxi     a block of rows: queries, working space, running state
    attend.pxi    such a block over one kv head's ring; merging
    batch.pxi     many streams in one job of the thread pool (pool.h, _pool.pyx)
    scores.pxi    scores for looking into
    api.pxi       the Python face
    bandwidth.pxi, bandwidth.h   read loops: the yardstick of the benchmarks
    _base … _v4amx.pyx   the tiers: they include all of the above; _cpu.pyx asks the processor

The tiers, slowest first: ``base`` (any x86-64: SSE2; AArch64: NEON), ``v3`` (AVX2, FMA, BMI2), ``v4``
(AVX-512 F, BW, CD, DQ, VL), ``v4vnni`` (and AVX-512 VNNI), ``v4amx`` (and AMX-INT8, if Linux allows it).

A kernel takes pointers, sizes and page tables; it allocates nothing, raises nothing and knows no cache
object. The tier is chosen once, at import: the best that the processor has, or the one that the
environment variable ``RONDEL_TIER`` names (:class:`~rondel.decoder.errors.UnsupportedTier` if it cannot run).
"""

from __future__ import annotations

import importlib
import os
from typing import Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.errors import UnsupportedTier
from rondel.decoder.kernels import _cpu

Floats = NDArray[np.float32]
Words = NDArray[np.int64]


Sight = tuple[int, int, int]
"""right, held, row step: row n stands at first + n · step and sees up to ``right`` positions after its own,
of the ``held`` that there are. None = causal: (0, first + N, 1)."""

Edits = tuple[float, Floats | None, Floats | None, int]
"""softcap (0 = none), ALiBi slopes [Hq], bias [Hq or 1, N or 1, M] with -inf where hidden, position of its
first column; it covers all that the rows see"""

Query = tuple[
    Words,
    int,
    Words,
    int,
    float,
    Floats,
    Floats | None,
    Floats | None,
    Floats | None,
    Sight | None,
    Edits | None,
]
"""words, base, table, first, scale, q [N, Hq, Dk], out [N, Hq, Dv], lse [N, Hq], q_sinks [N, Hq, Dk] or None
(what the sink page is scored by, where that is not q), sight, edits"""


class Kernels(Protocol):
    """What every tier module offers.

    ``words`` is ``PageLayout.words()``, ``base`` the address that the page table's byte offsets are
    relative to, ``table`` [1 + ring pages] the offsets (sink page first, -1 = not there), ``first`` the
    position of the first token or row. Shapes: k [n, Hkv, Dk], v [n, Hkv, Dv], q [N, Hq, Dk],
    out [N, Hq, Dv], lse [N, Hq]; all float32 and C-ordered.
    """

    def place(self, words: Words, base: int, table: Words, first: int, k: Floats, v: Floats) -> None:
        """Store tokens."""

    def same(self, words: Words, base: int, table: Words, first: int, k: Floats, v: Floats) -> bool:
        """Whether the stored tokens have the bytes that k and v would be stored as."""

    def damaged(self, words: Words, base: int, table: Words, first: int, count: int) -> int:
        """The first of the tokens ``first`` to ``first`` + ``count`` - 1 that is not what was stored, by its
        checksum or by that of its page's header; -1 if all are."""

    def read(self, words: Words, base: int, table: Words, first: int, k: Floats, v: Floats) -> None:
        """Fill k and v with stored tokens, dequantised."""

    def attend(self, queries: list[Query]) -> None:
        """Causal attention, all queries in one job of the thread pool; fills each out and lse.

        Raises ForkedProcess when the pool's threads stayed in the parent of this process.
        """

    def scores(self, query: Query, into: Floats, column_first: int) -> None:
        """q·k·scale of what each row sees, before softcap, bias and masks: into [N, Hq, columns], column m
        for position ``column_first`` + m. Other cells stay as they are; out and lse of the query are not
        used."""

    def in_range(self, x: Floats, limit: float) -> bool:
        """Whether every element of x [n] is a number of magnitude at most ``limit``."""

    def read_pages(self, words: Words, base: int, table: Words, start: int, stop: int, variant: int) -> int:
        """Read what attention reads of ring pages ``start`` to ``stop`` - 1, in its order; for benchmarks.

        Every ``variant`` is another loop over the same bytes (:data:`READ_LOOPS`) and returns the same
        checksum: the exclusive or of their 64-bit words. The GIL is released. Raises ValueError for a page
        that is not there and a variant that does not exist.
        """


READ_LOOPS: Final = (
    "4 vectors",
    "8 vectors",
    "words",
    "4 vectors, prefetch",
    "8 vectors, prefetch",
    "words, prefetch",
)
"""The variants of :meth:`Kernels.read_pages`, by number."""


def available() -> tuple[str, ...]:
    """The tiers that this processor can run, slowest first."""
    return tuple(_cpu.supported())


def load(tier: str) -> Kernels:
    """The kernels of one tier. Raises UnsupportedTier if it is unknown or the processor lacks it."""
    if tier not in available():
        raise UnsupportedTier(
            f"kernel tier must be one of {', '.join(available())} on this processor, got {tier!r}", tier=tier
        )
    # Not before the check: a tier's module initialisation is itself compiled for that tier.
    return cast(Kernels, importlib.import_module(f"rondel.decoder.kernels._{tier}"))


TIER: Final[str] = os.environ.get("RONDEL_TIER") or available()[-1]
"""The tier in force."""

KERNELS: Final[Kernels] = load(TIER)
"""Its kernels."""
