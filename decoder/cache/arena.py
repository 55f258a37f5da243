"""One hard budget of memory for the caches of many streams.

The budget is cut into units of 2 MiB. A slab is a run of units that serves pages of one size; a reservation
claims slabs so that every page it names has a place. So growth never fails: a stream is refused when it
opens, not when it is nine thousand tokens long. When the last page of a slab is given back and no
reservation needs it, its memory goes back to the system. A page that several reservations hold is there once,
and promised for at least once (``reservation.py``).
"""

from __future__ import annotations

import mmap
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rondel.decoder.cache.layout import round_up
from rondel.decoder.cache.reservation import Reservation as Reservation
from rondel.decoder.cache.shares import Shares
from rondel.decoder.errors import BudgetExceeded, InvalidSpec

UNIT: Final = 2 << 20


@dataclass(frozen=True, slots=True)
class ArenaStats:
    """Bytes: the whole budget, what reservations have claimed of it, pages in use, and those of them that
    several streams share. Each page counts once, however many hold it."""

    budget: int
    reserved: int
    resident: int
    shared: int = 0


@dataclass(slots=True)
class _Slab:
    unit: int
    fresh: list[int]
    used_before: list[int] = field(default_factory=list)
    in_use: int = 0


@dataclass(slots=True)
class _Pool:
    """All slabs of one page size."""

    page_bytes: int
    promised: int = 0
    slabs: dict[int, _Slab] = field(default_factory=dict)
    filling: _Slab | None = None

    @property
    def units(self) -> int:
        return round_up(self.page_bytes, UNIT) // UNIT

    @property
    def pages_per_slab(self) -> int:
        return self.units * UNIT // self.page_bytes

    def slabs_for(self, pages: int) -> int:
        return -(-pages // self.pages_per_slab)


class Arena:
    """Memory for pages, at most ``budget`` bytes of it (rounded down to 2 MiB).

    Safe to use from several threads. Offsets that it hands out are relative to :attr:`base`.

    Raises:
        InvalidSpec: the budget is below 2 MiB or the system refuses to map it.
    """

    def __init__(self, budget: int) -> None:
        if isinstance(budget, bool) or not isinstance(budget, int) or budget < UNIT:
            raise InvalidSpec(
                f"budget must be an integer of at least {UNIT} bytes, got {budget!r}", field="budget"
            )
        self._units = budget // UNIT
        try:
            self._map = mmap.mmap(-1, (self._units + 1) * UNIT, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, ValueError) as error:
            raise InvalidSpec(f"the system refuses to map {budget} bytes: {error}", field="budget") from error
        # Reading a cache walks more memory than the TLB covers in 4 KiB pages. Advice only: a kernel built
        # without huge pages refuses it, and nothing but speed is lost.
        with suppress(OSError):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        everything = np.frombuffer(self._map, dtype=np.uint8)
        # The mapping has one unit to spare: slabs start on a multiple of 2 MiB, as huge pages need.
        self._lead = -everything.ctypes.data % UNIT
        self._bytes = everything[self._lead : self._lead + self._units * UNIT]
        self.base: Final[int] = self._bytes.ctypes.data
        self._unit_taken = bytearray(self._units)
        self._pools: dict[int, _Pool] = {}
        self._resident = 0
        self._shares = Shares()
        self._abandoned: deque[Reservation] = deque()
        self._lock = threading.Lock()

    def stats(self) -> ArenaStats:
        """How much is claimed and used now."""
        self._sweep()
        with self._lock:
            reserved = self._unit_taken.count(1) * UNIT
            return ArenaStats(self._units * UNIT, reserved, self._resident, self._shares.bytes)

    def reserve(self, demand: Mapping[int, int]) -> Reservation:
        """Promise pages: ``demand`` maps a page size in bytes to a number of pages.

        Raises:
            BudgetExceeded: there is no room; nothing was claimed.
        """
        self._sweep()
        with self._lock:
            self._promise(demand)
        return Reservation(self, dict(demand))

    def _promise(self, demand: Mapping[int, int]) -> None:
        """Claim the slabs for so many pages more, or raise BudgetExceeded and claim nothing."""
        claimed: list[tuple[_Pool, _Slab]] = []
        demand = {page_bytes: pages for page_bytes, pages in demand.items() if pages}
        # Counted first: a demand beyond all bounds must not claim slab after slab to find that out.
        if self._units_short(demand) > self._unit_taken.count(0):
            raise self._refusal(demand)
        for page_bytes, pages in demand.items():
            pool = self._pools.setdefault(page_bytes, _Pool(page_bytes))
            for _ in range(max(0, pool.slabs_for(pool.promised + pages) - len(pool.slabs))):
                unit = self._find_units(pool.units)
                if unit is None:
                    for owner, slab in claimed:
                        self._drop_slab(owner, slab)
                    raise self._refusal(demand)
                claimed.append((pool, self._add_slab(pool, unit)))
        for page_bytes, pages in demand.items():
            self._pools[page_bytes].promised += pages

    def abandon(self, reservation: Reservation) -> None:
        """Have a reservation released at the next occasion. For finalisers, which may run anywhere, even
        inside this arena."""
        self._abandoned.append(reservation)

    def _sweep(self) -> None:
        with suppress(IndexError):  # empty, perhaps since another thread was quicker
            while True:
                self._abandoned.popleft().release()

    def _units_short(self, demand: Mapping[int, int]) -> int:
        units = 0
        for page_bytes, pages in demand.items():
            pool = self._pools.get(page_bytes, _Pool(page_bytes))
            units += pool.units * max(0, pool.slabs_for(pool.promised + pages) - len(pool.slabs))
        return units

    def _refusal(self, demand: Mapping[int, int]) -> BudgetExceeded:
        requested = self._units_short(demand) * UNIT
        available = self._unit_taken.count(0) * UNIT
        return BudgetExceeded(
            f"the stream needs {requested} more bytes (slabs of {UNIT}), the arena has {available} of "
            f"{self._units * UNIT} unclaimed",
            requested=requested,
            available=available,
        )

    def _find_units(self, count: int) -> int | None:
        found = self._unit_taken.find(bytes(count))
        return None if found < 0 else found

    def _add_slab(self, pool: _Pool, unit: int) -> _Slab:
        self._unit_taken[unit : unit + pool.units] = b"\1" * pool.units
        first = unit * UNIT
        offsets = [first + i * pool.page_bytes for i in range(pool.pages_per_slab)]
        slab = _Slab(unit, offsets[::-1])
        pool.slabs[unit] = slab
        return slab

    def _drop_slab(self, pool: _Pool, slab: _Slab) -> None:
        del pool.slabs[slab.unit]
        if pool.filling is slab:
            pool.filling = None
        self._unit_taken[slab.unit : slab.unit + pool.units] = bytes(pool.units)
        if slab.used_before:
            self._map.madvise(mmap.MADV_DONTNEED, self._lead + slab.unit * UNIT, pool.units * UNIT)

    def _take(self, page_bytes: int, *, zeroed: bool = True) -> int:
        pool = self._pools[page_bytes]
        slab = pool.filling
        if slab is None or not (slab.fresh or slab.used_before):
            # The fullest, so that others run empty and go back; looked for once per slab, not per page.
            slab = max((s for s in pool.slabs.values() if s.fresh or s.used_before), key=lambda s: s.in_use)
            pool.filling = slab
        slab.in_use += 1
        self._resident += page_bytes
        if slab.fresh and not slab.used_before:
            return slab.fresh.pop()
        offset = slab.used_before.pop()
        if zeroed:  # a page never shows its next owner what its last one stored
            self._bytes[offset : offset + page_bytes] = 0
        return offset

    def _copied(self, page_bytes: int, offset: int) -> int:
        """A page of the same content. Under the lock, so that nobody writes to the page meanwhile."""
        copy = self._take(page_bytes, zeroed=False)
        self._bytes[copy : copy + page_bytes] = self._bytes[offset : offset + page_bytes]
        return copy

    def _put_back(self, page_bytes: int, offset: int) -> None:
        pool = self._pools[page_bytes]
        slab = pool.slabs[self._slab_of(pool, offset)]
        slab.used_before.append(offset)
        slab.in_use -= 1
        self._resident -= page_bytes

    def _withdraw(self, page_bytes: int, pages: int) -> None:
        """Take promises back; slabs that nothing needs any more go."""
        pool = self._pools.get(page_bytes)
        if pool is None:  # nothing was promised, and nobody else was left
            return
        pool.promised -= pages
        spare = len(pool.slabs) - pool.slabs_for(pool.promised)
        for slab in [s for s in pool.slabs.values() if s.in_use == 0][:spare] if spare else ():
            self._drop_slab(pool, slab)
        if not pool.slabs:
            del self._pools[page_bytes]

    def _slab_of(self, pool: _Pool, offset: int) -> int:
        unit = offset // UNIT
        while unit not in pool.slabs:  # a page above 2 MiB, or one across a unit border of its slab
            unit -= 1
        return unit
