"""One hard budget of memory for the caches of many streams.

The budget is cut into units of 2 MiB. A slab is a run of units that serves pages of one size; a reservation
claims slabs so that every page it names has a place. So growth never fails: a stream is refused when it
opens, not when it is nine thousand tokens long. When the last page of a slab is given back and no
reservation needs it, its memory goes back to the system. A page that several reservations hold is there once,
and promised for at least once (``reservation.py``).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from rondel.decoder.cache.account import Account, Charged
from rondel.decoder.cache.arena_file import ArenaFile
from rondel.decoder.cache.memory import Memory
from rondel.decoder.cache.rebuild import Found, rebuild
from rondel.decoder.cache.reservation import Reservation as Reservation
from rondel.decoder.cache.shares import Shares
from rondel.decoder.cache.slabs import UNIT as UNIT
from rondel.decoder.cache.slabs import Pool, Slab, offsets_of
from rondel.decoder.errors import ArenaFileError, BudgetExceeded, InvalidSpec


@dataclass(frozen=True, slots=True)
class ArenaStats:
    """Bytes: the whole budget, what reservations have claimed of it, pages in use, and those of them that
    several streams share. Each page counts once, however many hold it."""

    budget: int
    reserved: int
    resident: int
    shared: int = 0


class Detachable(Protocol):
    """A stream that can be left in a file."""

    def detach(self) -> None: ...


class Arena:
    """Memory for pages, at most ``budget`` bytes of it (rounded down to 2 MiB).

    With ``path`` it is a file, and streams in it outlive this process: *what was acknowledged survives kill
    -9, bit-exact; not power loss*. The file is made if there is none, with all its bytes, so that a full disk
    is an error here and never later; it has a few MiB beyond the budget.
    Nobody else can have it until :meth:`close`, or the end of the process. The streams in a file that was
    there are handed out by ``attach`` (``decoder/attach.py``); until then they keep what they have.

    Safe to use from several threads. Offsets that it hands out are relative to :attr:`base`.

    Raises:
        InvalidSpec: the budget is below 2 MiB or the system refuses to map it.
        ArenaFileError: the file cannot be made, or is of another budget. What was there is left alone.
        ArenaFileBusy, CorruptArena, UnsupportedArena: it is in use, damaged or of another version.
    """

    def __init__(self, budget: int, *, path: str | os.PathLike[str] | None = None) -> None:
        if isinstance(budget, bool) or not isinstance(budget, int) or budget < UNIT:
            raise InvalidSpec(
                f"budget must be an integer of at least {UNIT} bytes, got {budget!r}", field="budget"
            )
        self._units = budget // UNIT
        self._memory = Memory(self._units) if path is None else ArenaFile(path, self._units)
        self._bytes = self._memory.bytes
        self.base: Final[int] = self._bytes.ctypes.data
        self._unit_taken = bytearray(self._units)
        self._pools: dict[int, Pool] = {}
        self._resident = 0
        self._promised = 0
        self._shares = Shares()
        self._abandoned: deque[Reservation] = deque()
        self._lock = threading.Lock()
        self.found: list[Found] = []
        """The streams of a file that was there, until they are handed out."""
        self._streams: weakref.WeakSet[Detachable] = weakref.WeakSet()
        self.account: Final = Account()
        """That of streams which were given none."""
        if self._memory.file is not None:
            self.found = rebuild(self, self._memory.file)
            self._promised = sum(size * pool.promised for size, pool in self._pools.items())
            self.account.reserved, self.account.resident, self.account.shared = self._totals()

    @property
    def file(self) -> ArenaFile | None:
        """The file that the memory is, if it is one."""
        return self._memory.file

    @property
    def held(self) -> bool:
        """Whether the memory is ours; a file is not once it was closed."""
        return self._memory.held

    def note(self, stream: Detachable) -> None:
        """Have a stream detached by :meth:`close`."""
        if self.file is not None:
            self._streams.add(stream)

    def close(self) -> None:
        """Let others have the file: every session in it is detached, its stream stays. An arena without a
        file stays as it is. Doing it twice is harmless.

        Raises:
            SessionBusy: a session is inside a call. The file is still ours.
        """
        if self.file is not None:
            self._sweep()
            for stream in list(self._streams):
                stream.detach()
            self.file.close()

    def stats(self) -> ArenaStats:
        """How much is claimed and used now."""
        self._sweep()
        with self._lock:
            reserved = self._unit_taken.count(1) * UNIT
            return ArenaStats(self._units * UNIT, reserved, self._resident, self._shares.bytes)

    def reserve(self, demand: Mapping[int, int], account: Account | None = None) -> Reservation:
        """Promise pages: ``demand`` maps a page size in bytes to a number of pages.

        Raises:
            BudgetExceeded: there is no room; nothing was claimed.
            QuotaExceeded: it is more than the account may have; nothing was claimed.
            ArenaFileError: the arena's file was closed, or is that of the process which we were forked from.
        """
        if not self.held:
            raise ArenaFileError("the arena's file is not ours: it was closed, or we were forked")
        self._sweep()
        account = account or self.account
        with self.charged(account):
            self._promise(demand, account)
        return Reservation(self, dict(demand), account)

    def charged(self, account: Account) -> Charged:
        """The lock, held for a change that an account is to bear."""
        return Charged(self, account)

    def charge(self, pages: Reservation, account: Account) -> None:
        """Have an account bear what a stream has, and the streams that it shares pages with. For streams
        found in a file, whose owner is known only when they are handed out."""
        with self._lock:
            family = pages.family
            if pages.account is account:
                return
            held: dict[int, set[int]] = {}
            for member in family:
                for size, offsets in member._held():
                    held.setdefault(size, set()).update(offsets)
            moved = (
                sum(member.reserved_bytes for member in family),
                sum(size * len(offsets) for size, offsets in held.items()),
                sum(self._shares.bytes_among(size, offsets) for size, offsets in held.items()),
            )
            for side, sign in ((pages.account, -1), (account, 1)):
                side.reserved += sign * moved[0]
                side.resident += sign * moved[1]
                side.shared += sign * moved[2]
            for member in family:
                member.account = account

    def _totals(self) -> tuple[int, int, int]:
        """Bytes promised, in use, and shared."""
        return self._promised, self._resident, self._shares.bytes

    def _promise(self, demand: Mapping[int, int], account: Account) -> None:
        """Claim the slabs for so many pages more, or raise BudgetExceeded or QuotaExceeded and claim
        nothing."""
        more = sum(page_bytes * pages for page_bytes, pages in demand.items())
        account.check(more)
        claimed: list[tuple[Pool, Slab]] = []
        demand = {page_bytes: pages for page_bytes, pages in demand.items() if pages}
        # Counted first: a demand beyond all bounds must not claim slab after slab to find that out.
        if self._units_short(demand) > self._unit_taken.count(0):
            raise self._refusal(demand, account)
        for page_bytes, pages in demand.items():
            pool = self._pools.setdefault(page_bytes, Pool(page_bytes))
            for _ in range(max(0, pool.slabs_for(pool.promised + pages) - len(pool.slabs))):
                unit = self._find_units(pool.units)
                if unit is None:
                    for owner, slab in claimed:
                        self._drop_slab(owner, slab)
                    raise self._refusal(demand, account)
                claimed.append((pool, self._add_slab(pool, unit)))
        for page_bytes, pages in demand.items():
            self._pools[page_bytes].promised += pages
        self._promised += more

    def abandon(self, reservation: Reservation) -> None:
        """Have a reservation left (``Reservation.leave``) at the next occasion. For finalisers, which may run
        anywhere, even inside this arena."""
        self._abandoned.append(reservation)

    def _sweep(self) -> None:
        with suppress(IndexError):  # empty, perhaps since another thread was quicker
            while True:
                self._abandoned.popleft().leave()

    def _units_short(self, demand: Mapping[int, int]) -> int:
        units = 0
        for page_bytes, pages in demand.items():
            pool = self._pools.get(page_bytes, Pool(page_bytes))
            units += pool.units * max(0, pool.slabs_for(pool.promised + pages) - len(pool.slabs))
        return units

    def _refusal(self, demand: Mapping[int, int], account: Account) -> BudgetExceeded:
        if account.private:
            # Not in slabs either: how many are needed depends on what others have begun.
            requested = sum(page_bytes * pages for page_bytes, pages in demand.items())
            return BudgetExceeded(
                f"the stream needs {requested} more bytes, the arena has not so much room",
                requested=requested,
            )
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

    def _add_slab(self, pool: Pool, unit: int) -> Slab:
        self._unit_taken[unit : unit + pool.units] = b"\1" * pool.units
        offsets = offsets_of(unit, pool.page_bytes)[::-1]
        # What a file held before is still there.
        slab = Slab(unit, offsets) if self.file is None else Slab(unit, [], offsets)
        self._memory.claim(unit, pool.page_bytes)
        pool.slabs[unit] = slab
        return slab

    def _drop_slab(self, pool: Pool, slab: Slab) -> None:
        del pool.slabs[slab.unit]
        if pool.filling is slab:
            pool.filling = None
        self._memory.give_back(slab.unit, pool.units, used=bool(slab.used_before))
        self._unit_taken[slab.unit : slab.unit + pool.units] = bytes(pool.units)

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
        self._promised -= page_bytes * pages
        spare = len(pool.slabs) - pool.slabs_for(pool.promised)
        for slab in [s for s in pool.slabs.values() if s.in_use == 0][:spare] if spare else ():
            self._drop_slab(pool, slab)
        if not pool.slabs:
            del self._pools[page_bytes]

    def _slab_of(self, pool: Pool, offset: int) -> int:
        unit = offset // UNIT
        while unit not in pool.slabs:  # a page above 2 MiB, or one across a unit border of its slab
            unit -= 1
        return unit
