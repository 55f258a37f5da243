"""What a stream in a file goes back to when it is killed in a call that overwrites it.

A call for all layers that a wrapped ring cannot take at once is carried out in pieces, each of which takes
old tokens from what the stream would need to be what it was before. So the pages that the call is about to
rewrite are copied first, within the file; the record names the copies beside the pages, and the claims of
before. Whoever finds the call begun takes the copies for the pages: nothing has to be moved, and it may be
killed at it as often as it likes.

Rejected: copies that are always reserved (a second window for every stream), and calls that survive in part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rondel.decoder.cache.arena import Arena
from rondel.decoder.cache.extent import StreamExtent
from rondel.decoder.cache.place import Place
from rondel.decoder.cache.record import StreamRecord
from rondel.decoder.cache.reservation import Reservation
from rondel.decoder.cache.ring import GroupRings
from rondel.decoder.cache.undo import Kept, Undo


class SavedUndo(Undo):
    """An Undo whose copies are in the arena's file, for calls that show before they are complete.

    Raises:
        BudgetExceeded: the arena has no room for the copies; nothing changed.
    """

    _saves = True

    def __init__(
        self,
        extent: StreamExtent,
        rings: Sequence[GroupRings],
        pages: Reservation,
        writes: Sequence[tuple[GroupRings, int]],
        tokens: int,
        *,
        arena: Arena,
        record: StreamRecord,
    ) -> None:
        self._arena = arena
        self._record = record
        self._copies: Reservation | None = None
        super().__init__(extent, rings, pages, writes, tokens)

    def _keep(self, places: Sequence[Place]) -> list[Kept]:
        self._record.forget_saved()  # what a restore that was interrupted may have left
        # On nobody's account: they are gone with the call, and no quota is to refuse it for them.
        copies = self._arena.reserve(Counter(place.page_bytes for place in places))
        try:
            kept = []
            for place in places:
                size = place.page_bytes
                copy = copies.take_copy(size, place.offset)
                place.save(copy)
                kept.append((self._pages.contents(size, place.offset), copies.contents(size, copy)))
            claims = self._record.shape.claims
            for layer, claimed in enumerate(self._marks[1]):
                self._record.words.put(claims + layer + self._record.shape.to_saved, claimed + 1)
        except BaseException:
            self._record.forget_saved()
            copies.release()
            raise
        self._copies = copies
        return kept

    def restore(self) -> None:
        copies, self._copies = self._copies, None
        super().restore()
        # An interrupt before this leaves what was saved to whoever finds the file.
        self._copies = copies

    def end(self) -> None:
        copies, self._copies = self._copies, None
        if copies is not None:
            self._record.forget_saved()
            copies.release()
