"""Which pages several reservations hold: how many do, and how many of them have promised room for it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

Share = tuple[int, int]
"""Holders, at least two; promises, at least one and never more than there are holders."""

_ALONE: Final[Share] = (1, 1)


class Shares:
    """Offsets of shared pages; one that is not in here has one holder, and a promise of that one.

    A promise of a holder says that it may come to write to the page, and then leave it for a copy. So a page
    with n promises never needs more than n places. Used under the arena's lock.
    """

    def __init__(self) -> None:
        self._of: dict[int, Share] = {}
        self.bytes = 0

    def __contains__(self, offset: int) -> bool:
        return offset in self._of

    def promises(self, offset: int) -> int:
        """How many holders have promised room for a page."""
        return self._of.get(offset, _ALONE)[1]

    def bytes_among(self, page_bytes: int, offsets: Collection[int]) -> int:
        """Bytes of those of these pages that others hold as well."""
        return page_bytes * sum(offset in self._of for offset in offsets)

    def join(self, page_bytes: int, held: Collection[int], promised: Collection[int]) -> None:
        """One more holder of the pages ``held``; it has promised room for those of them in ``promised``."""
        before = len(self._of)
        joined = {}
        for offset in held:
            holders, promises = self._of.get(offset, _ALONE)
            joined[offset] = (holders + 1, promises + (offset in promised))
        self._of.update(joined)  # at once: an interrupt in the loop above has changed nothing
        self.bytes += page_bytes * (len(self._of) - before)

    def leave(self, page_bytes: int, offset: int, *, promised: bool) -> None:
        """One holder less of a shared page; with ``promised`` one promise less, not the last."""
        holders, promises = self._of[offset]
        if holders == 2:
            del self._of[offset]
            self.bytes -= page_bytes
        else:
            self._of[offset] = (holders - 1, promises - promised)
