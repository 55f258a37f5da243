"""How a call that stores tokens takes everything back when it fails."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.cache.extent import StreamExtent
from rondel.decoder.cache.place import Place
from rondel.decoder.cache.reservation import Reservation
from rondel.decoder.cache.ring import GroupRings

Kept = tuple[NDArray[np.uint8], NDArray[np.uint8]]
"""A page that is about to be written to, and a copy of it."""


class Undo:
    """A context, entered before the first claim: any exception inside puts the stream back as it was.

    ``writes`` names the layers, each with its group's rings, that are about to take ``tokens`` more. Pages
    that will lose an old lap are copied now, so the memory for undoing is had before anything changes. Only
    what a stream can still see is kept: slots beyond a layer's claim hold nothing, those between its length
    and its claim only what was undone before.

    Checking beforehand what might fail later was rejected: whether a kernel finds its working space, or
    whether somebody presses Ctrl-C, is not known then. So was letting the claim stand: the tokens are not
    there, but what they have overwritten is gone, and the next truncate is refused for a call that never
    was. The cost is one copy of a page per layer and 128 tokens, and only once the ring has wrapped.

    The pages that will be written to must be the stream's own by then (``Reservation.own``), so that what is
    put back is put back for this stream alone. A copy made for that stays, whatever happens: the page that it
    was copied from may belong to others by now, and it holds the same bytes.

    A signal that strikes after the last store can still be raised from a call that was carried out.

    Raises:
        MemoryError: no room for the copies; nothing changed.
    """

    _saves = False
    """Whether there is something to keep where no page is rewritten."""

    def __init__(
        self,
        extent: StreamExtent,
        rings: Sequence[GroupRings],
        pages: Reservation,
        writes: Sequence[tuple[GroupRings, int]],
        tokens: int,
    ) -> None:
        self._extent = extent
        self._rings = rings
        self._pages = pages
        self._marks = extent.marks()
        self._columns = [ring.columns for ring in rings]
        places: list[Place] = []
        for ring, layer in writes:
            rewritten = ring.layout.rewritten(extent.claimed(layer), extent.held(layer) + tokens)
            if rewritten:  # on every step's path: mostly there are none
                places += ring.taken(layer, rewritten)
        self._kept = self._keep(places) if places or self._saves else []

    def _keep(self, places: Sequence[Place]) -> list[Kept]:
        held = [self._pages.contents(place.page_bytes, place.offset) for place in places]
        return [(each, each.copy()) for each in held]

    def restore(self) -> None:
        """Put everything back. Doing it twice is harmless."""
        self._extent.begin(self._marks[2])
        for held, copy in self._kept:
            held[:] = copy
        # Only now: until its page is whole again a claim says that it is not.
        self._extent.reset(self._marks)
        for ring, columns in zip(self._rings, self._columns, strict=True):
            ring.shrink(columns, self._pages)

    def end(self) -> None:
        """Need nothing any more to put back: the call was carried out, or everything is back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.restore()
        self.end()
