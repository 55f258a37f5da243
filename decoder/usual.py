"""The usual calls in few steps of Python: one token for a layer that has room for it, and rows' answers.

Around the kernels of a small cache Python takes most of the time; around those of a large one it is cold,
since they have had the processor's caches for themselves, and is slower still. Nearly every call asks for
nothing special. What is done here for it is what :mod:`~rondel.decoder.writer` and
:mod:`~rondel.decoder.answer` do for any call, by the same parts, in the same order and to the bit. Whatever
needs more than that is left to them before anything has changed, errors of arguments included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from rondel.decoder.arrays import Floats
from rondel.decoder.cache.arena import Arena
from rondel.decoder.cache.extent import StreamExtent
from rondel.decoder.cache.reservation import Reservation
from rondel.decoder.cache.ring import GroupRings
from rondel.decoder.cache.undo import Undo
from rondel.decoder.kernels import Kernels, Query
from rondel.decoder.spec import MAX_MAGNITUDE, LayerGroup, StreamSpec

_FLOAT32: Final = np.dtype(np.float32)
Shape = tuple[int, ...]


class UsualStep:
    """A step whose token is stored and whose answer is yet to be computed, or taken back."""

    __slots__ = ("_end", "_extent", "_layer", "_marks", "lse", "out", "queries")

    def __init__(self, extent: StreamExtent, layer: int, end: int) -> None:
        self._extent = extent
        self._layer = layer
        self._end = end
        self._marks = extent.marks()

    queries: list[Query]
    """What the kernels are to answer: one query."""
    out: Floats  # [1, Hq, Dv]
    lse: Floats  # [1, Hq]

    def finish(self) -> None:
        """The kernels have answered: the layer has the token. The last store."""
        self._extent.advance(self._layer, self._end)

    def restore(self) -> None:
        """Take the token back. Doing it twice is harmless."""
        self._extent.begin(self._marks[2])
        self._extent.reset(self._marks)

    def end(self) -> None:
        """Need nothing any more to take back."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What stays as it is in the layers of a group: shapes of one token's arrays, and more."""

    q: Shape
    k: Shape
    v: Shape
    out: Shape
    lse: Shape
    scale: float
    endless: bool
    """Nothing is ever evicted."""


class UsualCalls:
    """Steps and questions to one stream, which consists of these parts. Under its turn, without options."""

    __slots__ = ("_arena", "_extent", "_pages", "_plans", "_rings", "_spec")

    def __init__(
        self,
        spec: StreamSpec,
        extent: StreamExtent,
        rings: Sequence[GroupRings],
        pages: Reservation,
        arena: Arena,
    ) -> None:
        self._spec = spec
        self._extent = extent
        self._rings = rings
        self._pages = pages
        self._arena = arena
        # None = nothing about such layers is usual. Shared by all streams of a kind: these may be very many.
        self._plans = tuple([_plan(each.group) if _is_plain(each.group) else None for each in rings])

    def begin(
        self, layer: int, q: Floats, k: Floats, v: Floats, kernels: Kernels, undos: list[Undo | UsualStep]
    ) -> UsualStep | None:
        """Store a token; None: this is no usual step, and nothing has changed. Without options. ``undos``
        gets what takes it back before it is stored, for whatever may strike at any moment.

        Raises:
            InvalidLayer: there is none such.
            SequenceGap, LengthExceeded, QuotaExceeded, ChunkTooLong, StreamSealed, ForkedProcess: as
                ``StreamExtent.check_append`` does.
        """
        group = self._spec.group_index(layer)
        plan = self._plans[group]
        if (
            plan is None
            or self._pages.shares
            or not (_fits(q, plan.q) and _fits(k, plan.k) and _fits(v, plan.v))
            or not kernels.in_range(k.reshape(-1), MAX_MAGNITUDE)
            or not kernels.in_range(v.reshape(-1), MAX_MAGNITUDE)
            or not kernels.in_range(q.reshape(-1), MAX_MAGNITUDE)
        ):
            return None
        extent, rings = self._extent, self._rings[group]
        first = extent.check_append((layer,), 1)
        end = first + 1
        if rings.layout.rewritten(extent.claimed(layer), end):
            return None
        for each in self._rings:
            if not each.reaches(end):
                return None
        extent.end()  # what a restore that was interrupted may have left
        step, table, base = UsualStep(extent, layer, end), rings.table(layer), self._arena.base
        out, lse = np.empty(plan.out, np.float32), np.empty(plan.lse, np.float32)
        step.out, step.lse = out, lse
        step.queries = [(rings.words, base, table, first, plan.scale, q, out, lse, None, None, None)]
        undos.append(step)
        try:
            extent.claim(layer, end)
            kernels.place(rings.words, base, table, first, k, v)
        except Exception:
            step.restore()
            raise
        return step

    def attend(
        self, layer: int, q: Floats, position: int | None, kernels: Kernels
    ) -> tuple[Floats, Floats] | None:
        """Answer rows q [N, Hq, Dk]: out [N, Hq, Dv] and lse [N, Hq]; None: this is no usual question.

        Raises:
            InvalidLayer: there is none such.
            SequenceGap, WindowEvicted, InvalidRequest: as ``StreamExtent.rows_at`` does.
            ForkedProcess, MemoryError: as the kernels do.
        """
        group = self._spec.group_index(layer)
        plan = self._plans[group]
        if plan is None or type(q) is not np.ndarray or q.ndim != 3:
            return None
        rows, held = len(q), self._extent.held(layer)
        fits = rows and held and _fits(q, (rows, *plan.q[1:]))
        if not (fits and kernels.in_range(q.reshape(-1), MAX_MAGNITUDE)):
            return None
        # The first is the second where nothing can be wrong with it.
        at_end = position is None and plan.endless and rows <= held
        first = held - rows if at_end else self._extent.rows_at(layer, position, rows)
        out, lse = np.empty((rows, *plan.out[1:]), np.float32), np.empty((rows, *plan.lse[1:]), np.float32)
        rings = self._rings[group]
        where = rings.words, self._arena.base, rings.table(layer), first
        kernels.attend([(*where, plan.scale, q, out, lse, None, None, None)])
        return out, lse

    def step(
        self, layer: int, q: Floats, k: Floats, v: Floats, kernels: Kernels
    ) -> tuple[Floats, Floats] | None:
        """:meth:`begin` and all the rest of it: out [1, Hq, Dv] and lse [1, Hq]. Raises what the kernels
        raise, too, and has then changed nothing."""
        undos: list[Undo | UsualStep] = []
        try:
            step = self.begin(layer, q, k, v, kernels, undos)
            if step is None:
                return None
            kernels.attend(step.queries)
            step.finish()
        except BaseException:
            for each in undos:
                each.restore()
            raise
        return step.out, step.lse


def _is_plain(group: LayerGroup) -> bool:
    """Whether nothing is turned, and no row sees what comes after it."""
    return group.causal and group.rope is None


@lru_cache(maxsize=256)
def _plan(group: LayerGroup) -> _Plan:
    return _Plan(
        (1, group.query_heads, group.key_dim),
        (1, group.kv_heads, group.key_dim),
        (1, group.kv_heads, group.value_dim),
        (1, group.query_heads, group.value_dim),
        (1, group.query_heads),
        group.score_scale,
        group.window is None,
    )


def _fits(x: Floats, shape: Shape) -> bool:
    if type(x) is not np.ndarray or x.shape != shape or x.dtype != _FLOAT32:
        return False
    flags = x.flags
    return bool(flags.c_contiguous and flags.aligned)
