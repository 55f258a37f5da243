"""What the kernel tests share: cases, filled streams, the float64 answer for them, and the bounds.

The bounds are the design's, relative to the stored (dequantised) keys and values. Nothing in the tests
loosens them; a case that they do not cover says so where it stands.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from comparators import TINY, assert_near
from numpy.typing import NDArray

from rondel.decoder import kernels, reference
from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

Floats = NDArray[np.float32]

TIERS = kernels.available()
STORAGES = ("int8", "float32")
ENGINES = tuple(itertools.product(TIERS, STORAGES))

ALWAYS = {"int8": 2.0**-9, "float32": 1e-6}
"""Largest |out - oracle| as a fraction of the largest |v|, whatever the data.

float32 is held to this while scores stay within FLOAT_REACH; beyond, to a multiple that grows with the
largest score: float32 cannot tell scores of size s apart to better than some s · 2**-22.
"""
FLOAT_REACH = 4.0
GAUSSIAN = {"int8": 2.0**-15, "float32": 1e-6}
"""The same, on Gaussian queries, keys and values."""
LSE = {"int8": 2.0**-12, "float32": 2.0**-19}
"""Largest |lse - oracle| on Gaussian data, as a fraction of max(1, |lse|).

lse is off by as much as the scores are. An int16 query of Gaussian numbers is off by max|q| / 16383 / √12
per element, so a score, whose scale cancels the √Dk, is off by 7e-5 (one standard deviation, for max|q| = 4);
lse averages that over the keys that matter. float32 scores are off by some 2**-23 of sums of Dk terms.
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One shape of stream on one engine. ``str(case)`` is the test id."""

    tier: str
    storage: str
    heads: tuple[int, int] = (4, 2)
    dims: tuple[int, int] = (64, 64)
    window: int | None = 128
    sinks: int = 0
    reserve: int = 0
    max_length: int | None = None
    scale: float | None = None
    causal: bool = True
    window_right: int = 0

    def __str__(self) -> str:
        (hq, hkv), (dk, dv) = self.heads, self.dims
        shape = f"{self.tier}-{self.storage}-heads{hq}:{hkv}-dims{dk}:{dv}"
        sides = "" if self.causal else f"-right{self.window_right}"
        return f"{shape}-W{self.window}-S{self.sinks}-R{self.reserve}{sides}"

    @property
    def ring(self) -> int:
        """Slots of the ring: the window and the reserve in whole pages, and one page more."""
        assert self.window is not None
        return 128 * (math.ceil((self.window + self.window_right + self.reserve) / 128) + 1)

    @property
    def score_scale(self) -> float:
        return 1 / math.sqrt(self.dims[0]) if self.scale is None else self.scale

    def rows(self, wanted: int, length: int) -> int:
        """How many of the last rows can be asked for: all before a wrap, reserve + 1 after one."""
        wrapped = self.window is not None and length > self.sinks + self.ring
        return min(wanted, length, self.reserve + 1) if wrapped else min(wanted, length)

    def open(self, arena: Arena | None = None) -> DecoderSession:
        spec = StreamSpec.uniform(
            layers=1,
            query_heads=self.heads[0],
            kv_heads=self.heads[1],
            head_dim=self.dims[0],
            value_dim=self.dims[1],
            window=self.window,
            sinks=self.sinks,
            reserve=self.reserve,
            storage=self.storage,
            scale=self.scale,
            causal=self.causal,
            window_right=self.window_right,
            max_length=self.max_length,
        )
        return DecoderSession(spec, Arena(budget=256 << 20) if arena is None else arena, tier=self.tier)


def gaussian(rng: np.random.Generator, tokens: int, heads: int, dim: int) -> Floats:
    return rng.standard_normal((tokens, heads, dim), np.float32)


@dataclass
class Stream:
    """A session and everything that was ever appended to it."""

    case: Case
    seed: int = 0
    arena: Arena | None = None
    session: DecoderSession = field(init=False)
    rng: np.random.Generator = field(init=False)
    k: Floats = field(init=False)
    v: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.session = self.case.open(self.arena)
        self.rng = np.random.default_rng(self.seed)
        self.k = np.zeros((0, self.case.heads[1], self.case.dims[0]), np.float32)
        self.v = np.zeros((0, self.case.heads[1], self.case.dims[1]), np.float32)

    def draw(self, tokens: int) -> tuple[Floats, Floats]:
        hkv, (dk, dv) = self.case.heads[1], self.case.dims
        return gaussian(self.rng, tokens, hkv, dk), gaussian(self.rng, tokens, hkv, dv)

    def queries(self, rows: int) -> Floats:
        return gaussian(self.rng, rows, self.case.heads[0], self.case.dims[0])

    def append(self, k: Floats, v: Floats) -> None:
        """Append in the largest chunks that the stream allows."""
        for part in self.session.chunks(len(k)):
            self.session.append(0, k[part], v[part])
        self.k, self.v = np.concatenate([self.k, k]), np.concatenate([self.v, v])

    def grow(self, length: int) -> Stream:
        self.append(*self.draw(length - len(self.k)))
        return self

    def seen(self, rows: int) -> NDArray[np.int64]:
        """Positions that any of the last rows can see."""
        length = len(self.k)
        oldest = 0 if self.case.window is None else max(0, length - rows + 1 - self.case.window)
        sinks = np.arange(min(self.case.sinks, oldest))
        return np.concatenate([sinks, np.arange(oldest, length)]).astype(np.int64)

    def stored(self, positions: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """What the written format makes of the appended data at these positions, float32."""
        k, v = self.k[positions], self.v[positions]
        if self.case.storage == "float32":
            return k, v
        both = [reference.dequantise(*reference.quantise_rows(x)).astype(np.float32) for x in (k, v)]
        return both[0], both[1]

    def held(self, positions: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """What the session says it stores at these positions."""
        if not positions.size:
            return self.k[:0], self.v[:0]
        breaks = np.flatnonzero(np.diff(positions) > 1) + 1
        runs = [self.session.read(0, int(run[0]), int(run[-1]) + 1) for run in np.split(positions, breaks)]
        return np.concatenate([k for k, _ in runs]), np.concatenate([v for _, v in runs])

    def oracle(self, q: Floats) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """The float64 answer for the last rows, and the largest visible |v| per query head."""
        at = self.seen(len(q))
        k, v = self.held(at)
        out, lse = reference.attend(
            q,
            k,
            v,
            scale=self.case.score_scale,
            position=len(self.k) - len(q),
            key_positions=at,
            window=self.case.window,
            sinks=self.case.sinks,
        )
        largest = np.abs(v).max(axis=(0, 2), initial=0.0).astype(np.float64)
        return out, lse, np.repeat(largest, self.case.heads[0] // self.case.heads[1])

    def allowance(self, q: Floats) -> float:
        """How far the largest score takes a float32 case beyond its bound; 1 for int8."""
        if self.case.storage != "float32":
            return 1.0
        k = self.held(self.seen(len(q)))[0].astype(np.float64)
        group = self.case.heads[0] // self.case.heads[1]
        scores = np.einsum("nhd,mhd->nhm", q, np.repeat(k, group, axis=1)) * self.case.score_scale
        return max(1.0, float(np.abs(scores).max(initial=0.0)) / FLOAT_REACH)

    def check(self, q: Floats, *, bound: Mapping[str, float], lse_bound: Mapping[str, float] | None) -> float:
        """Attend with the last rows and compare; the error as a fraction of the bound."""
        out, lse = self.session.attend(0, q, return_lse=True)
        want_out, want_lse, largest = self.oracle(q)
        name = f"{self.case} length {len(self.k)} rows {len(q)}"
        allowance = self.allowance(q) if bound is ALWAYS else 1.0
        limit = allowance * bound[self.case.storage] * largest[None, :, None] + TINY
        share = assert_near(out, want_out, limit, f"{name}: out")
        if lse_bound is not None:
            limit = lse_bound[self.case.storage] * np.maximum(
                1.0, np.abs(np.nan_to_num(want_lse, neginf=0.0))
            )
            share = max(share, assert_near(lse, want_lse, limit, f"{name}: lse"))
        return share
