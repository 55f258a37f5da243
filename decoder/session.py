"""A decoder session: one stream's caches, and the attention over them.

Shapes: k [n, Hkv, Dk], v [n, Hkv, Dv], q [N, Hq, Dk], results [N, Hq, Dv]; NumPy float32. Positions are
absolute, from 0. Each layer has its own length; the stream's ``length`` is what all layers have, and the
only committed number. A call that raises has changed nothing.
"""

from __future__ import annotations

import weakref
from typing import Literal, Self, overload

from rondel.decoder import kernels
from rondel.decoder import pool as pool  # sizes the kernels' threads at import
from rondel.decoder.answer import Question
from rondel.decoder.arrays import Floats, stacked_layers
from rondel.decoder.binary import BinaryReader
from rondel.decoder.cache.account import Account
from rondel.decoder.cache.arena import Arena
from rondel.decoder.cache.parts import Parts, forked, opened
from rondel.decoder.cache.record import checked_tag
from rondel.decoder.call import LayerCall
from rondel.decoder.explanation import Explanation
from rondel.decoder.kept import KeptStream
from rondel.decoder.options import AttendOptions
from rondel.decoder.projection import NO_PROJECTIONS, Projections, fitted
from rondel.decoder.readable import ReadableStream
from rondel.decoder.restore import restored
from rondel.decoder.snapshot import PreservedStream
from rondel.decoder.spec import StreamSpec
from rondel.decoder.usual import UsualCalls
from rondel.decoder.writer import Writer


class DecoderSession(KeptStream, PreservedStream, ReadableStream):
    """One stream: a ring of keys and values per layer, in an arena, and attention over them.

    Used by one caller at a time. ``tier`` forces a kernel tier for this session; the default is the one in
    force (``kernels.TIER``). ``projections`` are for :meth:`step_embeddings`. In an arena with a file the
    stream is there under ``tag`` from the beginning, until it is closed; with None only once it is published.
    ``account`` bears what the stream and its forks reserve, and may bound it.

    Raises:
        InvalidRequest: the tag is no bytes, or more than 1 KiB.
        InvalidLayer, InvalidShape: the projections are not for such layers.
        BudgetExceeded: the arena has no room for all pages that the stream may ever need.
        QuotaExceeded: the account may not have so much.
        UnsupportedTier: the processor lacks ``tier``.
    """

    projections: Projections
    """What :meth:`step_embeddings` makes q, k and v with."""

    def __init__(
        self,
        spec: StreamSpec,
        arena: Arena,
        *,
        projections: Projections | None = None,
        tier: str | None = None,
        tag: bytes | None = b"",
        account: Account | None = None,
    ) -> None:
        fit, tier_kernels = fitted(projections, spec), kernels.KERNELS if tier is None else kernels.load(tier)
        checked_tag(tag or b"")
        self._begin(spec, arena, fit, tier_kernels, opened(spec, arena, account))
        if tag is not None:
            self.publish(tag)

    @classmethod
    def _of(cls, spec: StreamSpec, arena: Arena, parts: Parts, tier: kernels.Kernels) -> Self:
        session = object.__new__(cls)
        session._begin(spec, arena, NO_PROJECTIONS, tier, parts)
        return session

    def _begin(
        self, spec: StreamSpec, arena: Arena, projections: Projections, tier: kernels.Kernels, parts: Parts
    ) -> None:
        extent, rings, pages = parts
        # A session dropped without close() leaks nothing; a stream in a file is no less there for it.
        weakref.finalize(self, pages.abandon).atexit = False
        super().__init__(spec, extent, rings, pages)
        self.projections = projections
        self._arena = arena
        arena.note(self)
        self._kernels = tier
        self._writer = Writer(spec, extent, rings, pages, arena)
        self._usual = UsualCalls(spec, extent, rings, pages, arena)

    @classmethod
    def restore(
        cls,
        reader: BinaryReader,
        arena: Arena,
        *,
        projections: Projections | None = None,
        tier: str | None = None,
        tag: bytes | None = b"",
    ) -> Self:
        """The stream that :meth:`snapshot` wrote to a binary file, read to its end; it goes on to the bit.

        Raises:
            CorruptSnapshot, UnsupportedSnapshot: it is none, or a newer version's. The arena is as it was.
            BudgetExceeded, InvalidLayer, InvalidShape, UnsupportedTier: as opening a stream does.
        """
        checked_tag(tag or b"")
        stream = restored(lambda spec: cls(spec, arena, projections=projections, tier=tier, tag=None), reader)
        if tag is not None:
            stream.publish(tag)
        return stream

    # --- one layer ------------------------------------------------------------------------------------

    def append(self, layer: int, k: Floats, v: Floats) -> int:
        """Store n tokens in one layer and return the layer's new length.

        Raises:
            InvalidLayer, InvalidShape, ValueRange: the arguments are wrong.
            ChunkTooLong: the wrapped layer would run too far ahead of the stream; nothing changed.
            LengthExceeded: the stream's max_length would be passed; nothing changed.
            StreamSealed: the stream was sealed; nothing changed.
            QuotaExceeded: a fork has used up what it reserved (see :meth:`fork`); nothing changed.
            MemoryError: the pages that lose an old lap cannot be kept meanwhile; nothing changed.
        """
        with self._turn:
            self._writer.apply(
                [LayerCall.of_tokens(layer, self._ring(layer), k, v, self._kernels)], self._kernels
            )
            return self._extent.layer_length(layer)

    @overload
    def attend(
        self, layer: int, q: Floats, *, position: int | None = None, options: AttendOptions | None = None
    ) -> Floats: ...
    @overload
    def attend(
        self,
        layer: int,
        q: Floats,
        *,
        position: int | None = None,
        options: AttendOptions | None = None,
        return_lse: Literal[True],
    ) -> tuple[Floats, Floats]: ...
    def attend(
        self,
        layer: int,
        q: Floats,
        *,
        position: int | None = None,
        options: AttendOptions | None = None,
        return_lse: bool = False,
    ) -> Floats | tuple[Floats, Floats]:
        """Attention of N query rows at ``position``, ``position`` + 1, …; changes nothing.

        A row at position p sees the sinks and positions p-W+1 to p as they are stored now, in a two-sided
        window as many to p+window_right as there are; ``position`` defaults to the layer's last N. Where
        queries have no position (``causal=False`` without a window) it stays None. With ``return_lse`` also
        the natural log of Σ exp(score), [N, Hq]; a row that sees nothing gives zeros and -inf.

        Raises:
            InvalidLayer, InvalidShape, ValueRange, InvalidRequest: the arguments are wrong.
            SequenceGap: a row lies beyond what the layer holds.
            WindowEvicted: a row's window is no longer whole.
            ForkedProcess: the kernel threads stayed in the process that this one was forked from.
            MemoryError: the kernel finds no working space.
        """
        with self._turn:
            answer = None if options is not None else self._usual.attend(layer, q, position, self._kernels)
            if answer is None:
                answer = self._question(layer, q, position, options).attend()
        return answer if return_lse else answer[0]

    def explain(
        self, layer: int, q: Floats, *, position: int | None = None, options: AttendOptions | None = None
    ) -> Explanation:
        """What :meth:`attend` does with the same arguments: every score and weight, stage by stage.

        Raises what :meth:`attend` raises, and InvalidRequest for more than ``MAX_CELLS`` scores.
        """
        with self._turn:
            return self._question(layer, q, position, options).explain()

    @overload
    def step(
        self, layer: int, q: Floats, k: Floats, v: Floats, *, options: AttendOptions | None = None
    ) -> Floats: ...
    @overload
    def step(
        self,
        layer: int,
        q: Floats,
        k: Floats,
        v: Floats,
        *,
        options: AttendOptions | None = None,
        return_lse: Literal[True],
    ) -> tuple[Floats, Floats]: ...
    def step(
        self,
        layer: int,
        q: Floats,
        k: Floats,
        v: Floats,
        *,
        options: AttendOptions | None = None,
        return_lse: bool = False,
    ) -> Floats | tuple[Floats, Floats]:
        """:meth:`append` and :meth:`attend`, applied whole or not at all. Raises what they raise.

        Rows that are not causal see all tokens of the step, so a step cannot be cut: it is ChunkTooLong if
        a ring cannot take it at once.
        """
        with self._turn:
            answer = self._usual.step(layer, q, k, v, self._kernels) if options is None else None
            if answer is None:
                call = LayerCall.of_step(layer, self._ring(layer), q, k, v, options, self._kernels)
                self._writer.apply([call], self._kernels)
                (rows,) = call.asked
                answer = rows.out, rows.lse
        return answer if return_lse else answer[0]

    def step_embeddings(self, layer: int, x: Floats, *, options: AttendOptions | None = None) -> Floats:
        """:meth:`step` of what the projection makes of x [n, d_model]. Raises ProjectionNotFound, too."""
        return self.step(layer, *self.projections.project(self.spec, layer, x), options=options)

    # --- all layers -----------------------------------------------------------------------------------

    def append_all(self, k: Floats, v: Floats, *, first_layer: int = 0) -> int:
        """Store n tokens in a run of layers: k [layers, n, Hkv, Dk], v [layers, n, Hkv, Dv].

        The layers must have the same shapes and lengths. All layers of the stream take any n (committed
        piece by piece). Returns their new length. Raises what :meth:`append` raises, and SequenceGap when
        the layers are not level.
        """
        with self._turn:
            self._writer.apply(self._check_stack(first_layer, k, v), self._kernels)
            return self._extent.layer_length(first_layer)

    def step_all(
        self, q: Floats, k: Floats, v: Floats, *, first_layer: int = 0, options: AttendOptions | None = None
    ) -> Floats:
        """:meth:`append_all` and attend: q [layers, n, Hq, Dk], result [layers, n, Hq, Dv]. Every layer has
        the same options."""
        with self._turn:
            calls = self._check_stack(first_layer, k, v)
            out = LayerCall.ask_stack(calls, q, options, self._kernels)
            self._writer.apply(calls, self._kernels)
            return out

    # --- life cycle -----------------------------------------------------------------------------------

    def fork(self, *, max_new_tokens: int | None = None, tag: bytes | None = b"") -> DecoderSession:
        """A stream of its own that begins with this one's tokens, lengths and claims, at generation 0.

        Both hold the same pages; whoever first writes to one copies it. The fork reserves all that it may
        come to write to, or with ``max_new_tokens`` what so many tokens beyond ``length`` need: it takes no
        more then, and who else rewrites pages that it holds (an old lap) needs room in the arena for copies.
        A sealed stream's forks are sealed and reserve nothing: one memory for many readers.

        Raises:
            InvalidRequest: ``max_new_tokens`` is no number from 0 on, or the tag is none.
            StreamSealed: the stream was sealed, and ``max_new_tokens`` is above 0.
            BudgetExceeded: the arena has no room for what the fork reserves.
            QuotaExceeded: the account may not have so much.
        """
        with self._turn:
            checked_tag(tag or b"")
            parts = self._extent, list(self._rings), self._pages
            parts = forked(self.spec, parts, max_new_tokens, self._arena)
            fork = DecoderSession._of(self.spec, self._arena, parts, self._kernels)
            fork.projections = self.projections
            if tag is not None:
                fork.publish(tag)
            return fork

    # --- inside ---------------------------------------------------------------------------------------

    def _question(
        self, layer: int, q: Floats, position: int | None, options: AttendOptions | None
    ) -> Question:
        rings, base = self._ring(layer), self._arena.base
        return Question.of(self._extent, layer, rings, q, position, options, self._kernels, base)

    def _check_stack(self, first_layer: int, k: Floats, v: Floats) -> list[LayerCall]:
        layers = stacked_layers(self.spec, first_layer, k)
        return LayerCall.of_stack(layers, [self._ring(layer) for layer in layers], k, v, self._kernels)
