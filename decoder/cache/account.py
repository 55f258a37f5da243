"""What some streams of an arena have of it together, and the most that they may reserve."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from rondel.decoder.errors import BudgetExceeded, QuotaExceeded

if TYPE_CHECKING:
    from rondel.decoder.cache.arena import Arena


class Account:
    """Whose pages they are. A stream's forks have its account, so no page belongs to two.

    The arena keeps the numbers, under its lock: every change of its own totals is one of the account on whose
    behalf it happens. So they are exact, and nothing when the last stream has ended.
    """

    def __init__(self, limit: int | None = None, *, private: bool = False) -> None:
        self.private = private
        """Whether a full arena keeps to itself how much room it has: others' use would show in it."""
        self.limit = limit
        """Most bytes that may be reserved; None = the arena's budget is the only bound. A smaller one than
        what is reserved takes nothing away."""
        self.reserved = 0
        """Bytes of all pages promised."""
        self.resident = 0
        """Bytes of pages in use, each counted once, however many streams hold it."""
        self.shared = 0
        """Bytes of those that several streams hold."""

    def told(self, error: BudgetExceeded) -> BudgetExceeded:
        """What the owner may know of a full arena."""
        # Not how much it takes either: that depends on the slabs which others have begun.
        return BudgetExceeded("the arena has no room for this") if self.private else error

    def check(self, more: int) -> None:
        """Whether so many bytes more may be reserved. Raises QuotaExceeded."""
        if self.limit is not None and more and self.reserved + more > self.limit:
            raise QuotaExceeded(
                f"the streams of this owner have reserved {self.reserved} bytes and would need {more} more, "
                f"the quota is {self.limit}",
                quota="bytes",
                requested=more,
                available=max(0, self.limit - self.reserved),
                limit=self.limit,
            )


class Charged:
    """An arena's lock, held while something is done on behalf of an account, which bears what has changed."""

    def __init__(self, arena: Arena, account: Account) -> None:
        self._arena = arena
        self._account = account

    def __enter__(self) -> None:
        self._arena._lock.acquire()
        self._before = self._arena._totals()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            account, before = self._account, self._before
            reserved, resident, shared = self._arena._totals()
            account.reserved += reserved - before[0]
            account.resident += resident - before[1]
            account.shared += shared - before[2]
        finally:
            self._arena._lock.release()
        if account.private and isinstance(error, BudgetExceeded):
            raise account.told(error) from None
