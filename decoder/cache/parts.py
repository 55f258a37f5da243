"""What a stream consists of, new or forked, and how many pages it has to reserve."""

from __future__ import annotations

from collections import Counter, defaultdict

from rondel.decoder.cache import recorded
from rondel.decoder.cache.account import Account
from rondel.decoder.cache.arena import Arena
from rondel.decoder.cache.extent import StreamExtent
from rondel.decoder.cache.layout import RingLayout
from rondel.decoder.cache.reservation import Reservation
from rondel.decoder.cache.ring import GroupRings
from rondel.decoder.errors import StreamSealed
from rondel.decoder.spec import StreamSpec, integer

Parts = tuple[StreamExtent, list[GroupRings], Reservation]


def opened(spec: StreamSpec, arena: Arena, account: Account | None = None) -> Parts:
    """An empty stream, with promises for all pages that it can come to need. Raises BudgetExceeded,
    QuotaExceeded."""
    layouts = [RingLayout.of(group, spec.length_limit) for group in spec.groups]
    # Before the page tables are made: a stream too large for the arena may be too large for those.
    demand = sum((layout.demand for layout in layouts), Counter[int]())
    if arena.file is not None:
        return recorded.opened(spec, layouts, arena, arena.reserve(demand, account))
    pages = arena.reserve(demand, account)
    try:
        return StreamExtent(spec, layouts), [GroupRings(layout) for layout in layouts], pages
    except BaseException:
        pages.release()
        raise


def forked(spec: StreamSpec, parts: Parts, max_new_tokens: int | None, arena: Arena) -> Parts:
    """A stream that begins as a copy of the one with these parts.

    Room is promised to it for every page that it may come to write to: for all of them, or, with
    ``max_new_tokens``, for those that so many positions from ``extent.length`` on are in. Always among these
    are the pages that the layers of the forked stream write to next: with two promises for them it can go on
    whoever writes first. A sealed stream is never written to, nor is its fork: nothing is promised.

    Raises:
        InvalidRequest: ``max_new_tokens`` is neither None nor a number from 0 on.
        StreamSealed: a sealed stream cannot take new tokens, nor can its fork.
        BudgetExceeded: the arena has no room for the promises; nothing changed.
        QuotaExceeded: they are more than the account may have; nothing changed.
    """
    extent, rings, pages = parts
    if max_new_tokens is not None:
        wanted = integer("max_new_tokens", max_new_tokens, least=0)
        max_new_tokens = min(wanted, extent.length_limit - extent.length)
    if extent.sealed and max_new_tokens:
        raise StreamSealed(
            f"the stream was sealed at {extent.length} tokens, its fork takes none, got {max_new_tokens}"
        )
    fresh: Counter[int] = Counter()
    own: defaultdict[int, set[int]] = defaultdict(set)
    for ring in rings if not extent.sealed else ():
        _reserve(ring, extent, max_new_tokens, fresh, own)
    tables = [ring.fork() for ring in rings]
    fork = extent.fork(max_new_tokens), tables, pages.fork(fresh, own)
    return fork if arena.file is None else recorded.forked(spec, fork, arena)


def _reserve(
    ring: GroupRings,
    extent: StreamExtent,
    max_new_tokens: int | None,
    fresh: Counter[int],
    own: defaultdict[int, set[int]],
) -> None:
    columns, length = ring.layout.columns, extent.length
    if max_new_tokens is None:
        written = list(ring.columns_of_table)
    else:
        written = columns(length, length + max_new_tokens)
    for column in written:
        pages = ring.pages(column)
        own[ring.page_bytes(column)].update(pages)
        fresh[ring.page_bytes(column)] += len(ring.group.layers) - len(pages)
    for layer in ring.group.layers if max_new_tokens is not None else ():
        for column in columns(length, extent.layer_length(layer) + 1):
            if column not in written:
                own[ring.page_bytes(column)].update(ring.pages(column, layer))
