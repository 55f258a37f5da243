"""One hard budget of memory for the caches of many streams.

The budget is cut into units of 2 MiB. A slab is a run of units that serves pages of one size; a reservation
claims slabs so that every page it names has a place. So growth never fails: a stream is refused when it
opens, not when it is nine thousand tokens long. When the last page of a slab is given back and no
reservation needs it, its memory goes back to the system. A page that several reservations hold is there once,
and promised for at least once (``reservation.py``).

With overcommit reservations may name more pages than there are places: more streams open, and it is growth
that may be refused (``space.py``).
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
from rondel.decoder.cache.space import Space
from rondel.decoder.checks import real
from rondel.decoder.errors import ArenaFileError, InvalidSpec


@dataclass(frozen=True, slots=True)
class ArenaStats:
    """Bytes: the whole budget, what reservations have claimed of it, pages in use, and those of them that
    several streams share. Each page counts once, however many hold it. ``reserved`` is at most ``overcommit``
    times the budget, ``resident`` never more than the budget."""

    budget: int
    reserved: int
    resident: int
    shared: int = 0
    overcommit: float = 1.0


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

    With ``overcommit``, from 1 to 1000, the pages that streams reserve may be so many times the budget. Above
    1 a stream's growth can be refused: a call that needs a page for which there is no memory raises
    BudgetExceeded and has changed nothing; the other streams go on. At 1 growth never fails.

    Safe to use from several threads. Offsets that it hands out are relative to :attr:`base`.

    Raises:
        InvalidSpec: the budget is below 2 MiB or the system refuses to map it; ``overcommit`` is out of
            range.
        ArenaFileError: the file cannot be made, or is of another budget. What was there is left alone.
        ArenaFileBusy, CorruptArena, UnsupportedArena: it is in use, damaged or of another version.
    """

    def __init__(
        self, budget: int, *, path: str | os.PathLike[str] | None = None, overcommit: float = 1.0
    ) -> None:
        if isinstance(budget, bool) or not isinstance(budget, int) or budget < UNIT:
            raise InvalidSpec(
                f"budget must be an integer of at least {UNIT} bytes, got {budget!r}", field="budget"
            )
        self.overcommit: Final = real("overcommit", overcommit, 1.0, 1000.0)
        """How many times the budget reservations may name."""
        units = budget // UNIT
        self._memory = Memory(units) if path is None else ArenaFile(path, units)
        self._bytes = self._memory.bytes
        self.base: Final[int] = self._bytes.ctypes.data
        self._space = Space(self._memory, units, self.overcommit)
        self._pools = self._space.pools
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
            self.account.reserved, self.account.resident, self.account.shared = self._totals()

    @property
    def file(self) -> ArenaFile | None:
        """The file that the memory is, if it is one."""
        return self._memory.file

    @property
    def held(self) -> bool:
        """Whether the memory is ours; a file is not once it was closed."""
        return self._memory.held

    def check_held(self) -> None:
        """Raises ArenaFileError unless the memory is ours."""
        if not self.held:
            raise ArenaFileError("the arena's file is not ours: it was closed, or we were forked")

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
            space = self._space
            reserved, shared = space.reserved * UNIT, self._shares.bytes
            return ArenaStats(space.units * UNIT, reserved, space.resident, shared, self.overcommit)

    def reserve(self, demand: Mapping[int, int], account: Account | None = None) -> Reservation:
        """Promise pages: ``demand`` maps a page size in bytes to a number of pages.

        Raises:
            BudgetExceeded: there is no room; nothing was claimed.
            QuotaExceeded: it is more than the account may have; nothing was claimed.
            ArenaFileError: the arena's file was closed, or is that of the process which we were forked from.
        """
        self.check_held()
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
        return self._space.promised, self._space.resident, self._shares.bytes

    def _promise(self, demand: Mapping[int, int], account: Account) -> None:
        """Promise so many pages more, or raise BudgetExceeded or QuotaExceeded and promise none."""
        account.check(sum(page_bytes * pages for page_bytes, pages in demand.items()))
        self._space.promise(demand)

    def abandon(self, reservation: Reservation) -> None:
        """Have a reservation left (``Reservation.leave``) at the next occasion. For finalisers, which may run
        anywhere, even inside this arena."""
        self._abandoned.append(reservation)

    def _sweep(self) -> None:
        with suppress(IndexError):  # empty, perhaps since another thread was quicker
            while True:
                self._abandoned.popleft().leave()
