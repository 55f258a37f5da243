"""The pages that one stream may take, and those that it shares with the streams forked from it.

Of the pages that a reservation holds, it has *paid* for those that a promise of its own is for: it can have
the page, or a copy of it, to itself. *Borrowed* ones only others have paid for. Every page in use is paid for
by one of its holders at least, so pages never outnumber promises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.cache.place import Place
from rondel.decoder.errors import BudgetExceeded, QuotaExceeded

if TYPE_CHECKING:
    from rondel.decoder.cache.account import Account
    from rondel.decoder.cache.arena import Arena
    from rondel.decoder.cache.record import Slot


class Reservation:
    """The pages that one stream may take.

    Used by the stream's caller; but what happens to other holders of its pages changes it from their threads,
    so everything that concerns sharing is done under the arena's lock.
    """

    def __init__(self, arena: Arena, demand: dict[int, int], account: Account) -> None:
        self._arena = arena
        self.account = account
        """Who bears it; the same for all streams that share pages."""
        self._demand = demand
        self._paid: dict[int, set[int]] = {size: set() for size in demand}
        self._borrowed: dict[int, set[int]] = {size: set() for size in demand}
        # All reservations that may hold pages of ours: the streams forked from one another, ours included.
        self._family: set[Reservation] | None = None
        self._open = True
        self.record: Slot | None = None
        """What a file says about the stream."""

    @property
    def demand(self) -> dict[int, int]:
        """Pages promised, by page size in bytes."""
        return dict(self._demand)

    def borrowed(self, tables: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these pages are borrowed."""
        with self._arena._lock:
            return np.isin(tables, [offset for pages in self._borrowed.values() for offset in pages])

    @property
    def shares(self) -> bool:
        """Whether pages may be shared. Where they are not, nobody need look any page up."""
        return self._family is not None

    @property
    def family(self) -> set[Reservation]:
        """All that may hold pages of this one, itself included. Under the arena's lock."""
        return self._family or {self}

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all pages promised."""
        return sum(size * pages for size, pages in self._demand.items()) if self._open else 0

    @property
    def resident_bytes(self) -> int:
        """Bytes of the pages held, shared ones included."""
        with self._arena._lock:
            return sum(
                size * len(pages) for held in (self._paid, self._borrowed) for size, pages in held.items()
            )

    @property
    def shared_bytes(self) -> int:
        """Bytes of the pages held that others hold as well."""
        if not self.shares:
            return 0
        with self._arena._lock:
            return sum(self._arena._shares.bytes_among(size, offsets) for size, offsets in self._held())

    def take(self, page_bytes: int) -> int:
        """Offset of one zeroed page; never fails within what was promised, but for overcommit.

        Raises:
            BudgetExceeded: more pages than were promised, or with overcommit more than there are.
        """
        with self._arena.charged(self.account):
            paid = self._paid[page_bytes]
            if len(paid) >= self._demand[page_bytes]:
                raise BudgetExceeded(
                    f"all {len(paid)} promised pages of {page_bytes} bytes are taken",
                    requested=page_bytes,
                    available=0,
                )
            offset = self._arena._space.take(page_bytes)
            paid.add(offset)
            return offset

    def take_copy(self, page_bytes: int, offset: int) -> int:
        """:meth:`take`, of the same content as another page; for a page that nobody is writing to."""
        copy = self.take(page_bytes)
        self.contents(page_bytes, copy)[:] = self.contents(page_bytes, offset)
        return copy

    def give_back(self, page_bytes: int, offset: int) -> None:
        """Return one taken page, which is not shared; it stays promised."""
        with self._arena.charged(self.account):
            self._paid[page_bytes].remove(offset)
            self._arena._space.put_back(page_bytes, offset)

    def contents(self, page_bytes: int, offset: int) -> NDArray[np.uint8]:
        """The bytes of a page that is held, in place. Only an own page may be written to: see :meth:`own`."""
        return self._arena._bytes[offset : offset + page_bytes]

    def check_held(self) -> None:
        """Raises ArenaFileError once what is held may be another process's."""
        self._arena.check_held()

    def fork(self, fresh: Mapping[int, int], own: Mapping[int, Collection[int]]) -> Reservation:
        """A reservation that holds the same pages; mappings are by page size.

        It has promises for ``fresh`` pages that nobody holds yet, and for those pages held here that are in
        ``own``. Every page that this one is to go on writing to must be in ``own``, or be promised for by
        another holder: that is what lets it leave the page for a copy.

        Raises:
            BudgetExceeded: the arena has no room for the promises; nothing changed.
            QuotaExceeded: they are more than the account may have; nothing changed.
        """
        demand = {size: fresh.get(size, 0) + len(own.get(size, ())) for size in self._demand}
        fork = self._arena.reserve(demand, self.account)
        try:
            with self._arena.charged(self.account):
                family = self.family
                for size, held in self._held():
                    ours = set(own.get(size, ()))
                    self._arena._shares.join(size, held, ours)
                    fork._paid[size], fork._borrowed[size] = ours, held - ours
                family.add(fork)
                self._family = fork._family = family
        except BaseException:
            fork.release()
            raise
        return fork

    def hold(self, *, copies: bool) -> Reservation:
        """A reservation of the same pages as they are now, for reading; with ``copies`` it has room for one
        of each, so that this one can go on writing to all of them. Raises BudgetExceeded, QuotaExceeded."""
        with self._arena._lock:
            own = dict(self._held()) if copies else {}
        return self.fork({}, own)

    def own(self, places: Sequence[Place]) -> None:
        """Have these pages to ourselves, to write to them: a shared one is copied, its place names the copy.

        Whoever comes first copies, and the last holder has the page itself: both are decided, and the copy is
        made, under the arena's lock, so that nobody writes to a page that somebody else still reads.

        Raises:
            QuotaExceeded: a page is borrowed; or it is paid for by us alone, others hold it, and the arena
                has no room for a copy, or the account may not have one. Nothing changed.
            BudgetExceeded: with overcommit the copies are promised, and there is no room. Nothing changed.
        """
        arena = self._arena
        arena._sweep()  # what holders that were dropped without an end still hold is not worth a copy
        with arena.charged(self.account):
            shared = [place for place in places if place.offset in arena._shares]
            for place in shared:
                if place.offset in self._borrowed[place.page_bytes]:
                    raise QuotaExceeded(
                        f"this fork has reserved no copy of a page that it shares, of {place.page_bytes} "
                        f"bytes: it may write only what max_new_tokens reserved"
                    )
            pinned = Counter(p.page_bytes for p in shared if arena._shares.promises(p.offset) == 1)
            if pinned:
                try:
                    arena._promise(pinned, self.account)
                except BudgetExceeded as full:
                    error = self.account.told(full)
                    raise QuotaExceeded(
                        f"the stream's forks hold {pinned.total()} pages that it is about to write to, and "
                        f"there is no room for copies: {error.message}",
                        **error.facts,
                    ) from full
            try:
                arena._space.room_for(Counter(place.page_bytes for place in shared))
            except BudgetExceeded:
                for size, pages in pinned.items():
                    arena._space.withdraw(size, pages)
                raise
            for place in shared:
                self._move(place)

    def _move(self, place: Place) -> None:
        # In this order: an interrupt in between leaves a page too many held until the end, never one too few.
        size, old = place.page_bytes, place.offset
        new = self._arena._space.copied(size, old)
        self._paid[size].add(new)
        place.name(new)
        self._paid[size].remove(old)
        last = self._arena._shares.promises(old) == 1
        if last:  # our promise goes with us, the one made for this case to whoever stays
            self._bequeath(size, {old})
        self._arena._shares.leave(size, old, promised=not last)

    def _bequeath(self, size: int, pages: set[int]) -> None:
        """Have other holders pay for pages from now on. The promises are there: they only change hands."""
        pages = set(pages)
        for heir in self._family or ():
            if not pages:
                return
            moved = pages & heir._borrowed[size] if heir is not self else set()
            if moved:
                heir._borrowed[size] -= moved
                heir._paid[size] |= moved
                heir._demand[size] += len(moved)
                pages -= moved

    def release(self) -> int:
        """Give every page and promise back; the bytes of promises that are free now.

        Pages that others hold stay, and so do the promises for them where there is no other: they go to one
        of the holders. So it cannot fail. Doing it twice is harmless.
        """
        arena, freed = self._arena, 0
        with arena.charged(self.account):
            if not (self._open and arena.held):
                return 0
            self._open = False
            if self.record is not None:  # before a page can become another stream's
                self.record.withdraw()
            for size, pages in self._demand.items():
                left = self._leave(size)
                self._bequeath(size, left)
                arena._space.withdraw(size, pages - len(left))
                freed += size * (pages - len(left))
            if self._family:
                self._family.discard(self)
                if len(self._family) == 1:
                    self._family.pop()._family = None
            self._paid, self._borrowed, self._family = {}, {}, None
        if self.record is not None:
            self.record.pages.release()
        return freed

    def abandon(self) -> None:
        """Have it left at the next occasion; see ``Arena.abandon``."""
        self._arena.abandon(self)

    def leave(self) -> None:
        """End without being closed: what is published in a file stays there as it is; else release."""
        if self.record is None or not self.record.published:
            self.release()
            return
        with self._arena._lock:
            self._open = False

    def _leave(self, size: int) -> set[int]:
        """Hold nothing of this size any more; the pages that only we have paid for and others hold."""
        shares, left = self._arena._shares, set()
        for offset in self._paid[size]:
            if offset not in shares:
                self._arena._space.put_back(size, offset)
                continue
            last = shares.promises(offset) == 1
            if last:
                left.add(offset)
            shares.leave(size, offset, promised=not last)
        for offset in self._borrowed[size]:
            shares.leave(size, offset, promised=False)
        return left

    def _held(self) -> list[tuple[int, set[int]]]:
        return [(size, paid | self._borrowed[size]) for size, paid in self._paid.items()]
