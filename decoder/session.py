"""A decoder session: one stream's caches, and the attention over them.

Shapes: k [n, Hkv, Dk], v [n, Hkv, Dv], q [N, Hq, Dk], results [N, Hq, Dv]; NumPy float32. Positions are
absolute, from 0. Each layer has its own length; the stream's ``length`` is what all layers have, and the
only committed number. A call that raises has changed nothing.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, Literal, Self, overload

import numpy as np

from rondel.decoder import kernels
from rondel.decoder import pool as pool  # sizes the kernels' threads at import
from rondel.decoder.arrays import Floats, check_queries, stacked_layers
from rondel.decoder.cache.arena import Arena
from rondel.decoder.cache.extent import StreamExtent
from rondel.decoder.cache.layout import RingLayout
from rondel.decoder.cache.ring import GroupRings
from rondel.decoder.cache.undo import Undo
from rondel.decoder.call import LayerCall
from rondel.decoder.projection import Projections, fitted
from rondel.decoder.rows import QueryRows
from rondel.decoder.spec import StreamSpec
from rondel.decoder.stats import SessionStats, stats_of
from rondel.decoder.turn import Turn

_PIECE: Final = 512


class DecoderSession:
    """One stream: a ring of keys and values per layer, in an arena, and attention over them.

    Used by one caller at a time. ``tier`` forces a kernel tier for this session; the default is the one in
    force (``kernels.TIER``). ``projections`` are for :meth:`step_embeddings`.

    Raises:
        InvalidLayer, InvalidShape: the projections are not for such layers.
        BudgetExceeded: the arena has no room for all pages that the stream may ever need.
        UnsupportedTier: the processor lacks ``tier``.
    """

    def __init__(
        self,
        spec: StreamSpec,
        arena: Arena,
        *,
        projections: Projections | None = None,
        tier: str | None = None,
    ) -> None:
        self.spec: Final = spec
        self.projections: Final = fitted(projections, spec)
        self._arena = arena
        self._kernels = kernels.KERNELS if tier is None else kernels.load(tier)
        layouts = [RingLayout.of(group, spec.length_limit) for group in spec.groups]
        demand: Counter[int] = sum((layout.demand for layout in layouts), Counter())
        # Before the page tables are made: a stream too large for the arena may be too large for those.
        self._pages = arena.reserve(demand)
        weakref.finalize(self, arena.abandon, self._pages)  # a session dropped without close() leaks nothing
        self._rings = [GroupRings(layout) for layout in layouts]
        self._extent = StreamExtent(spec, layouts)
        self._turn = Turn()

    # --- state ----------------------------------------------------------------------------------------

    @property
    def length(self) -> int:
        """Tokens that every layer has."""
        return self._extent.length

    @property
    def high_water(self) -> int:
        """The largest position + 1 that any layer ever claimed, in a call that did not fail."""
        return self._extent.high_water

    @property
    def generation(self) -> int:
        """How often the stream was truncated."""
        return self._extent.generation

    @property
    def closed(self) -> bool:
        """Whether the caches have been given back."""
        return self._turn.closed

    @property
    def max_chunk(self) -> int | None:
        """How far a layer may run ahead of ``length`` once wrapped; None = nothing ever wraps."""
        return self.spec.max_chunk

    @property
    def min_length(self) -> int:
        """The smallest length that :meth:`truncate` accepts now."""
        return self._extent.min_length

    def layer_length(self, layer: int) -> int:
        """Tokens that one layer has. Raises InvalidLayer."""
        return self._extent.layer_length(layer)

    def stats(self) -> SessionStats:
        """The stream's numbers now."""
        return stats_of(self._extent, self._rings, self._pages, closed=self._turn.closed)

    def chunks(self, tokens: int, *, at_most: int = _PIECE) -> Iterator[slice]:
        """Cuts a run of new tokens into pieces that every layer may take before the next begins.

        ``for part in session.chunks(n): for layer in ...: session.step(layer, q[part], …)``.
        """
        return self._extent.chunks(tokens, at_most)

    # --- one layer ------------------------------------------------------------------------------------

    def append(self, layer: int, k: Floats, v: Floats) -> int:
        """Store n tokens in one layer and return the layer's new length.

        Raises:
            InvalidLayer, InvalidShape, ValueRange: the arguments are wrong.
            ChunkTooLong: the wrapped layer would run too far ahead of the stream; nothing changed.
            LengthExceeded: the stream's max_length would be passed; nothing changed.
            MemoryError: the pages that lose an old lap cannot be kept meanwhile; nothing changed.
        """
        with self._turn:
            self._apply([LayerCall.of_tokens(layer, self._ring(layer), k, v, self._kernels)])
            return self._extent.layer_length(layer)

    @overload
    def attend(self, layer: int, q: Floats, *, position: int | None = None) -> Floats: ...
    @overload
    def attend(
        self, layer: int, q: Floats, *, position: int | None = None, return_lse: Literal[True]
    ) -> tuple[Floats, Floats]: ...
    def attend(
        self, layer: int, q: Floats, *, position: int | None = None, return_lse: bool = False
    ) -> Floats | tuple[Floats, Floats]:
        """Causal attention of N query rows at ``position``, ``position`` + 1, …; changes nothing.

        A row at position p sees the sinks and positions p-W+1 to p as they are stored now; ``position``
        defaults to the layer's last N. With ``return_lse`` also the natural log of Σ exp(score), [N, Hq];
        a row that sees nothing gives zeros and -inf.

        Raises:
            InvalidLayer, InvalidShape, ValueRange: the arguments are wrong.
            SequenceGap: a row lies beyond what the layer holds.
            WindowEvicted: a row's window is no longer whole.
            ForkedProcess: the kernel threads stayed in the process that this one was forked from.
            MemoryError: the kernel finds no working space.
        """
        with self._turn:
            rings = self._ring(layer)
            q = check_queries(rings.group, q, None, self._kernels)
            first = self._extent.layer_length(layer) - len(q) if position is None else position
            self._extent.check_window(layer, first, len(q))
            rows = QueryRows.at(rings.group, first, q)
            self._kernels.attend([rows.query(rings, layer, self._arena.base, first)])
        return (rows.out, rows.lse) if return_lse else rows.out

    @overload
    def step(self, layer: int, q: Floats, k: Floats, v: Floats) -> Floats: ...
    @overload
    def step(
        self, layer: int, q: Floats, k: Floats, v: Floats, *, return_lse: Literal[True]
    ) -> tuple[Floats, Floats]: ...
    def step(
        self, layer: int, q: Floats, k: Floats, v: Floats, *, return_lse: bool = False
    ) -> Floats | tuple[Floats, Floats]:
        """:meth:`append` and :meth:`attend`, applied whole or not at all. Raises what they raise."""
        with self._turn:
            call = LayerCall.of_step(layer, self._ring(layer), q, k, v, self._kernels)
            self._apply([call])
        (rows,) = call.asked
        return (rows.out, rows.lse) if return_lse else rows.out

    def step_embeddings(self, layer: int, x: Floats) -> Floats:
        """:meth:`step` of what the projection makes of x [n, d_model]. Raises ProjectionNotFound, too."""
        return self.step(layer, *self.projections.project(self.spec, layer, x))

    # --- all layers -----------------------------------------------------------------------------------

    def append_all(self, k: Floats, v: Floats, *, first_layer: int = 0) -> int:
        """Store n tokens in a run of layers: k [layers, n, Hkv, Dk], v [layers, n, Hkv, Dv].

        The layers must have the same shapes and lengths. All layers of the stream take any n (committed
        piece by piece). Returns their new length. Raises what :meth:`append` raises, and SequenceGap when
        the layers are not level.
        """
        with self._turn:
            self._apply(self._check_stack(first_layer, k, v))
            return self._extent.layer_length(first_layer)

    def step_all(self, q: Floats, k: Floats, v: Floats, *, first_layer: int = 0) -> Floats:
        """:meth:`append_all` and attend: q [layers, n, Hq, Dk], result [layers, n, Hq, Dv]."""
        with self._turn:
            calls = self._check_stack(first_layer, k, v)
            out = LayerCall.ask(calls, q, self._kernels)
            self._apply(calls)
            return out

    # --- life cycle -----------------------------------------------------------------------------------

    def truncate(self, length: int) -> None:
        """Forget all tokens from position ``length`` on, in every layer; a new generation begins.

        Raises:
            SequenceGap: the stream is not that long.
            RollbackTooDeep: the ring no longer holds what that length would see (see ``min_length``).
        """
        with self._turn:
            self._extent.truncate(length)

    def matches(self, layer: int, position: int, k: Floats, v: Floats) -> bool:
        """Whether the tokens stored from ``position`` on are, to the byte, what k and v are stored as.

        Raises what :meth:`read` raises, and InvalidShape, ValueRange.
        """
        with self._turn:
            call = LayerCall.of_tokens(layer, self._ring(layer), k, v, self._kernels)
            self._extent.check_stored(layer, position, len(call.k))
            call.rotate(position)
            words, table = call.rings.words, call.rings.table(layer)
            return self._kernels.same(words, self._arena.base, table, position, call.k, call.v)

    def read(self, layer: int, start: int, stop: int) -> tuple[Floats, Floats]:
        """Stored tokens start to stop - 1 as float32, dequantised: k [n, Hkv, Dk] (turned), v [n, Hkv, Dv].

        Raises:
            SequenceGap: the layer does not hold all these positions.
            DuplicateTooOld: the ring has passed them.
        """
        with self._turn:
            rings = self._ring(layer)
            self._extent.check_stored(layer, start, stop - start)
            k = np.empty((stop - start, rings.group.kv_heads, rings.group.key_dim), np.float32)
            v = np.empty((stop - start, rings.group.kv_heads, rings.group.value_dim), np.float32)
            self._kernels.read(rings.words, self._arena.base, rings.table(layer), start, k, v)
            return k, v

    def close(self) -> None:
        """Give all pages back. Doing it twice is harmless. Raises SessionBusy during another call."""
        if not self._turn.closed:
            with self._turn:
                self._turn.closed = True
                self._pages.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- inside ---------------------------------------------------------------------------------------

    def _ring(self, layer: int) -> GroupRings:
        return self._rings[self.spec.group_index(layer)]

    def _check_stack(self, first_layer: int, k: Floats, v: Floats) -> list[LayerCall]:
        layers = stacked_layers(self.spec, first_layer, k)
        return LayerCall.of_stack(layers, [self._ring(layer) for layer in layers], k, v, self._kernels)

    def _apply(self, calls: Sequence[LayerCall]) -> None:
        """Store the tokens of checked calls and attend where there are queries: whole or not at all."""
        parts = self._parts(calls)
        with self._undo(calls):
            for part in parts:
                for call in calls:
                    first = self._place(call, part)
                    self._kernels.attend(call.queries(self._arena.base, first, part))
                    self._extent.advance(call.layer, first + part.stop - part.start)

    def _undo(self, calls: Sequence[LayerCall]) -> Undo:
        """A context for carrying out checked calls: if it is left by an exception, nothing has changed."""
        writes = [(call.rings, call.layer) for call in calls]
        return Undo(self._extent, self._rings, self._pages, writes, len(calls[0].k))

    def _parts(self, calls: Sequence[LayerCall]) -> Iterator[slice]:
        """Turns checked calls; the pieces to carry them out in. Raises what ``check_append`` raises."""
        tokens = len(calls[0].k)
        first = self._extent.check_append([call.layer for call in calls], tokens)
        for call in calls:
            call.rotate(first)
        # Layers that are all of the stream's advance piece by piece. Mostly there is one.
        if len(calls) < self.spec.layers or tokens <= min(_PIECE, self.spec.room(self.length)):
            return iter([slice(0, tokens)])
        return self.chunks(tokens)

    def _place(self, call: LayerCall, part: slice) -> int:
        """Claim positions and store a part of a call's tokens there; returns the first position."""
        first = self._extent.layer_length(call.layer)
        end = first + part.stop - part.start
        # The order of stores is the design's: high water, data, and the layer's length after its attend.
        self._extent.claim(call.layer, end)
        for rings in self._rings:
            rings.grow(end, self._pages)
        words, table = call.rings.words, call.rings.table(call.layer)
        self._kernels.place(words, self._arena.base, table, first, call.k[part], call.v[part])
        return first
