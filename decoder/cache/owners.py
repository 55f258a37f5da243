"""Whose streams are in a file: owners are not written down there, whoever knows them says so."""

from __future__ import annotations

from rondel.decoder.cache.accounts import Usage
from rondel.decoder.cache.arena import Arena
from rondel.decoder.cache.reservation import Reservation
from rondel.decoder.errors import InvalidRequest


def assign(arena: Arena, pages: Reservation, owner: str) -> None:
    """Have a stream be an owner's that is nobody's yet, and with it all that it shares pages with.

    Raises:
        InvalidRequest: they are another owner's already. Nothing changed.
    """
    with arena._lock:
        family, old = pages._family or {pages}, pages._account
        if owner == old.owner:
            return
        if old.owner:
            raise InvalidRequest(
                f"it shares pages with a stream of owner {old.owner!r}, got {owner!r}", field="owner"
            )
        new = arena._accounts.of(owner)
        everything = [*family, *(member.record.pages for member in family if member.record is not None)]
        held = {(size, offset) for each in everything for size, pages in each._held() for offset in pages}
        usage = Usage(
            reserved=sum(size * count for each in everything for size, count in each._demand.items()),
            resident=sum(size for size, _ in held),
            shared=sum(size for size, offset in held if offset in arena._shares),
        )
        old.move(usage, new)
        for each in everything:
            each._account = new
