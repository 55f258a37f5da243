"""How tokens get into a stream's rings, and are attended to on the way: whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rondel.decoder.cache.arena import Arena
from rondel.decoder.cache.extent import StreamExtent
from rondel.decoder.cache.record import StreamRecord
from rondel.decoder.cache.reservation import Reservation
from rondel.decoder.cache.ring import GroupRings
from rondel.decoder.cache.saved import SavedUndo
from rondel.decoder.cache.undo import Undo
from rondel.decoder.call import LayerCall
from rondel.decoder.errors import BudgetExceeded, ChunkTooLong
from rondel.decoder.kernels import Kernels
from rondel.decoder.spec import StreamSpec

PIECE: Final = 512
"""Tokens of a piece, if nothing asks for shorter ones."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Carries out checked calls on one stream, which consists of these parts."""

    spec: StreamSpec
    extent: StreamExtent
    rings: Sequence[GroupRings]
    pages: Reservation
    arena: Arena

    def apply(self, calls: Sequence[LayerCall], kernels: Kernels) -> None:
        """Store the tokens of checked calls and attend where there are queries: whole or not at all."""
        pieces = self.pieces(calls)
        with self.undo(calls, pieces):
            self.carry_out(calls, pieces or iter([slice(0, len(calls[0].k))]), kernels)

    def carry_out(self, calls: Sequence[LayerCall], pieces: Iterator[slice], kernels: Kernels) -> None:
        """:meth:`apply` for calls that :meth:`pieces` has settled, within their :meth:`undo`."""
        for part in pieces:
            for call in calls:
                first = self.place(call, part, kernels)
                kernels.attend(call.queries(self.arena.base, first, part))
                self.extent.advance(call.layer, first + part.stop - part.start)
        for call in calls:
            call.finish()

    def undo(self, calls: Sequence[LayerCall], pieces: Iterator[slice] | None = None) -> Undo:
        """A context for carrying out checked calls: if it is left by an exception, nothing has changed.

        Raises:
            QuotaExceeded: a page would have to be copied that no room is promised for (``Reservation.own``).
            BudgetExceeded: with overcommit there is no room for such a copy, promised or not.
            MemoryError: no room for what undoing needs.
            ChunkTooLong: no room for it in the arena's file, which a call in pieces needs (``saved.py``).
        """
        if self.pages.shares:
            self._own(calls)
        writes = [(call.rings, call.layer) for call in calls]
        tokens, record = len(calls[0].k), self.pages.record
        parts = self.extent, self.rings, self.pages, writes, tokens
        if pieces is None or not isinstance(record, StreamRecord):
            return Undo(*parts)
        if not self.extent.forgets(self.extent.length + tokens):
            return Undo(*parts)
        try:
            return SavedUndo(*parts, arena=self.arena, record=record)
        except BudgetExceeded as error:
            limit, told = self.spec.max_chunk or tokens, self.pages.account.told(error)
            raise ChunkTooLong(
                f"{tokens} tokens at once overwrite what a kill would have the stream go back to, and the "
                f"arena has no room to keep that meanwhile: at most {limit} at once; {told.message}",
                limit=limit,
            ) from told

    def _own(self, calls: Sequence[LayerCall]) -> None:
        """Have all pages that the calls will write to for this stream alone, before the first is written to.

        Piece by piece was rejected: a call that may not write its last page must not write its first.
        """
        first = self.extent.held(calls[0].layer)
        end = first + len(calls[0].k)
        self.pages.own([place for call in calls for place in call.rings.places(call.layer, first, end)])

    def pieces(self, calls: Sequence[LayerCall]) -> Iterator[slice] | None:
        """Settles checked calls, once. None = they are carried out at once; else the pieces to carry them out
        in, each cut when it is asked for.

        Raises:
            InvalidShape: options do not cover what the rows will see.
            ChunkTooLong: rows that look ahead would need more tokens at once than the ring can take.
            SequenceGap, LengthExceeded, QuotaExceeded, StreamSealed: as ``StreamExtent.check_append`` does.
        """
        tokens = len(calls[0].k)
        first = self.extent.check_append([call.layer for call in calls], tokens)
        # One token always has room.
        room = self.spec.room(self.extent.length) if tokens > 1 else 1
        ahead = any(call.looks_ahead for call in calls)
        if len(calls) == self.spec.layers and ahead and tokens > room:
            raise ChunkTooLong(
                f"rows that see what comes after them take at most {room} tokens at once, got {tokens}",
                limit=room,
            )
        for call in calls:
            call.settle(first)
        # Layers that are all of the stream's advance piece by piece. Mostly there is one.
        if len(calls) < self.spec.layers or ahead or tokens <= min(PIECE, room):
            self.extent.end()  # what a restore that was interrupted may have left
            return None
        return self._cut(tokens)

    def _cut(self, tokens: int) -> Iterator[slice]:
        self.extent.begin(self.extent.length)
        yield from chunks(self.spec, self.extent, tokens, PIECE)
        self.extent.end()

    def place(self, call: LayerCall, part: slice, kernels: Kernels) -> int:
        """Claim positions and store a part of a call's tokens there; returns the first position."""
        first = self.extent.held(call.layer)
        end = first + part.stop - part.start
        # The order of stores is the design's: high water, data, and the layer's length after its attend.
        self.extent.claim(call.layer, end)
        for rings in self.rings:
            rings.grow(end, self.pages)
        words, table = call.rings.words, call.rings.table(call.layer)
        whole = end - first == len(call.k)
        k, v = (call.k, call.v) if whole else (call.k[part], call.v[part])
        kernels.place(words, self.arena.base, table, first, k, v)
        return first


def chunks(spec: StreamSpec, extent: StreamExtent, tokens: int, at_most: int) -> Iterator[slice]:
    """Pieces of a run of new tokens, each cut by the stream's length at that moment."""
    start = 0
    while start < tokens:
        end = min(tokens, start + min(at_most, spec.room(extent.length)))
        yield slice(start, end)
        start = end
