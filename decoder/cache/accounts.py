"""What each owner's streams have of an arena. Used under the arena's lock.

Streams that share pages are one owner's: a fork is its stream's owner's. So a page in use, however many hold
it, counts for one owner, once.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from weakref import WeakValueDictionary

from rondel.decoder.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes: pages promised to an owner's streams, pages in use, and those of them that several of the
    streams share. Each page in use counts once; in an arena with a file, streams' records are among them."""

    reserved: int = 0
    resident: int = 0
    shared: int = 0


@dataclass(slots=True, eq=False, weakref_slot=True)
class Account:
    """An owner's usage as it changes."""

    owner: str
    reserved: int = 0
    resident: int = 0
    shared: int = 0

    def usage(self) -> Usage:
        """The usage now."""
        return Usage(*astuple(self)[1:])

    def move(self, usage: Usage, to: Account) -> None:
        """Have another owner account for some of it."""
        for account, sign in ((self, -1), (to, 1)):
            account.reserved += sign * usage.reserved
            account.resident += sign * usage.resident
            account.shared += sign * usage.shared


class Accounts:
    """Accounts by owner; an owner of no streams has none."""

    def __init__(self) -> None:
        self._of: WeakValueDictionary[str, Account] = WeakValueDictionary()  # reservations keep theirs

    def of(self, owner: str) -> Account:
        """The owner's account."""
        account = self._of.get(owner)
        if account is None:
            account = self._of[owner] = Account(owner)
        return account

    def usages(self) -> dict[str, Usage]:
        """What each owner has that has anything."""
        usages = {account.owner: account.usage() for account in list(self._of.values())}
        return {owner: usage for owner, usage in usages.items() if usage != Usage()}


def checked_owner(owner: object) -> str:
    """``owner`` if it is a text. Raises InvalidRequest."""
    if not isinstance(owner, str):
        raise InvalidRequest(f"owner must be a text, got {type(owner).__name__}", field="owner")
    return owner
