"""The units of a budget: which slabs have them, and which promises need them. Used under the arena's lock.

Without overcommit a promise claims the slabs that its pages need, so that taking a page never fails. With it
promises may need more units than there are; slabs are claimed when pages are taken, which fails once all
units have slabs with pages in use, and go when their last page is put back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rondel.decoder.cache.memory import Memory
from rondel.decoder.cache.slabs import UNIT, Pool, Slab, offsets_of
from rondel.decoder.errors import BudgetExceeded


class Space:
    """``units`` units of a memory, of which promises may need ``overcommit`` times as many, rounded down."""

    def __init__(self, memory: Memory, units: int, overcommit: float) -> None:
        self.units: Final = units
        self.pools: Final[dict[int, Pool]] = {}
        self.taken: Final = bytearray(units)
        """Per unit whether no slab can have it any more."""
        self.promised = 0
        self.resident = 0
        """Bytes of all pages that are promised, and of those that are taken."""
        self._memory = memory
        self._limit = int(units * overcommit)
        self._lazy = overcommit > 1

    @property
    def reserved(self) -> int:
        """Units that slabs have or promises need."""
        missing = sum((pool.wanted - len(pool.slabs)) * pool.units for pool in self.pools.values())
        return self.taken.count(1) + missing

    def promise(self, demand: Mapping[int, int]) -> None:
        """Promise so many pages more, by size. Raises BudgetExceeded, and has promised none."""
        demand = {page_bytes: pages for page_bytes, pages in demand.items() if pages}
        # Counted first: a demand beyond all bounds must not claim slab after slab to find that out.
        available = max(0, self._limit - self.reserved)
        requested = self._short(demand)
        if requested > available:
            raise BudgetExceeded(
                f"the stream needs {requested * UNIT} more bytes (slabs of {UNIT}), the arena has "
                f"{available * UNIT} of {self._limit * UNIT} unclaimed",
                requested=requested * UNIT,
                available=available * UNIT,
            )
        if not self._lazy:
            self._claim({page_bytes: self._pool(page_bytes).more_for(n) for page_bytes, n in demand.items()})
        for page_bytes, pages in demand.items():
            self._pool(page_bytes).promised += pages
            self.promised += page_bytes * pages

    def withdraw(self, page_bytes: int, pages: int) -> None:
        """Take promises back; slabs that nothing needs any more go."""
        pool = self.pools.get(page_bytes)
        if pool is None:  # nothing was promised, and nobody else was left
            return
        pool.promised -= pages
        self.promised -= page_bytes * pages
        spare = len(pool.slabs) - (0 if self._lazy else pool.slabs_for(pool.promised))
        for slab in [s for s in pool.slabs.values() if s.in_use == 0][:spare] if spare else ():
            self._drop_slab(pool, slab)
        self._forget(pool)

    def room_for(self, demand: Mapping[int, int]) -> None:
        """See that so many pages that were promised can be taken next. Raises BudgetExceeded where they were
        promised with overcommit and are not there."""
        if self._lazy:
            self._claim({
                page_bytes: pool.slabs_for(max(0, pages - pool.free))
                for page_bytes, pages in demand.items()
                for pool in (self._pool(page_bytes),)
            })  # fmt: skip

    def take(self, page_bytes: int, *, zeroed: bool = True) -> int:
        """A page that was promised. Raises BudgetExceeded as :meth:`room_for` does."""
        pool = self.pools[page_bytes]
        slab = pool.filling
        if slab is None or not slab.free:
            self.room_for({page_bytes: 1})
            # The fullest, so that others run empty and go back; looked for once per slab, not per page.
            slab = max((each for each in pool.slabs.values() if each.free), key=lambda each: each.in_use)
            pool.filling = slab
        slab.in_use += 1
        self.resident += page_bytes
        if slab.fresh and not slab.used_before:
            return slab.fresh.pop()
        offset = slab.used_before.pop()
        if zeroed:  # a page never shows its next owner what its last one stored
            self._memory.bytes[offset : offset + page_bytes] = 0
        return offset

    def copied(self, page_bytes: int, offset: int) -> int:
        """A page of the same content. Under the lock, so that nobody writes to the page meanwhile."""
        copy, held = self.take(page_bytes, zeroed=False), self._memory.bytes
        held[copy : copy + page_bytes] = held[offset : offset + page_bytes]
        return copy

    def put_back(self, page_bytes: int, offset: int) -> None:
        """Give a page back; it stays promised."""
        pool = self.pools[page_bytes]
        slab = pool.slabs[self._slab_of(pool, offset)]
        slab.used_before.append(offset)
        slab.in_use -= 1
        self.resident -= page_bytes
        if self._lazy and slab.in_use == 0:
            self._drop_slab(pool, slab)

    def lay_out(self, unit: int, page_bytes: int, used: set[tuple[int, int]]) -> None:
        """A slab of a file that was there, with the pages of it that are in ``used``; each of these is
        promised for once."""
        pool = self._pool(page_bytes)
        free = [at for at in offsets_of(unit, page_bytes)[::-1] if (page_bytes, at) not in used]
        in_use = pool.pages_per_slab - len(free)
        pool.slabs[unit] = Slab(unit, [], free, in_use)
        pool.promised += in_use
        self.promised += page_bytes * in_use
        self.resident += page_bytes * in_use
        self.taken[unit : unit + pool.units] = b"\1" * pool.units

    def _pool(self, page_bytes: int) -> Pool:
        return self.pools.setdefault(page_bytes, Pool(page_bytes))

    def _forget(self, pool: Pool) -> None:
        if not (pool.slabs or pool.promised):
            self.pools.pop(pool.page_bytes, None)

    def _short(self, demand: Mapping[int, int]) -> int:
        """Units that so many pages more need beyond those reserved."""
        units = 0
        for page_bytes, pages in demand.items():
            pool = self.pools.get(page_bytes, Pool(page_bytes))
            units += pool.units * max(0, pool.slabs_for(pool.promised + pages) - pool.wanted)
        return units

    def _claim(self, wanted: Mapping[int, int]) -> None:
        """Claim so many slabs by page size, or raise BudgetExceeded and claim none."""
        claimed: list[tuple[Pool, Slab]] = []
        for page_bytes, count in wanted.items():
            pool = self._pool(page_bytes)
            for _ in range(count):
                unit = self.taken.find(bytes(pool.units))
                if unit < 0:
                    for owner, slab in claimed:
                        self._drop_slab(owner, slab)
                    raise self._full(wanted)
                claimed.append((pool, self._add_slab(pool, unit)))

    def _full(self, wanted: Mapping[int, int]) -> BudgetExceeded:
        needed = sum(self._pool(page_bytes).units * count for page_bytes, count in wanted.items())
        for page_bytes in wanted:
            self._forget(self._pool(page_bytes))
        free = self.taken.count(0)
        # Where enough is free, no run of units is long enough for a page above 2 MiB.
        return BudgetExceeded(
            f"{needed * UNIT} more bytes are needed (slabs of {UNIT}), the arena has {free * UNIT} of "
            f"{self.units * UNIT} free{', and is overcommitted' if self._lazy else ''}",
            requested=needed * UNIT,
            available=free * UNIT,
        )

    def _add_slab(self, pool: Pool, unit: int) -> Slab:
        self.taken[unit : unit + pool.units] = b"\1" * pool.units
        offsets = offsets_of(unit, pool.page_bytes)[::-1]
        # What a file held before is still there.
        slab = Slab(unit, offsets) if self._memory.file is None else Slab(unit, [], offsets)
        self._memory.claim(unit, pool.page_bytes)
        pool.slabs[unit] = slab
        return slab

    def _drop_slab(self, pool: Pool, slab: Slab) -> None:
        del pool.slabs[slab.unit]
        if pool.filling is slab:
            pool.filling = None
        self._memory.give_back(slab.unit, pool.units, used=bool(slab.used_before))
        self.taken[slab.unit : slab.unit + pool.units] = bytes(pool.units)

    @staticmethod
    def _slab_of(pool: Pool, offset: int) -> int:
        unit = offset // UNIT
        while unit not in pool.slabs:  # a page above 2 MiB, or one across a unit border of its slab
            unit -= 1
        return unit
